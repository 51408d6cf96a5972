"""
A store of three runs. One of them has every kind of stored object, and any of them may be changed; each command is then
called in this process, on a cloud that is a list.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from blake3 import blake3
from msgspec.structs import replace

from spotrun.checkpoint import layout
from spotrun.checkpoint.upload import upload
from spotrun.clouds.cloud import Account
from spotrun.clouds.local.cloud import Local
from spotrun.errors import InsufficientCapacity
from spotrun.folder import keys
from spotrun.folder.final_status import write_final_status
from spotrun.folder.keys import OwnersKey
from spotrun.folder.ledger import FOLDER as LEDGER
from spotrun.folder.ledger import Ledger, first_object, key_of
from spotrun.folder.status_objects import RUNNER_KEY, AgentStatus, RunnerStatus, agent_key, write_status
from spotrun.folder.stored_files import Listing, OutputFile, Piece, list_key
from spotrun.instance import EndedBy, Instance, InstanceState, LaunchRequest, PriceSegment
from spotrun.offering import Offering
from spotrun.run import entry_bytes
from spotrun.run import events as ev
from spotrun.run.entry_bytes import encode_entry, parted, seal, signed
from spotrun.run.owners import is_of_owner
from spotrun.runs import background, termination
from spotrun.runs.known_record import NEWEST
from spotrun.runs.open_run import OpenRun
from spotrun.store.local import LocalStore
from tests.batteries import odd_contents
from tests.support.bills import billed, cost_and_usage_rows, write_csv
from tests.support.called_spotrun import call
from tests.support.checkpoint_entries import committed
from tests.support.decisions import MARKET, spec
from tests.support.histories import START, History
from tests.support.manual_clock import ManualClock
from tests.support.short_runs import bare, trained
from tests.support.stored_runs import store_run

KINDS = ("entry", "entry 0", "agent", "runner", "summary", "manifest", "list", "key", "log", "setup", "market", "known")
READS = (
    "status",
    "status --json",
    "report {run}",
    "report {run} --json",
    "report {run} --csv",
    "report {run} --html report.html",
    "events {run}",
    "events {run} --json",
    "why {run}",
    "why {run} --json",
    "logs {run}",
    "checkpoints ls {run}",
    "checkpoints verify {run}",
    "fetch {run} --to fetched",
    "bill {run} --cur cur.csv",
    "compare {run} whole",
)
WRITES = (
    "tick {run} --yes",
    "stop {run}",
    "resume {run} --detach --yes",
    "down {run} -y",
    "checkpoints prune {run} --keep 1",
)
RUN_UID, NAME, ENDED_UID, ENDED = "aaaaaaaaaa", "victim", "bbbbbbbbbb", "ended"
OTHERS = {"whole-cccccccccc", "bare-dddddddddd"}


class ListedCloud:
    """What the run's cloud shows: one instance, until somebody ends it. It has no room for another."""

    name = "local"
    remarks = ()
    rations_calls = False

    def __init__(self, run_uid: str, launch: int) -> None:
        self.alive = True
        self._instance = Instance(
            instance_id=f"i-{launch}",
            token=f"{run_uid}-{launch}",
            run_uid=run_uid,
            launch=launch,
            offering=MARKET[0],
            state=InstanceState.RUNNING,
            launched_at=START,
            billed_from=START,
        )

    def offerings(self, must_see: Collection[str] | None = None) -> list[Offering]:
        return list(MARKET)

    def launch(self, request: LaunchRequest) -> Instance:
        raise InsufficientCapacity("there is no room")

    def describe(self, instance_id: str) -> Instance | None:
        return self._seen if instance_id == self._instance.instance_id else None

    def instances(self, run_uid: str | None = None, must_see: Collection[str] | None = None) -> list[Instance]:
        return [self._seen] if run_uid in (None, self._instance.run_uid) else []

    def spot_history(self, offering: Offering, since: datetime) -> Sequence[PriceSegment]:
        return ()

    def terminate(self, instance_id: str) -> None:
        if instance_id == self._instance.instance_id:
            self.alive = False

    @property
    def _seen(self) -> Instance:
        if self.alive:
            return self._instance
        return replace(
            self._instance, state=InstanceState.TERMINATED, ended_at=datetime.now(UTC), ended_by=EndedBy.USER
        )


