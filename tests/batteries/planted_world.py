"""
A store in which a stranger writes while its owner uses it: by the real commands and the real function of a night, on an
AWS account that is plain objects, in virtual time. Agents are played.

Whatever the stranger puts there, nothing is rented, ended or remembered that the owner has not asked for, none of the
stranger's commands runs, no notification of a run is lost, and the owner can stop and end each run.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from spotrun.clouds.aws.nights import AwsNights
from spotrun.clouds.aws.request import LAUNCH, RUN, TOKEN
from spotrun.notify import notifier
from spotrun.run.events import RunCreated
from spotrun.runner.creation import NewRun
from spotrun.runs import attend, termination
from spotrun.runs.notifying import notifying
from spotrun.runs.open_run import OpenRun
from spotrun.spec.model import NotifySpec
from spotrun.sweep import attending, starting
from spotrun.sweep.attending import Attendant, Sweeping
from tests.batteries.planting import Stranger
from tests.support.called_spotrun import Said, call
from tests.support.night_world import NAME, STORE, NightWorld, utc
from tests.support.plain_aws import REGION, TYPE, PlainAws, Row

START = "2026-06-01T19:55:00"
"""Five minutes before the night is due; no object is young enough for a runner that attends."""
STEPS = 14
BUDGET_USD, SWEEP_USD = Decimal(6), Decimal(40)
COMMAND = "notify-the-owner"
RUNS, SWEEP, TONIGHT = ("demo", "other"), "lr", "tonight"
FOREIGN = "ffffffffff"
"""A run in another store, whose instance is in the same account."""
JOB: dict[str, Any] = {
    "name": "demo",
    "train": {"script": "train.py"},
    "resources": {"cloud": "aws", "spot_policy": "auto"},
    "aws": {"regions": [REGION], "instance_types": [TYPE], "image_parameter": "/spotrun/image"},
    "checkpoint": {"uri": STORE},
    "policy": {"on_demand_after": "10m", "return_to_spot": False},
    "budget": {"max_usd": str(BUDGET_USD)},
    "notify": [{"command": COMMAND, "on": ["started", "done", "failed", "stopped"]}],
}


class PlantedWorld(NightWorld):
    """One history of an owner and a stranger. Equal seeds make the same plans."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, seed: int) -> None:
        super().__init__(monkeypatch, folder / "work", utc(START), work_hours=0.2, seed=seed)
        self._patch, self._random, self._job = monkeypatch, Random(seed), folder / "job.yaml"
        self.made: dict[str, RunCreated] = {}
        """The runs that the owner's programs have created."""
        self._digests: dict[str, str] = {}
        self._asked, self._to_end = Counter[str](), set[str]()
        self._known = folder / "known"
        self._heard: list[dict[str, Any]] = []
        self._rented: list[Row] = []
        self.said: list[str] = []
        for variable, value in {"SPOTRUN_KNOWN": self._known, "SPOTRUN_STORE": STORE, "HOME": folder}.items():
            monkeypatch.setenv(variable, str(value))
        self._watch(monkeypatch)
        self.install(budget={"max_usd": str(BUDGET_USD)})
        (folder / "work" / "train.py").write_text('parser.add_argument("--lr")\n')
        job = {**JOB, "workdir": str(folder / "work")}
        self._job.write_text(json.dumps(job))
        names = (*RUNS, SWEEP, f"{SWEEP}-1", TONIGHT, NAME)
        self.stranger = Stranger(self._objects.objects, Random(seed), names, (FOREIGN,), self.made, job)

    def _watch(self, patch: pytest.MonkeyPatch) -> None:
        """Note what is created, rented and ended. Let nothing wait, and start no process."""
        create, launched, terminate = NewRun.create, PlainAws.launched, PlainAws.end

        def noted(new: NewRun) -> str:
            uri = create(new)
            self.made[new.created.uid], self._digests[new.created.uid] = new.created, new.first_sha256
            return uri

        def rented(account: PlainAws, asked: Row) -> Row:
            self._rented.append(asked)
            return launched(account, asked)

        def ended(account: PlainAws, instance_id: str, reason: str, *at: Any) -> None:
            if reason == "Client.UserInitiatedShutdown":
                self._require_an_end(instance_id)
            terminate(account, instance_id, reason, *at)

        patch.setattr(NewRun, "create", noted)
        patch.setattr(PlainAws, "launched", rented)
        patch.setattr(PlainAws, "end", ended)
        patch.setattr(AwsNights, "wrong", lambda *_: "")
        patch.setattr(AwsNights, "pinned", lambda *_: self.pin)
        patch.setattr(attend, "attend", self._attends)
        patch.setattr(Attendant, "start", lambda trial: self._attends(trial.run))
        patch.setattr(Sweeping, "_until_over", lambda sweeping: self._sweeps(sweeping))
        patch.setattr(notifier, "open_sink", lambda wanted, *_: _Ear(wanted, self._heard))
        patch.setattr("spotrun.runs.background.leave_behind", lambda _: None)
        for module in (attending, starting):
            patch.setattr(module, "datetime", SimpleNamespace(now=lambda _: self.clock.now()))
        patch.setattr(termination, "sleep", self.clock.advance)
        patch.setattr(termination, "system_s", self.clock.monotonic)

    # -- the parts of a night's world that differ --------------------------------------------------------------------

    def folder_of(self, uid: str) -> str:
        return f"{self.made[uid].name}-{uid}" if uid in self.made else f"?-{uid}"

    @property
    def _lately(self) -> list[str]:
        return [*self.made]

    def _require_no_more_than_needed(self) -> None:
        self._check()

    # -- a history ---------------------------------------------------------------------------------------------------

    def live(self) -> None:
        """
        Let the owner and the stranger act in turn, then end all runs of the owner.

        Raises:
            AssertionError: the stranger has achieved something.
        """
        self._rents_elsewhere()
        self._launch(RUNS[0])
        self.passes(1)
        for _ in range(STEPS):
            for _ in range(self._random.choice((0, 1, 1, 2))):
                self.stranger.plant()
            self._random.choice(self._acts())()
            self.passes(self._random.choice((1, 1, 3)))
        for uid in [*self.made]:
            self._down(self.folder_of(uid))
        self._check()
        left = [each for each in self.aws.alive if self._uid_of(each) != FOREIGN]
        assert not left, f"left: {left}"
        for uid, created in self.made.items():
            end = self.state(uid).terminal
            if created.name != NAME and end is not None and uid not in self.stranger.spoiled:
                heard = [each for each in self._heard if each["run"] == self.folder_of(uid)]
                kind = {"completed": "done"}.get(end.outcome, end.outcome)
                assert kind in [each["event"] for each in heard], f"nobody was told that {uid} {end.outcome}"

    def _acts(self) -> Sequence[Callable[[], object]]:
        """Return what the owner may do now."""
        found: list[Callable[[], object]] = [
            *(lambda: self._launch(self._random.choice(RUNS)), self._sweep, self._tonight),
            *(lambda: self._spotrun("status"), lambda: self._spotrun("night", "ls", "--json"), self._reap),
            lambda: self._spotrun("status", self._random.choice((*RUNS, SWEEP, TONIGHT))),
        ]
        uids = [uid for uid in self.made if self.made[uid].name != NAME]
        if uids:
            uid = self._random.choice(uids)
            word = self._random.choice((uid, self.folder_of(uid), self.made[uid].name))
            found += [lambda: self._tick(uid, word)] * 3
            found += [lambda: self._resume(uid, word), lambda: self._stop(word), lambda: self._down(word)]
        if any(self.made[uid].name.startswith(f"{SWEEP}-") for uid in uids):
            found += [lambda: self._stop(SWEEP), lambda: self._down(SWEEP)]
        return found

    def _spotrun(self, *words: str) -> Said:
        said = call(self._patch, *words)
        self.said.append(f"spotrun {' '.join(words)}: {said.code}\n{said.out}{said.err}")
        return said

    def _launch(self, name: str) -> None:
        self._asked[name] += 1
        self._spotrun("launch", str(self._job), "--name", name, "--yes", "--detach")

    def _tonight(self) -> None:
        self._asked[TONIGHT] += 1
        self._spotrun("launch", str(self._job), "--name", TONIGHT, "--nightly")

    def _sweep(self) -> None:
        for number in (1, 2):
            self._asked[f"{SWEEP}-{number}"] = 1
        flags = ("--grid", "lr=1,2", "--budget", str(SWEEP_USD), "--name", SWEEP, "--yes")
        self._spotrun("sweep", str(self._job), *flags)

    def _tick(self, uid: str, word: str) -> None:
        said = self._spotrun("tick", word)
        if word != self.made[uid].name and uid not in self.stranger.spoiled:
            assert said.code == 0, f"tick {word} does not work: {said.err}"

    def _resume(self, uid: str, word: str) -> None:
        self._to_end -= {uid}
        self._spotrun("resume", word)

    def _stop(self, word: str) -> None:
        meant = self._meant(word)
        said = self._spotrun("stop", word)
        for uid in meant:
            state = self.state(uid)
            ends = state.stop_requested or state.terminal is not None
            assert ends or uid in self.stranger.spoiled, f"stop {word} has not stopped {uid}: {said.out}{said.err}"

    def _down(self, word: str) -> None:
        meant = self._meant(word)
        said = self._spotrun("down", word, "--yes")
        left = [each for each in self.aws.alive if self._uid_of(each) in meant]
        assert not left, f"down {word} has left {left}: {said.out}{said.err}"

    def _reap(self) -> None:
        self._spotrun("reap", "--cloud", "aws", "--yes")

    def _meant(self, word: str) -> list[str]:
        """Return the runs that a word of the owner means: all trials of the sweep, or the newest run of a name."""
        if word == SWEEP:
            found = [uid for uid in self.made if self.made[uid].name.startswith(f"{SWEEP}-")]
        else:
            found = [uid for uid in self.made if word in (uid, self.folder_of(uid), self.made[uid].name)][-1:]
        self._to_end |= {*found}
        return found

    # -- the owner's programs ----------------------------------------------------------------------------------------

    def _attends(self, run: OpenRun, *, nightly: bool = False, background: bool = False) -> None:
        """Take care of a run as `attend` does, for one pass."""
        with notifying(run, ours=nightly) as telling:
            for _ in run.runner.ticks():
                telling.show(run.ledger.entries)

    def _sweeps(self, sweeping: Sweeping) -> None:
        for _ in range(3):
            for trial in sweeping._attendants:
                trial.start()
            sweeping._act()
            self.clock.sleep(60.0)

    def _rents_elsewhere(self) -> None:
        tags = {RUN: FOREIGN, LAUNCH: "1", TOKEN: f"{FOREIGN}-1"}
        row = self.aws._row(
            {
                "InstanceType": TYPE,
                "SubnetId": "subnet-a",
                "BlockDeviceMappings": [{"Ebs": {"VolumeSize": 50}}],
                "UserData": "",
                "TagSpecifications": [{"Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}],
            }
        )
        self.aws._of_token["elsewhere"] = row

    # -- what must hold ----------------------------------------------------------------------------------------------

    def _uid_of(self, instance_id: str) -> str:
        (row,) = [row for row in self.aws.rows if row["InstanceId"] == instance_id]
        return _tag(row["Tags"], RUN)

    def _require_an_end(self, instance_id: str) -> None:
        """Require that the owner has asked for this end, or that the run is over or needs the instance no more."""
        uid = self._uid_of(instance_id)
        assert uid in self.made, f"an instance of {uid} was ended"
        if uid in self._to_end:
            return
        state = self.state(uid)
        closed = any(
            each.closed is not None and each.recorded is not None and each.recorded.instance_id == instance_id
            for each in state.launches.values()
        )
        assert state.terminal is not None or closed, f"an instance of {uid} was ended, and nobody had asked for it"

    def _check(self) -> None:
        for asked in self._rented:
            uid = _tag(asked["TagSpecifications"][0]["Tags"], RUN)
            assert uid in self.made, f"an instance was rented for {uid}"
            place = base64.b64encode(f"{STORE}/{self.folder_of(uid)}".encode()).decode()
            assert f"SPOTRUN_RUN_URI_BASE64={place}" in asked["UserData"], "an instance runs what is elsewhere"
        self._rented.clear()
        for path in filter(Path.is_file, self._known.glob("*")):
            assert path.name in self.made, f"{path.name} is remembered"
            assert path.read_text() == self._digests[path.name], f"{path.name} is remembered with another entry 0"
        made = Counter(created.name for created in self.made.values())
        for name, number in made.items():
            assert number <= max(self._asked[name], name == NAME), f"{number} runs of {name}"
        charged = dict.fromkeys(self.made, 0.0)
        for instance_id, usd in self.aws.charged_usd.items():
            charged[self._uid_of(instance_id)] = charged.get(self._uid_of(instance_id), 0.0) + usd
        for uid, created in self.made.items():
            assert created.budget_usd is not None
            assert charged[uid] <= created.budget_usd, f"{uid} has cost {charged[uid]}"


class _Ear:
    """Stands for the owner's command for notifications."""

    name = COMMAND

    def __init__(self, wanted: NotifySpec, heard: list[dict[str, Any]]) -> None:
        assert wanted.command == COMMAND, f"{wanted} was told"
        self._heard = heard

    def deliver(self, body: bytes, id: str) -> None:
        self._heard.append(json.loads(body))

    def abandon(self) -> None: ...


def _tag(tags: Sequence[Row], key: str) -> str:
    return str(next(each["Value"] for each in tags if each["Key"] == key))
