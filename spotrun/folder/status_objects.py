"""
Stores facts that change often. Each writer overwrites one small object, which readers use only as a hint.
"""

from __future__ import annotations

import re
from contextlib import suppress
from enum import StrEnum
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from spotrun.errors import StoreError, StoreUnavailable, WritesRefused
from spotrun.folder.poll_throttle import EVERY_S
from spotrun.run.bounds import SMALL_BYTES, Count, ExitCode, Moment, OutOfBounds, Pid, Seconds, Share, decode
from spotrun.run.gang import MemberName
from spotrun.store.port import Store


class MembersTrainer(msgspec.Struct, frozen=True, kw_only=True):
    """
    The state of a trainer on a member of a gang. The member writes it, and the gang's lead reads it. While the trainer
    runs, `exit_code` and `at` are None. After the trainer has ended, `exit_code` is its exit code, `at` is the time of
    its end, and `reason` is its last message. `damaged` is True if the trainer could not begin because the commit from
    which it should continue lacks an object in the store.
    """

    attempt: Count
    incarnation: Count
    exit_code: ExitCode | None = None
    at: Moment | None = None
    reason: str = ""
    damaged: bool = False


class StateStep(StrEnum):
    """A step of the questions that a gang's lead asks the other members before a checkpoint of a command's state."""

    COMPARE = "compare"
    """Compare the state files that you have written with the lead's."""
    STORE = "store"
    """Store those that the lead does not have in the same way."""
    CONFIRM = "confirm"
    """Check that your state files are still as you have stored them."""


class StateAsked(msgspec.Struct, frozen=True, kw_only=True):
    """
    A question of a gang's lead to the other members, before a checkpoint of a command's state. The object at `key`
    lists the lead's files. The question is about the state of one `incarnation` of the trainers. `word` identifies the
    checkpoint, and is the same for all steps.
    """

    attempt: Count
    incarnation: Count
    word: str
    key: str
    blake3: str
    step: StateStep = StateStep.COMPARE


class StateStored(msgspec.Struct, frozen=True, kw_only=True):
    """
    The state files that a member has stored. The object at `key` lists them. `objects` is the number of objects that
    had to be written for this, including the list, and `sent_bytes` is their total size.
    """

    key: str
    blake3: str
    objects: Count
    sent_bytes: Count


class StateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """
    A member's answer to the lead's question. `word` and `step` are copied from the question. `count` is the number of
    the member's state files that differ from the lead's list, and `unlike` contains the paths of the first few of them.
    `rests` is True if no process is writing to these files at this moment; in the answer to CONFIRM, it is True if they
    are still as they were stored. `stored` is set once the member has stored the files. `refused` is the reason why it
    must not store one of them.
    """

    word: str
    count: Count
    step: StateStep = StateStep.COMPARE
    unlike: tuple[str, ...] = ()
    rests: bool = False
    stored: StateStored | None = None
    refused: str = ""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """
    The utilization of a GPU. `share` is the share of time in which at least one of its units was computing; None if the
    driver does not report this, for example for a part of a GPU (MIG). The numbers of bytes are 0 if the GPU has no
    memory of its own.
    """

    share: Share | None = None
    memory_bytes: Count = 0
    memory_used_bytes: Count = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """
    The utilization of a machine. `cpu_share` is the share of time in which its `cpus` processors were busy, with
    whatever program. `own_cpu_share` is the share of time in which the processes of this run kept those `own_cpus`
    processors busy that they may use; None if it is unknown. `gpus` are the GPUs that a training can use, unless their
    driver does not report how busy they are.
    """

    cpus: Count
    cpu_share: Share
    memory_bytes: Count
    memory_used_bytes: Count
    own_cpus: Count = 0
    own_cpu_share: Share | None = None
    gpus: tuple[Gpu, ...] = ()

    @property
    def gpu_share(self) -> float | None:
        """
        The mean `share` of the GPUs for which it is known; None if it is known for none.
        """
        told = [gpu.share for gpu in self.gpus if gpu.share is not None]
        return sum(told) / len(told) if told else None

    @property
    def gpu_memory(self) -> tuple[int, int]:
        """The used and the total memory of all GPUs together, in bytes."""
        return sum(gpu.memory_used_bytes for gpu in self.gpus), sum(gpu.memory_bytes for gpu in self.gpus)


class Busy(msgspec.Struct, frozen=True, kw_only=True):
    """
    The time in which a device was busy: `busy_s` of the `of_s` seconds for which it was observed. For several machines,
    both numbers are sums over the machines.
    """

    busy_s: Seconds = 0.0
    of_s: Seconds = 0.0

    def __add__(self, other: Busy) -> Busy:
        return Busy(busy_s=self.busy_s + other.busy_s, of_s=self.of_s + other.of_s)

    def times(self, scale: float) -> Busy:
        return Busy(busy_s=self.busy_s * scale, of_s=self.of_s * scale)

    @property
    def share(self) -> float | None:
        return min(1.0, self.busy_s / self.of_s) if self.of_s else None


class MachineUse(msgspec.Struct, frozen=True, kw_only=True):
    """
    The utilization of a machine while it trained; validations do not count. Each field counts busy seconds. For
    example, if a quarter of the memory was in use for one second, `memory.busy_s` grows by 0.25 s. `waited` counts the
    seconds in which the training waited for data.
    """

    cpu: Busy = Busy()
    memory: Busy = Busy()
    gpu: Busy = Busy()
    gpu_memory: Busy = Busy()
    waited: Busy = Busy()

    def __add__(self, other: MachineUse) -> MachineUse:
        return MachineUse(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})

    def times(self, scale: float) -> MachineUse:
        return MachineUse(**{name: getattr(self, name).times(scale) for name in self.__struct_fields__})


