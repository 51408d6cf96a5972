"""
The real stores on a line where everything goes wrong: faults that pass are waited out, others are told at once.

Whatever the line does, no entry is lost, none is written twice, and nothing is called saved that is not.
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from spotrun.checkpoint.upload import upload
from spotrun.errors import LedgerDamaged, LoginExpired, ObjectMissing, StoreError, StoreUnavailable, WritesRefused
from spotrun.folder.ledger import Ledger, first_object, key_of
from spotrun.run import events as ev
from spotrun.run.entry_bytes import encode_entry
from spotrun.run.fold import fold
from spotrun.run.state import RunState
from spotrun.store.opening import open_store
from spotrun.store.port import Store
from spotrun.store.retrying import persist
from tests.batteries.torture import torture
from tests.support import fault_proxy as faults
from tests.support.aws_launches import Login
from tests.support.checkpoint_entries import restored, saved
from tests.support.fault_proxy import Fault, FaultProxy, Once, Request
from tests.support.histories import History
from tests.support.manual_clock import ManualClock
from tests.support.object_stores import RunningServer, SeaweedFS, running

IMAGE = random.Random(7).randbytes(96 << 10)
FATAL_REQUESTS_MAX = 3
"""To be told no three times is enough to believe it."""

Start = Callable[[str], tuple[RunningServer, FaultProxy]]


@pytest.fixture(scope="module")
def start(servers: Callable[[str], RunningServer]) -> Iterator[Start]:
    """A server of each kind and a line to it, once asked for. To make a client takes longer than most tests here."""
    with contextlib.ExitStack() as stack:

        def begin(scheme: str) -> tuple[RunningServer, FaultProxy]:
            server = servers(scheme)
            return server, stack.enter_context(FaultProxy(server.endpoint))

        yield functools.cache(begin)


@pytest.fixture(params=["s3", "gs"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Bench(NamedTuple):
    """A run's store through a line, and past it. `history` is there already."""

    scheme: str
    line: FaultProxy
    far: Store
    near: Store
    history: History

    def ledger(self, retry_for_s: float = 60) -> Ledger:
        return Ledger(self.far, self.history.uid, "test", ManualClock(self.history.now), retry_for_s)

    def there(self) -> Ledger:
        """What is really there, read past the line."""
        ledger = Ledger(self.near, self.history.uid, "reader", ManualClock(self.history.now))
        ledger.refresh()
        return ledger


@pytest.fixture
def bench(start: Start, scheme: str, monkeypatch: pytest.MonkeyPatch) -> Bench:
    server, line = start(scheme)
    line.fate = lambda _: faults.none
    line.seen.clear()
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)
    uri = server.new_prefix()
    server.reach(monkeypatch)
    near = open_store(uri)
    history = History()
    history.running()
    history.put_into(near)
    server.reach(monkeypatch, line.url)
    return Bench(scheme, line, open_store(uri), near, history)


def notice(state: RunState) -> ev.AnyEvent:
    assert state.current_attempt is not None
    return ev.NoticeSeen(attempt=state.current_attempt, kind="rebalance", deadline_at=None)


# -- faults that pass ------------------------------------------------------------------------------------------------

LINE: dict[str, Fault] = {
    "late": faults.late(0.05),
    "slow drip": faults.drip(0.05),
    "reset before it arrives": faults.reset_before,
    "done, and the answer lost": faults.answer_lost,
    "done twice, so that the second denies the first": faults.done_twice,
    "the answer cut short": faults.cut_short,
    "the answer corrupted": faults.corrupted_answer,
}
PASSING: dict[str, dict[str, Fault]] = {
    "s3": LINE
    | {
        "the request corrupted": faults.corrupted_request,
        "500": faults.refused(faults.S3_INTERNAL),
        "503 SlowDown": faults.refused(faults.S3_SLOW_DOWN),
        "503": faults.refused(faults.S3_UNAVAILABLE),
        "409": faults.refused(faults.S3_CONFLICT),
        "400 RequestTimeout": faults.refused(faults.S3_TIMEOUT),
        "400 BadDigest": faults.refused(faults.S3_BAD_DIGEST),
        "500 although it was done": faults.refused_although_done(faults.S3_INTERNAL),
        "503 although it was done": faults.refused_although_done(faults.S3_SLOW_DOWN),
    },
    "gs": LINE
    | {
        "500": faults.refused(faults.GCS_INTERNAL),
        "503": faults.refused(faults.GCS_UNAVAILABLE),
        "429": faults.refused(faults.GCS_RATE),
        "503 although it was done": faults.refused_although_done(faults.GCS_UNAVAILABLE),
    },
}
"""The fake GCS believes whatever arrives; the real one compares the checksum that comes with it, and speaks TLS."""


