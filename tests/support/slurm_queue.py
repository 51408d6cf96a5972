"""
Slurm's four programs as a small state machine, for cases that take a real cluster too long, or that it seldom has.

It passes the driver contract beside the real ones. Its words are those of Slurm 22.05.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from spotrun.clock import Clock
from spotrun.clouds.slurm.commands import Answer, no_program

REMEMBERED = timedelta(minutes=5)
"""MinJobAge."""
AFTER_MODULE = {"start": 4, "gang": 5}
"""Where the time-to-live is, of what job.sh runs, after the module that it names."""


@dataclass
class Partition:
    """`settings` are what scontrol shows of it."""

    name: str
    nodes: int = 4
    settings: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        facts = {"GraceTime": "0", "MaxTime": "UNLIMITED", "PreemptMode": "OFF", "PriorityTier": "1", "State": "UP"}
        facts |= {"TotalNodes": str(self.nodes), "Nodes": ",".join(f"n{at}" for at in range(1, self.nodes + 1))}
        return " ".join(
            f"{key}={value}" for key, value in {"PartitionName": self.name, **facts, **self.settings}.items()
        )


@dataclass
class QueuedJob:
    number: int
    options: dict[str, str]
    life: timedelta
    submitted_at: datetime
    deadline: datetime
    state: str = "PENDING"
    reason: str = "None"
    began_at: datetime | None = None
    ended_at: datetime | None = None
    nodes: tuple[str, ...] = ()
    steps: dict[str, str] = field(default_factory=dict)
    """By name, which node each runs on."""
    held: bool = False

    @property
    def name(self) -> str:
        return self.options["job-name"]

    @property
    def count(self) -> int:
        return int(self.options["nodes"])

    @property
    def limit(self) -> timedelta:
        return timedelta(minutes=int(self.options["time"]))

    @property
    def is_over(self) -> bool:
        return self.ended_at is not None

    def end(self, state: str, at: datetime, reason: str = "None") -> None:
        """A job that never ran has begun and ended at the same moment, as Slurm writes it down."""
        self.state, self.reason, self.ended_at = state, reason, at
        self.began_at = self.began_at or at
        self.steps = {}

    def shown(self, code: str) -> str:
        ends = self.ended_at or (self.began_at and self.began_at + self.limit)
        known = {
            "i": self.number,
            "T": self.state,
            "P": self.options["partition"],
            "V": _epoch(self.submitted_at),
            "S": _epoch(self.began_at),
            "e": _epoch(ends),
            "r": self.reason,
            "N": ",".join(self.nodes),
            "j": self.name,
            "k": self.options["comment"],
        }
        return str(known[code])


class SlurmQueue:
    """See Commands. `answers` are what the next calls of a program get instead of what they ask for."""

    def __init__(self, clock: Clock, partitions: Sequence[Partition], preempt_type: str = "preempt/partition_prio"):
        self.partitions = {each.name: each for each in partitions}
        self.jobs: list[QueuedJob] = []
        self.calls: list[tuple[str, ...]] = []
        self.answers: dict[str, list[Answer]] = {}
        self.lost: set[str] = set()
        """Programs whose next call does what it is asked for and gives no answer."""
        self.missing: set[str] = set()
        """Programs that this machine does not have."""
        self._clock = clock
        self._preempt_type = preempt_type
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def run(self, words: Sequence[str]) -> Answer:
        with self._lock:
            self.calls.append(tuple(words))
            self._advance()
            program = words[0]
            if program in self.missing:
                raise no_program(program)
            if words[1:] == ["--version"]:
                return Answer(0, "slurm-wlm 22.05.8\n", "")
            if self.answers.get(program):
                return self.answers[program].pop(0)
            done = self._programs()[program](words[1:])
            if program in self.lost:
                self.lost.discard(program)
                return Answer(1, "", f"{program}: error: Socket timed out on send/recv operation")
            return done

    def job(self, token: str) -> QueuedJob:
        return next(each for each in self.jobs if each.name == token)

    def end(self, token: str, state: str, reason: str = "None") -> None:
        with self._lock:
            self.job(token).end(state, self._clock.now(), reason)

    # -- the programs --------------------------------------------------------------------------------------------

    def _programs(self) -> dict[str, Callable[[Sequence[str]], Answer]]:
        return {"sbatch": self._sbatch, "squeue": self._squeue, "scancel": self._scancel, "scontrol": self._scontrol}

    def _sbatch(self, words: Sequence[str]) -> Answer:
        options = dict(_options(words))
        if "test-only" in options:
            return Answer(0, "", f"sbatch: Job 1 to start now in partition {options['partition']}")
        command = words[next(index for index, word in enumerate(words) if word.endswith("job.sh")) + 1 :]
        partition = self.partitions.get(options["partition"])
        if partition is None:
            return Answer(1, "", "sbatch: error: Batch job submission failed: Invalid partition name specified")
        if partition.settings.get("State") == "INACTIVE":
            words_of_it = "Required partition not available (inactive or drain)"
            return Answer(1, "", f"sbatch: error: Batch job submission failed: {words_of_it}")
        now = self._clock.now()
        deadline = now + timedelta(seconds=int(options["deadline"].removeprefix("now+")))
        module = command[command.index("-m") + 1].rpartition(".")[2]
        life = timedelta(seconds=float(command[command.index("-m") + 1 + AFTER_MODULE[module]]))
        self.jobs.append(QueuedJob(next(self._numbers), options, life, now, deadline))
        return Answer(0, f"{self.jobs[-1].number}\n", "")

    def _squeue(self, words: Sequence[str]) -> Answer:
        options = dict(_options(words))
        if "steps" in options:
            rows = [
                f"{job.number}.{at}|{name}|{node}"
                for job in self.jobs
                for at, (name, node) in enumerate(job.steps.items())
            ]
            return Answer(0, "".join(f"{row}\n" for row in rows), "")
        assert options["states"] == "all"
        named = options.get("name")
        codes = [code[0] for code in options["format"].split("%")[1:]]
        rows = [
            "|".join(job.shown(code) for code in codes)
            for job in sorted(self.jobs, key=lambda each: -each.number)
            if named in (None, job.name)
        ]
        return Answer(0, "".join(f"{row}\n" for row in rows), "")

    def _scancel(self, words: Sequence[str]) -> Answer:
        options = dict(_options(words))
        number, _, step = words[-1].partition(".")
        for job in self.jobs:
            if job.number == int(number) and step:
                del job.steps[[*job.steps][int(step)]]
            elif job.number == int(number) and not job.is_over and options.get("state") in (None, job.state):
                job.end("CANCELLED", self._clock.now())
        return Answer(0, "", "")

    def _scontrol(self, words: Sequence[str]) -> Answer:
        if words[-1] == "config":
            facts = {"ClusterName": "paper", "PreemptType": self._preempt_type, "SLURM_VERSION": "22.05.8"}
            return Answer(0, "".join(f"{key:23} = {value}\n" for key, value in facts.items()), "")
        if "hostnames" in words:
            return Answer(0, "".join(f"{each}\n" for each in words[-1].split(",")), "")
        if "node" in words:
            shown = (f"NodeName={each} State=IDLE NodeAddr={each}.lan Port=1\n" for each in words[-1].split(","))
            return Answer(0, "".join(shown), "")
        return Answer(0, "".join(f"{each}\n" for each in self.partitions.values()), "")

    # -- time ----------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        now = self._clock.now()
        for job in self.jobs:
            if job.state == "RUNNING" and job.began_at is not None and now >= job.began_at + job.life:
                job.end("FAILED", job.began_at + job.life, "NonZeroExitCode")
        for job in self.jobs:
            if job.state == "PENDING":
                self._begin(job, now)
        self.jobs = [job for job in self.jobs if job.ended_at is None or now - job.ended_at < REMEMBERED]

    def _begin(self, job: QueuedJob, now: datetime) -> None:
        """A job that the scheduler does not consider waits for ever: nobody looks at its deadline."""
        if job.held or self.partitions[job.options["partition"]].settings.get("State") == "DOWN":
            job.reason = "JobHeldUser" if job.held else "PartitionDown"
            return
        running = [each for each in self.jobs if each.state == "RUNNING"]
        here = [each for each in running if each.options["partition"] == job.options["partition"]]
        if now + job.limit > job.deadline:
            job.end("DEADLINE", now, "DeadLine")
        elif any(each.name == job.name and each.number < job.number and not each.is_over for each in self.jobs):
            job.reason = "Dependency"
        elif sum(each.count for each in here) + job.count > self.partitions[job.options["partition"]].nodes:
            job.reason = "Resources"
        else:
            job.state, job.reason, job.began_at = "RUNNING", "None", now
            job.nodes = tuple(f"n{job.number}-{at}" for at in range(job.count))
            job.steps = {f"member-{at}": node for at, node in enumerate(job.nodes)}


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        if word.startswith("--"):
            name, _, value = word.removeprefix("--").partition("=")
            yield name, value


def _epoch(moment: datetime | None) -> str:
    return "N/A" if moment is None else f"{moment.timestamp():.0f}"