class MutatedStore:
    """The store, its objects as they were, and what a command says after one of them has changed."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._runs = folder / "runs"
        self._patch = patch
        patch.chdir(folder)
        patch.setenv("SPOTRUN_STORE", str(self._runs))
        patch.setenv("SPOTRUN_LOCAL_CLOUD", str(folder / "cloud"))
        patch.setenv("SPOTRUN_KNOWN", str(folder / "known"))
        patch.setenv("NO_COLOR", "1")
        patch.setattr(OpenRun, "driver", property(lambda run: self.cloud if run.spec else None))
        patch.setattr(Local, "account", lambda cloud, regions: Account(self.cloud))
        patch.setattr(background, "leave_behind", lambda run: print("left behind"))
        patch.setattr(termination, "LOOK_AGAIN_S", 0.0)
        patch.setattr(termination, "DOWN_WITHIN_S", 1.0)
        self._launches: dict[str, int] = {}
        self._write_runs()
        self.objects = {path: path.read_bytes() for path in self._runs.rglob("*") if path.is_file()}
        self.cloud = ListedCloud(RUN_UID, self._launches[NAME])

    # -- the runs, as they were written

    def _write_runs(self) -> None:
        self._runs.mkdir()
        store_run(self._runs, trained(2, name="whole", uid="cccccccccc", spec=self._spec("whole")))
        other = bare()
        first = replace(other.entries[0].event, name="bare", uid="dddddddddd")  # type: ignore[type-var]
        other.entries = [replace(each, run="dddddddddd") for each in other.entries]
        other.entries[0] = replace(other.entries[0], event=first)
        other.state = replace(other.state, created=first)
        other.uid = "dddddddddd"
        store_run(self._runs, other)
        living = self._trained(NAME, RUN_UID)
        write_csv(self.folder / "cur.csv", cost_and_usage_rows(billed(living)))
        self._add_status_objects(living)
        ended = self._trained(ENDED, ENDED_UID)
        launch = self._launches[ENDED]
        ended.after(60).completed(ended.state.commits[-1].number)
        ended.gone(launch)
        self._store(ended)
        self._add_final_status(ended)

    def _spec(self, name: str) -> dict[str, object]:
        return spec(name=name, workdir=str(self.folder)).to_dict()

    def _store_of(self, history: History) -> LocalStore:
        return LocalStore(self._runs / f"{history.state.created.name}-{history.uid}")

    def _trained(self, name: str, uid: str) -> History:
        """Two attempts, three checkpoints with files, two epochs, a notice; it goes on."""
        beside = LocalStore(self._runs)
        history = History(
            name=name,
            uid=uid,
            spec=self._spec(name),
            budget_usd=Decimal(1000),
            deadline_at=START + timedelta(days=2),
            public_key=keys.make(beside, uid),
        )
        store = self._store_of(history)
        first = history.running(setup=ev.SetUp(seconds=12.5, how="run", packed_bytes=5))
        self._commit(history, store, 10)
        history.epoch(0)
        history.notice()
        history.not_carried("model.cache")
        history.after(30).drained(history.state.commits[-1].number)
        history.after(10).gone(first, EndedBy.ITSELF)
        self._launches[name] = history.after(5).running(price="0.40")
        for step in (20, 30):
            self._commit(history, store, step)
        history.after(60).epoch(1)
        self._store(history)
        store.put("environments/abc.json", b'{"launch":1,"parts":[{"size_bytes":5,"sha256":"' + b"0" * 64 + b'"}]}')
        store.put("environments/abc/1/000000", b"setup")
        for number in (first, self._launches[name]):
            store.put(f"logs/{number}/000000.log", b"epoch 1\nloss 0.5\n")
        return history

    def _commit(self, history: History, store: LocalStore, step: int) -> None:
        history.after(40).step = step
        prefix = f"checkpoints/{history.attempt}-0-{step}"
        image = layout.encode_header(layout.place([("uint8", (512,))]), {"tensor": 0}, {"step": step}) + bytes(512)
        uploaded = upload(store, prefix, memoryview(image), {"step": step})
        files = self._files(history, store, step)
        history.write(committed(history.attempt, prefix, step, history.now, uploaded, files=files))

    def _files(self, history: History, store: LocalStore, step: int) -> ev.CommittedFiles:
        content = b"figures %d" % step
        piece = Piece(history.attempt, blake3(content).hexdigest(), len(content))
        store.put(piece.key, content)
        file = OutputFile(
            path="out.txt", size_bytes=len(content), modified_ns=10**18, attempt=history.attempt, pieces=(piece,)
        )
        data = msgspec.json.encode(Listing(files=(file,)))
        digest = blake3(data).hexdigest()
        key = list_key(history.attempt, digest)
        store.put(key, data)
        size = len(content)
        return ev.CommittedFiles(
            key=key, blake3=digest, files=1, size_bytes=size, objects=2, sent_bytes=size, stored_bytes=size
        )

    def _store(self, history: History) -> None:
        store, sign = self._store_of(history), self._signer(history.uid, history.state.created.public_key)
        for entry in history.entries:
            store.put_if_absent(key_of(entry.number), encode_entry(entry, sign if is_of_owner(entry.event) else None))

    def _signer(self, uid: str, public_key: str) -> OwnersKey:
        return OwnersKey(lambda: LocalStore(self._runs), uid, public_key)

    def _add_status_objects(self, history: History) -> None:
        store, now = self._store_of(history), history.now
        for launch in history.state.launches:
            attempt = history.state.launches[launch].attempt
            progress = {"epoch": 1, "epochs": 9, "batch": 3, "batches": 10, "step": 33, "metrics": {"loss": 0.5}}
            took = {"step_s": 0.1, "stall_s": 0.01, "commit_s": 2.0}
            facts: dict[str, Any] = {"attempt": attempt, "console_tail": "loss 0.5", **progress, **took}
            told = AgentStatus(launch=launch, phase="train", at=now, sequence=7, **facts)
            write_status(store, agent_key(launch), told)
        status = RunnerStatus(at=now, pid=os.getpid(), host="elsewhere", sequence=3)
        write_status(store, RUNNER_KEY, status)

    def _add_final_status(self, history: History) -> None:
        store, sign = self._store_of(history), self._signer(history.uid, history.state.created.public_key)
        ledger = Ledger(store, history.uid, "test", ManualClock(history.now), first=first_object(store), sign=sign)
        ledger.refresh()
        write_final_status(store, ledger)

    # -- what may become of them

    def _paths(self, kind: str) -> list[Path]:
        living, ended = self._runs / f"{NAME}-{RUN_UID}", self._runs / f"{ENDED}-{ENDED_UID}"
        below: dict[str, Callable[[Path], bool]] = {
            "entry": lambda path: LEDGER in f"{path}" and path.stem != "00000000",
            "entry 0": lambda path: path.name == "00000000.json",
            "agent": lambda path: path.name.startswith("agent-"),
            "runner": lambda path: path.name == "runner.json",
            "manifest": lambda path: path.name == "manifest.json",
            "list": lambda path: path.name.startswith("list-"),
            "log": lambda path: path.suffix == ".log",
            "setup": lambda path: path.parent.name == "environments",
        }
        if kind == "summary":
            return [ended / "hints" / "summary.json"]
        if kind == "key":
            return [self._runs / "keys" / RUN_UID]
        if kind == "market":
            return [self._runs / "market" / "local" / "local"]
        if kind == "known":
            return [self.folder / "known" / RUN_UID]
        return sorted(path for path in self.objects if living in path.parents and below[kind](path))

    def change(self, kind: str, random: Random) -> str:
        """Change one object of a kind; says which, and how."""
        path = random.choice(self._paths(kind))
        if kind == "market":
            path /= "".join(random.choice("20261121T_lost-Za.9é\n ") for _ in range(random.randrange(1, 80)))
        whole = self.objects.get(path, b"")
        how = random.choice(("bytes", "figures", "figures", "figures"))
        data = odd_contents.of_bytes(whole, random) if how == "bytes" else self._with_odd_figures(kind, whole, random)
        path.parent.mkdir(parents=True, exist_ok=True)
        if data is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(data)
        return f"{kind} {path.relative_to(self.folder)!s:.120} ({how}): {data!r:.2000}"

    def _with_odd_figures(self, kind: str, whole: bytes, random: Random) -> bytes:
        """As whoever may write there does it: with its checksum, and mostly with the signature that it had."""
        if kind != "summary" and not kind.startswith("entry"):
            return odd_contents.of_figures(whole, random)
        name, uid = (ENDED, ENDED_UID) if kind == "summary" else (NAME, RUN_UID)
        signature, body = parted(whole)
        body = odd_contents.of_figures(body, random)
        if signature and random.random() < 0.7:
            first = self._runs / f"{name}-{uid}" / key_of(0)
            public = entry_bytes.decode_entry(self.objects[first])
            assert public is not None
            assert isinstance(public.event, ev.RunCreated)
            body = signed(body, self._signer(uid, public.event.public_key)(body))
        return seal(body)

    def restore(self) -> None:
        """All is as it was, and this machine has read none of the entries that are gone."""
        shutil.rmtree(self.folder / "known" / NEWEST, ignore_errors=True)
        for path in self._runs.rglob("*"):
            if path.is_file() and path not in self.objects:
                path.unlink()
        for path, data in self.objects.items():
            if not path.is_file() or path.read_bytes() != data:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        self.cloud.alive = True

    # -- and what commands say then

    def trial(self, kind: str, seed: int, verbs: Collection[str]) -> Iterator[str]:
        """What went wrong after a change of this kind; nothing is what should."""
        random = Random(f"{kind} {seed}")
        told = self.change(kind, random)
        try:
            for verb in verbs:
                for flaw in self.flaws(verb, kind):
                    yield f"{verb}: {flaw}\n    after {told}"
        finally:
            self.restore()

    def flaws(self, verb: str, kind: str) -> Iterator[str]:
        """What is wrong with how a command ends, while an object of this kind is changed."""
        name = ENDED if kind == "summary" else NAME
        code, out, err, failure = self.call(*verb.format(run=name).split())
        if failure:
            yield failure
            return
        letters = err.count("error: ")
        if code and letters != 1:
            yield f"{letters} errors with code {code}: {err[-500:]!r}"
        if not code and not (out or err):
            yield "nothing was said"
        if verb == "status" and not all(other in out for other in OTHERS):
            yield f"other runs are missing: {out!r} {err!r}"
        if verb == "status" and name not in out:
            yield f"its row is missing: {out!r} {err!r}"
        if verb.startswith("down") and name == NAME and self.cloud.alive:
            yield f"its instance goes on: {out!r} {err!r}"

    def call(self, *words: str) -> tuple[int, str, str, str]:
        """The exit code of a command, what it printed on its two outputs, and the exception that it raised if any."""
        try:
            return *call(self._patch, *words), ""
        except BaseException as error:  # noqa: BLE001 - that is what must not happen
            return 1, "", "", f"{type(error).__name__}: {error!s:.300}"