def writes(request: Request) -> bool:
    return request.method in ("PUT", "POST")


def reads(request: Request) -> bool:
    return request.method == "GET"


def each_of(table: dict[str, dict[str, Fault]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("scheme", "name"), [(scheme, name) for scheme in table for name in table[scheme]])


def each_passing(turn: int) -> pytest.MarkDecorator:
    """Each fault with writes or reads: `make test` has the other pair in the other test, and `make nightly` has all."""
    names = [(scheme, name) for scheme in PASSING for name in PASSING[scheme]]
    pairs = [
        (at + number, *pair, which) for at, pair in enumerate(names) for number, which in enumerate((writes, reads))
    ]
    return pytest.mark.parametrize(
        ("scheme", "name", "which"),
        [
            pytest.param(scheme, name, which, marks=[pytest.mark.nightly] * (at % 2 != turn))
            for at, scheme, name, which in pairs
        ],
    )


@each_passing(0)
def test_an_entry_is_written_once_through_any_fault_that_passes(
    name: str, which: Callable[[Request], bool], bench: Bench
) -> None:
    bench.line.fate = Once(PASSING[bench.scheme][name], which, times=3)
    ledger = bench.ledger()
    written = [ledger.append(notice) for _ in range(3)]
    assert bench.line.fate.left == 0, "the fault was met"
    there = bench.there()
    assert there.entries[len(bench.history.entries) :] == written
    assert there.state == ledger.state == fold(there.entries)
    assert len({entry.nonce for entry in there.entries}) == len(there.entries)


@each_passing(1)
def test_a_checkpoint_is_saved_and_restored_through_any_fault_that_passes(
    name: str, which: Callable[[Request], bool], bench: Bench
) -> None:
    bench.line.fate = Once(PASSING[bench.scheme][name], which, times=2)
    commit = saved(bench.far, 1, IMAGE)
    assert restored(bench.near, commit) == IMAGE
    assert restored(bench.far, commit) == IMAGE
    assert bench.line.fate.left == 0, "the fault was met"


@pytest.mark.parametrize("scheme", ["s3"])
def test_checkpoint_corrupted_in_transit_is_never_committed(bench: Bench) -> None:
    bench.line.fate = lambda request: faults.corrupted_request if writes(request) else faults.none
    with pytest.raises(StoreError):
        upload(bench.far, "checkpoints/1-0-1", memoryview(IMAGE), {}, retry_for_s=0.2)
    with pytest.raises((StoreUnavailable, LedgerDamaged)):
        bench.ledger(retry_for_s=0.2).append(notice)


def test_a_fault_that_does_not_pass_is_not_believed_for_ever_and_nothing_is_doubled(bench: Bench) -> None:
    ledger = bench.ledger(retry_for_s=0.2)
    ledger.refresh()
    bench.line.fate = lambda request: faults.answer_lost if writes(request) else faults.reset_before
    with pytest.raises(StoreUnavailable):
        ledger.append(notice)
    bench.line.fate = lambda _: faults.none
    ledger.append(lambda state: None if state.attempts[state.current_attempt or 0].rebalance else notice(state))
    assert [ev.kind(entry.event) for entry in bench.there().entries].count("NoticeSeen") == 1


def test_a_run_is_found_through_a_fault_that_passes(bench: Bench) -> None:
    bench.line.fate = Once(faults.reset_before, reads, times=2)
    assert first_object(bench.far)[0] == bench.history.entries[0]


# -- faults that do not ---------------------------------------------------------------------------------------------

FATAL: dict[str, dict[str, Fault]] = {
    "s3": {
        "AccessDenied": faults.refused(faults.S3_DENIED),
        "InvalidAccessKeyId": faults.refused(faults.S3_UNKNOWN_KEY),
        "SignatureDoesNotMatch": faults.refused(faults.S3_BAD_SIGNATURE),
        "RequestTimeTooSkewed": faults.refused(faults.S3_SKEWED),
        "NoSuchBucket": faults.refused(faults.S3_NO_BUCKET),
        "PermanentRedirect": faults.refused(faults.S3_ELSEWHERE),
        "AuthorizationHeaderMalformed": faults.refused(faults.S3_WRONG_REGION),
        "InsufficientStorage": faults.refused(faults.S3_FULL),
        "QuotaExceeded": faults.refused(faults.S3_QUOTA),
        "NotImplemented": faults.refused(faults.S3_NOT_IMPLEMENTED),
    },
    "gs": {
        "AccessDenied": faults.refused(faults.GCS_DENIED),
        "ExpiredToken": faults.refused(faults.GCS_UNAUTHORISED),
        "NoSuchBucket": faults.refused(faults.GCS_NO_BUCKET),
        "InsufficientStorage": faults.refused(faults.gcs_error(507, "insufficientStorage", "Full")),
    },
}


FULL = ("InsufficientStorage", "QuotaExceeded")
"""Faults that somebody has to end, and that a run then goes on after: it waits, and says so at once."""


@each_of(FATAL)
def test_permanent_store_fault_is_reported_at_once_with_a_hint(name: str, bench: Bench) -> None:
    fault = FATAL[bench.scheme][name]
    ledger = bench.ledger()
    ledger.refresh()
    before = [found.key for found in bench.near.list("")]
    everything: dict[str, Callable[[], object]] = {
        "create": lambda: bench.far.put_if_absent("ledger/x", b""),
        "put": lambda: bench.far.put("x", b"x"),
        "get": lambda: bench.far.get("x"),
        "list": lambda: bench.far.list(""),
        "folders": bench.far.folders,
        "delete": lambda: bench.far.delete(key_of(0)),
        "append": lambda: ledger.append(notice),
        "cold start": lambda: bench.ledger().refresh(),
        "upload": lambda: upload(bench.far, "checkpoints/1-0-1", memoryview(IMAGE), {}),
    }
    for verb, act in everything.items():
        bench.line.fate = lambda _: fault
        asked = bench.line.count()
        with pytest.raises(StoreError) as refused:
            act()
        assert isinstance(refused.value, StoreUnavailable) == (name in FULL), (verb, refused.value)
        assert not isinstance(refused.value, ObjectMissing | LedgerDamaged), (verb, refused.value)
        assert refused.value.hint, verb
        assert bench.line.count() - asked <= FATAL_REQUESTS_MAX, f"{verb} asked again and again"
    assert [found.key for found in bench.near.list("")] == before
    bench.line.fate = lambda _: faults.none
    assert ledger.append(notice) in bench.there().entries


def test_expired_login_is_reported_at_once_and_a_new_one_is_used(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, line = start("s3")
    server.reach(monkeypatch, line.url)
    line.fate = lambda request: (
        faults.refused(faults.S3_EXPIRED) if "Credential=OLD/" in request.headers["Authorization"] else faults.none
    )
    good = [server.environment[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")]
    log_in = Login(tmp_path, monkeypatch)
    log_in("OLD")
    history = History()
    far = open_store(server.new_prefix())
    ledger = Ledger(far, history.uid, "test", ManualClock())
    line.seen.clear()
    for act in (ledger.refresh, lambda: persist(lambda: far.list("")), lambda: far.put_if_absent("x", b"")):
        with pytest.raises(LoginExpired) as refused:
            act()
        assert "log in again" in str(refused.value.hint)
    assert line.count() == 3
    log_in(*good)
    with pytest.raises(LoginExpired):
        far.list("")  # what it says makes the store look for a newer login
    far.put(key_of(0), encode_entry(history.entries[0]))
    assert ledger.refresh() == history.state


@each_of(FATAL)
def test_refused_write_is_reported_at_once_while_reads_work(name: str, bench: Bench) -> None:
    """A key that may only read, or a store that is full: what is there does not make a refusal a success."""
    fault = FATAL[bench.scheme][name]
    bench.line.fate = lambda request: fault if writes(request) else faults.none
    with pytest.raises(StoreError) as refused:
        bench.ledger().append(notice)
    assert isinstance(refused.value, WritesRefused) == (name in FULL)
    assert bench.line.count(writes) <= FATAL_REQUESTS_MAX
    assert bench.there().state == bench.history.state


# -- without a proxy ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["s3"])
def test_a_key_that_may_only_read_saves_nothing_and_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning's own remote save returns without a word here (promises: traps)."""
    commit = saved(bench.near, 1, IMAGE)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", SeaweedFS.READER_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SeaweedFS.READER_SECRET)
    reader = bench._replace(far=open_store(bench.far.uri))
    assert restored(reader.far, commit) == IMAGE
    with pytest.raises(StoreError, match="AccessDenied") as of_entry:
        reader.ledger().append(notice)
    with pytest.raises(StoreError, match="AccessDenied") as of_part:
        upload(reader.far, "checkpoints/1-0-2", memoryview(IMAGE), {})
    assert all("PutObject" in (refused.value.hint or "") for refused in (of_entry, of_part))
    assert bench.there().state == bench.history.state


@pytest.mark.parametrize("scheme", ["s3"])
def test_credentials_that_come_expired_are_a_passing_fault(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance's role may be late with new ones; botocore says so by a bare RuntimeError."""
    old = {"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "Expiration": "2020-01-01T00:00:00Z"}
    (tmp_path / "old.json").write_text(json.dumps(old))
    (tmp_path / "config").write_text(f"[default]\ncredential_process = cat '{tmp_path / 'old.json'}'\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StoreUnavailable, match="still expired") as late:
        open_store(bench.far.uri).get("ledger/00000000.json")
    assert "log in again" in (late.value.hint or "")


class SmallSeaweedFS(SeaweedFS):
    """Room for a few megabytes."""

    def command(self, folder: Path) -> list[str]:
        words = [word for word in super().command(folder) if not word.startswith(("-volume.max", "-master.volumeSize"))]
        return [*words, "-volume.max=8", "-master.volumeSizeLimitMB=1"]


def test_checkpoints_from_before_a_full_store_are_whole_and_no_others_are_claimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running(SmallSeaweedFS()) as server:
        server.reach(monkeypatch)
        store = open_store(server.new_prefix())
        images: dict[str, bytes] = {}

        def fill() -> None:
            for number in range(100):
                image = random.Random(number).randbytes(1 << 20)
                upload(store, f"checkpoints/1-0-{number}", memoryview(image), {}, retry_for_s=0.5)
                images[f"checkpoints/1-0-{number}/part-0000"] = image

        with pytest.raises(StoreUnavailable, match="InternalError") as full:
            fill()
        assert "space left" in (full.value.hint or "")
        assert images
        assert all(store.get(key) == image for key, image in images.items())
        history = History()
        with pytest.raises(StoreUnavailable):
            Ledger(store, history.uid, "test", ManualClock(), 0.5).create(history.state.created)
        assert store.list("ledger/") == []


# -- all of it -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("appends", "commits"), [(100, 8), pytest.param(400, 40, marks=pytest.mark.nightly)])
def test_torture(start: Start, appends: int, commits: int) -> None:
    """2,000 and 200 by `make battery NAME=torture`."""
    toll = torture(start("s3")[0], appends=appends, commits=commits, seed=1)
    print(toll)
    assert (toll.lost, toll.doubled, toll.false_successes, toll.unknown) == ([], [], [], 0)
    assert toll.faults.total() > appends / 4
    assert (toll.appends, toll.commits) == (appends + commits, commits)