class TrainingStatus(msgspec.Struct, frozen=True, kw_only=True):
    """
    The amount of training done under an agent: its duration in `seconds`, its `steps`, and its `samples` (0 if
    unknown). `waited_s` is the part of `seconds` in which the training waited for data. Validations do not count.
    """

    seconds: Seconds = 0.0
    waited_s: Seconds = 0.0
    steps: Count = 0
    samples: Count = 0

    def __add__(self, other: TrainingStatus) -> TrainingStatus:
        return TrainingStatus(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})

    def times(self, scale: float) -> TrainingStatus:
        """Convert the times to those of a clock that runs `scale` times as fast."""
        return replace(self, seconds=self.seconds * scale, waited_s=self.waited_s * scale)


class AgentStatus(msgspec.Struct, frozen=True, kw_only=True):
    """
    Progress of an agent. Times and durations are run time. `sequence` increases with each write.

    `epoch` counts from 0. `batch` is the number of completed batches in the epoch, and `batches` is the number of all
    its batches. `trouble` is the reason why the agent cannot train, if there is one. `member` is the instance's index
    in a gang's launch. `unreached` are the members of the gang that this agent cannot reach on the network.
    `state_asked` is the lead's question to the other members, and `state_answer` is another member's answer.
    `data_wait` is the share of the last minute of training that was spent waiting for data. `used` and `trained` cover
    all training since this agent began.
    """

    launch: Count
    phase: str
    at: Moment
    sequence: Count
    attempt: Count | None = None
    epoch: Count = 0
    epochs: Count = 0
    batch: Count = 0
    batches: Count = 0
    step: Count = 0
    metrics: dict[str, float] = {}
    step_s: Seconds | None = None
    stall_s: Seconds | None = None
    commit_s: Seconds | None = None
    console_tail: str = ""
    trouble: str = ""
    member: Count = 0
    trainer: MembersTrainer | None = None
    state_asked: StateAsked | None = None
    state_answer: StateAnswer | None = None
    unreached: tuple[MemberName, ...] = ()
    usage: Usage | None = None
    data_wait: Share | None = None
    used: MachineUse = MachineUse()
    trained: TrainingStatus = TrainingStatus()

    @property
    def steps_total(self) -> float | None:
        """
        The total number of steps of the training; None if the training does not report its length. It is an estimate,
        because an agent knows only the numbers of epochs and batches, and a step may consist of any number of batches:

            steps so far / (epoch + batch / batches) * epochs
        """
        if not self.epochs or not self.batches or not self.step:
            return None
        done = self.epoch + self.batch / self.batches
        return self.step * self.epochs / done if done else None


class Blindness(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a runner has not been able to list the run's instances since the time `since`."""

    since: Moment
    why: str


class RunnerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """
    The status of the runner that takes care of the run. `message` is the reason why the run cannot continue now; "" if
    it can. If the runner cannot list the run's instances, `blind` tells why; otherwise it is None. `every_s` is the
    time from this heartbeat to the next one.
    """

    at: Moment
    pid: Pid
    host: str
    sequence: Count
    message: str = ""
    blind: Blindness | None = None
    every_s: Seconds = EVERY_S


FOLDER = "hints/"
BEAT_EVERY_S = 2.0
"""Run time between two writes of an agent's status object (protocol 7)."""
BEAT_EVERY_MIN_S = 0.2
"""Minimum system time between two writes of an agent's status object."""
RUNNER_KEY = f"{FOLDER}runner.json"
_AGENT_KEY = re.compile(re.escape(FOLDER) + r"agent-(\d+)(?:\.([1-9]\d*))?\.json")

Status = TypeVar("Status", AgentStatus, RunnerStatus)


def agent_key(launch: int, member: int = 0) -> str:
    return f"{FOLDER}agent-{MemberName(launch, member).place}.json"


def name_in(key: str) -> MemberName | None:
    """Return the member whose agent writes `key`; None if `key` is not an agent's status object."""
    found = _AGENT_KEY.fullmatch(key)
    return None if found is None else MemberName(int(found[1]), int(found[2] or 0))


def write_status(store: Store, key: str, status: AgentStatus | RunnerStatus) -> WritesRefused | None:
    """
    Write a status object. If the store refuses the object because of a problem that only the user can fix, return the
    error.
    """
    with suppress(StoreError):
        try:
            store.put_status(key, msgspec.json.encode(status))
        except WritesRefused as refused:
            return refused
    return None


def read_status(store: Store, key: str, kind: type[Status]) -> Status | None:
    """Return the newest status object; None if it is missing or cannot be read."""
    try:
        return stored_status(store, key, kind)
    except StoreUnavailable:
        return None


def stored_status(store: Store, key: str, kind: type[Status]) -> Status | None:
    """
    Return the newest status object; None if it is missing or malformed.

    Raises:
        StoreUnavailable: the store did not answer, so the object may exist.
    """
    try:
        data = store.get(key, 0, SMALL_BYTES + 1)
        return decode(data, kind) if len(data) <= SMALL_BYTES else None
    except StoreUnavailable:
        raise
    except (StoreError, OutOfBounds):  # missing, malformed, or not a file
        return None
