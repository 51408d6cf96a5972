"""
A stranger who may put objects into the store of runs, outside of the folders of its owner's runs, and has no right in
the cloud. What it puts is well-formed as far as it can tell, and names runs, sweeps and nights that there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace

from spotrun.folder.final_status import KEY as FINAL_STATUS
from spotrun.folder.keys import key_of as key_of_run
from spotrun.folder.ledger import key_of
from spotrun.folder.status_objects import RUNNER_KEY, RunnerStatus
from spotrun.folder.sweep_record import SweepRecord, TrialRecord
from spotrun.folder.sweep_record import key_of as key_of_sweep
from spotrun.run.entry_bytes import decode_entry, encode_entry
from spotrun.run.events import SWEEP, RunCreated
from spotrun.run.owners import is_of_owner
from tests.support.histories import AWS_RULE, History
from tests.support.owners_key import OwnersKey

THEIRS = "touch theirs"
FAR_MORE = Decimal(100_000)
NOISE = (b"", b"{}", b"[]", b"\xff" * 100, b'{"run": "ffffffffff"}', b'{"delivered": true, "tries": 12}')
ENDS: tuple[tuple[Callable[[History], object], ...], ...] = (
    (),
    (lambda history: history.running(),),
    (lambda history: history.running(), lambda history: history.completed(None)),
)
"""How far a run has come that the stranger puts there."""
CENTURIES = timedelta(days=100_000)


class Stranger:
    """
    `objects` are those of the store, `names` the words by which the owner names runs, sweeps and nights, `own` the
    owner's runs by uid, and `others` the uids of runs in other stores. `job` is the owner's, as a mapping.
    """

    def __init__(
        self,
        objects: dict[str, bytes],
        random: Random,
        names: tuple[str, ...],
        others: tuple[str, ...],
        own: Mapping[str, RunCreated],
        job: dict[str, Any],
    ) -> None:
        self._objects, self._random, self._names, self._own, self._job = objects, random, names, own, job
        self._others = others
        self.spoiled: set[str] = set()
        """The runs whose keys were overwritten."""
        self.did: list[str] = []

    def plant(self) -> None:
        acts = (self._run, self._run, self._copy, self._copy, self._key, self._night, self._sweep, self._trial)
        act = self._random.choice((*acts, self._overwrite, self._overwrite, self._anything))
        act()

    def _put(self, key: str, data: bytes) -> None:
        assert key.split("/")[0] not in self._folders
        self._objects[f"runs/{key}"] = data
        self.did.append(key)

    @property
    def _folders(self) -> set[str]:
        return {f"{created.name}-{uid}" for uid, created in self._own.items()}

    def _uid(self) -> str:
        return self._random.choice([f"{self._random.getrandbits(40):010x}", *self._own, *self._others])

    def _name(self) -> str:
        return self._random.choice((*self._names, "evil"))

    # -- runs --------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Put a run of the stranger's own there, with a key and signed entries."""
        random, uid = self._random, self._uid()
        name = self._name()
        if f"{name}-{uid}" in self._folders:
            return
        like = random.choice([None, *self._own.values()])
        key = OwnersKey(random.getrandbits(32))
        harm = random.choice(({}, {"train": {"run": THEIRS}}, {"notify": [{"command": THEIRS}]}, {"setup": THEIRS}))
        fields: dict[str, Any] = {"spec": {**self._job, "name": name, **harm}, "billing": AWS_RULE, "simulated": False}
        if like is not None:
            fields = msgspec.structs.asdict(like) | {"spec": {**like.spec, **harm}}
            fields["clock_epoch"] += timedelta(seconds=random.choice((-3600, 0, 1, 3600)))
        fields |= {"uid": uid, "name": name, "public_key": key.public}
        fields |= random.choice(({}, {"budget_usd": None}, {"part_of": f"{SWEEP}lr"}, {"workdir_sha256": "f" * 64}))
        history = History(**{**fields, "budget_usd": FAR_MORE})
        history.now = fields.get("clock_epoch", history.now)
        if history.state.created.sweep or random.random() < 0.7:
            for act in random.choice(ENDS):
                act(history)
        created = replace(history.state.created, budget_usd=fields.get("budget_usd", FAR_MORE))
        history.entries[0] = replace(history.entries[0], event=created)
        for entry in history.entries:
            data = encode_entry(entry, key if is_of_owner(entry.event) else None)
            self._put(f"{name}-{uid}/{key_of(entry.number)}", data)
        if random.random() < 0.8 and uid not in self._own:
            self._put(key_of_run(uid, key.public), key._private.private_bytes_raw().hex().encode())
        if random.random() < 0.3:
            self._signs_of_life(f"{name}-{uid}", history.now)

    def _signs_of_life(self, folder: str, now: datetime) -> None:
        """Let a run look cared for, now or for centuries, and ended."""
        random = self._random
        at = random.choice((now, now + CENTURIES))
        status = RunnerStatus(at=at, pid=1, host="theirs", sequence=1, every_s=random.choice((15.0, 1e9)))
        self._put(f"{folder}/{RUNNER_KEY}", msgspec.json.encode(status))
        summaries = [data for key, data in self._objects.items() if key.endswith(FINAL_STATUS)]
        self._put(f"{folder}/{FINAL_STATUS}", random.choice((*summaries, *NOISE)))

    def _copy(self) -> None:
        """Copy a run of the owner's: whole or cut, as it is or with the folder's name in its entry 0."""
        if not self._own:
            return
        random, (uid, created) = self._random, self._random.choice([*self._own.items()])
        name, source = self._name(), f"runs/{created.name}-{uid}/"
        if name == created.name:
            name = "evil"
        last = random.choice((key_of(0), key_of(2), "~"))
        for key, data in [(key, data) for key, data in self._objects.items() if key.startswith(source)]:
            short = key.removeprefix(source)
            if short > last and short.startswith("ledger/"):
                continue
            if short == key_of(0) and random.random() < 0.7:
                entry = decode_entry(data)
                assert entry is not None
                data = encode_entry(replace(entry, event=replace(entry.event, name=name)))
            self._put(f"{name}-{uid}/{short}", data)

    def _key(self) -> None:
        uid, key = self._uid(), OwnersKey(self._random.getrandbits(32))
        private = key._private.private_bytes_raw().hex().encode()
        self._put(self._random.choice((key_of_run(uid), key_of_run(uid, key.public))), private)

    # -- records -----------------------------------------------------------------------------------------------------

    def _night(self) -> None:
        """Put a night of another name there, or the record of a night that began."""
        random, name = self._random, self._name()
        night = self._decoded("runs/nights/resnet50/night.json")
        if isinstance(night.get("spec"), dict) and random.random() < 0.3:
            night |= {"name": name, "spec": {**night["spec"], "train": {"run": THEIRS}}}
            self._put(f"nights/{name}/night.json", msgspec.json.encode(night))
            return
        begun = {"due": "2026-06-01", "run": self._uid(), "at": "2026-06-01T20:00:00Z", "signature": "0" * 128}
        number = random.choice((0, 1, 2, 99_999_999))
        self._put(f"nights/resnet50/begun/{number:08d}.json", msgspec.json.encode(begun))

    def _sweep(self) -> None:
        """Put a sweep there that has the name of a run, or that replaces one of the owner's."""
        name = self._random.choice((*self._names, *sorted(self._folders)))
        theirs = {"uid": f"{self._random.getrandbits(64):016x}", "trials": 3}
        new = {"began_at": "2026-06-01T20:00:00Z", "time_scale": 1.0, "wanted": {}, "recorded": True}
        record = self._decoded(f"runs/{key_of_sweep(name)}") or new
        stopped = self._random.choice(({}, {}, {"stopped_by": "theirs"}, {"recorded": False}))
        self._put(key_of_sweep(name), msgspec.json.encode(record | {"name": name} | theirs | stopped))

    def _trial(self) -> None:
        """Let the record of a trial name any run."""
        records = [
            data for key, data in self._objects.items() if key.startswith("runs/sweeps/") and key[-5:] == ".json"
        ]
        try:
            sweep = msgspec.json.decode(self._random.choice(records), type=SweepRecord)
        except (IndexError, msgspec.MsgspecError):
            return
        key = f"sweeps/{sweep.name}/{sweep.uid}/{self._random.choice((1, 1, 2))}"
        self._put(key, msgspec.json.encode(TrialRecord(run=self._uid())))

    # -- anything ----------------------------------------------------------------------------------------------------

    def _overwrite(self) -> None:
        """Overwrite an object with noise, with another object, or with one field changed."""
        random, own = self._random, self._folders
        keys = [key.removeprefix("runs/") for key in self._objects]
        key = random.choice([each for each in keys if each.split("/")[0] not in own] or ["market/x"])
        if key.startswith("keys/"):
            self.spoiled.add(key.removeprefix("keys/").split("-")[0])
        data = random.choice((random.choice(NOISE), random.choice([*self._objects.values()]), self._changed(key)))
        self._put(key, data)

    def _changed(self, key: str) -> bytes:
        found = self._decoded(f"runs/{key}") or {"": ""}
        values: tuple[Any, ...] = (
            FAR_MORE,
            "theirs",
            self._uid(),
            self._name(),
            {},
            [],
            None,
            {"max_usd": "100000"},
            {"run": THEIRS},
        )
        return msgspec.json.encode(found | {self._random.choice([*found]): self._random.choice(values)})

    def _decoded(self, key: str) -> dict[str, Any]:
        try:
            found = msgspec.json.decode(self._objects.get(key, b""))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return {}
        return found if isinstance(found, dict) else {}

    def _anything(self) -> None:
        """Put noise where spotrun keeps other things, in runs or on the owner's machine."""
        uid = self._uid()
        places = (
            *(f"known/{uid}", "notified/0-1-started.json", "environments/0.json", "environments/0/1/000000"),
            *("boot/spotrun-0-py3-none-any.whl", "market/aws/us-east-1/x.json", "bench/demo/0/A10G", "function.zip"),
            *(f"nights/{self._name()}/function.zip", "nights/resnet50/notified/0-0-late.json", f"{uid}/ledger/x"),
        )
        self._put(self._random.choice(places), self._random.choice(NOISE))
