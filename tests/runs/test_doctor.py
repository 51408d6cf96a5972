"""What the doctor refuses before a run trusts it: stores that lie, forbid, forget, expire, or have another time."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from spotrun.doctor.facts import fact_findings
from spotrun.doctor.finding import Finding, Verdict, findings_of
from spotrun.doctor.trial import RACERS, SKEW_MAX, SKEW_WARNED, StoreTrial
from spotrun.errors import StoreError, StoreUnavailable
from spotrun.store.conditional_put_probe import race
from spotrun.store.local import LocalStore
from spotrun.store.port import Store, StoredObject, StoreFacts, UnknownFact
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore
from tests.support.sandbox import Sandbox
from tests.support.world.faults import LossyStore


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)


def tried(store: Store, clock: ManualClock | None = None) -> dict[str, Finding]:
    found = list(findings_of("store", StoreTrial(store, clock or ManualClock()).findings))
    return {finding.name: finding for finding in found}


def verdicts(found: dict[str, Finding]) -> set[Verdict]:
    return {finding.verdict for finding in found.values()}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


# -- the trial -------------------------------------------------------------------------------------------------------


def test_a_good_store_passes_and_nothing_is_left_in_it(tmp_path: Path, clock: ManualClock) -> None:
    from spotrun.clock import system_clock

    memory = MemoryStore(clock)
    memory.put("run/ledger/0", b"another's")
    found = tried(memory, clock)
    assert set(found) == {"permissions", "creation", "latency", "clock", "tidiness"}
    assert verdicts(found) == {Verdict.OK}
    assert set(memory.objects) == {"run/ledger/0"}
    local = list(StoreTrial(LocalStore(tmp_path / "runs"), system_clock()).findings())
    assert {finding.verdict for finding in local} == {Verdict.OK}
    assert list(tmp_path.iterdir()) == [], "not even its folder"


class Overwriting(MemoryStore):
    """Takes no notice of conditions, as an S3 look-alike that ignores a header."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.put(key, data)
        return True


class TwoWinners(MemoryStore):
    """Looks first and writes then, as SeaweedFS before 4.17: one of many races has two winners."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.turn = itertools.count(1)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        created = super().put_if_absent(key, data)
        if not created and next(self.turn) == 20:
            self.put(key, data)
            return True
        return created


class SaysNoAndOverwrites(MemoryStore):
    def put_if_absent(self, key: str, data: bytes) -> bool:
        there = key in self.objects
        self.put(key, data)
        return not there


@pytest.mark.parametrize("kind", [Overwriting, TwoWinners, SaysNoAndOverwrites])
def test_a_store_that_creates_what_is_there_already_is_refused(kind: Callable[..., MemoryStore], clock: ManualClock):
    store = kind(clock)
    found = tried(store, clock)
    assert found["store"].verdict is Verdict.FAILED
    assert "cannot hold a ledger" in found["store"].detail
    assert found["store"].exit_code == StoreError.exit_code
    assert store.objects == {}


@pytest.mark.parametrize("fate", ["answer lost", "lost"])
def test_a_race_on_a_bad_line_is_judged_by_what_is_there(fate: str, clock: ManualClock) -> None:
    fates = itertools.cycle(["ok", fate, "ok", "ok", "ok"])
    found = tried(LossyStore(MemoryStore(clock), lambda: next(fates)), clock)
    assert verdicts(found) == {Verdict.OK}


class Away(MemoryStore):
    def put_if_absent(self, key: str, data: bytes) -> bool:
        raise StoreUnavailable("503 SlowDown", hint="wait")


def test_store_that_answers_no_writer_is_refused_with_its_own_reason(clock: ManualClock) -> None:
    with pytest.raises(StoreUnavailable, match=r"none of 16 simultaneous writers got an .*: 503 SlowDown") as refused:
        race(Away(clock), "trial")
    assert refused.value.hint == "wait"


class Forbidding(MemoryStore):
    def __init__(self, clock: ManualClock, verb: str) -> None:
        super().__init__(clock)
        setattr(self, verb, self._no)

    def _no(self, *_: object) -> bytes:
        raise StoreError("AccessDenied", hint="ask for the right")


@pytest.mark.parametrize(
    ("verb", "doing"),
    [
        ("put_if_absent", "cannot create"),
        ("get", "cannot read"),
        ("list", "cannot list"),
        ("put", "cannot overwrite"),
        ("delete", "cannot delete"),
    ],
)
def test_each_right_that_is_missing_is_named_once(verb: str, doing: str, clock: ManualClock) -> None:
    found = tried(Forbidding(clock, verb), clock)
    assert list(found) == ["store"]
    assert found["store"].detail.startswith(doing)
    assert found["store"].hint == "ask for the right"


class Stale(MemoryStore):
    """A cache before it: what was read once is read again."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.cached: dict[str, bytes] = {}

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        return self.cached.setdefault(key, super().get(key, start, size))


class Forgetful(MemoryStore):
    """A listing that lags behind."""

    def list(self, prefix: str, after: str = "") -> list[StoredObject]:
        return []


@pytest.mark.parametrize("kind", [Stale, Forgetful])
def test_a_store_that_shows_the_past_is_refused(kind: Callable[..., MemoryStore], clock: ManualClock) -> None:
    assert "cache" in tried(kind(clock), clock)["store"].hint


def test_passing_faults_are_no_finding(clock: ManualClock) -> None:
    class Shaky(MemoryStore):
        calls = itertools.count()

        def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
            if next(self.calls) % 3 == 0:
                raise StoreUnavailable("503 SlowDown")
            return super().get(key, start, size)

    assert verdicts(tried(Shaky(clock), clock)) == {Verdict.OK}


@pytest.mark.parametrize(
    ("ahead", "verdict"),
    [
        (timedelta(0), Verdict.OK),
        (timedelta(seconds=20), Verdict.OK),
        (SKEW_WARNED + timedelta(seconds=1), Verdict.WARNED),
        (-SKEW_WARNED - timedelta(seconds=1), Verdict.WARNED),
        (SKEW_MAX + timedelta(seconds=1), Verdict.FAILED),
        (-SKEW_MAX - timedelta(seconds=1), Verdict.FAILED),
    ],
    ids=str,
)
def test_wrong_clock_is_reported(ahead: timedelta, verdict: Verdict) -> None:
    theirs = ManualClock()
    found = tried(MemoryStore(theirs), ManualClock(theirs.now() + ahead))
    told = found["store" if verdict is Verdict.FAILED else "clock"]
    assert told.verdict is verdict
    if ahead > SKEW_WARNED:
        assert "ahead of" in told.detail
    if ahead < -SKEW_WARNED:
        assert "behind" in told.detail


def test_a_slow_store_is_warned_of(clock: ManualClock) -> None:
    class Slow(MemoryStore):
        def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
            clock.sleep(1.5)
            return super().get(key, start, size)

    found = tried(Slow(clock), clock)
    assert found["latency"].verdict is Verdict.WARNED
    assert "1,500 ms to read" in found["latency"].detail


# -- what a store tells of itself -------------------------------------------------------------------------------------

FINE = StoreFacts(region="eu-west-1", expiries=(), versioned=False)


class Telling(MemoryStore):
    def __init__(self, facts: StoreFacts) -> None:
        super().__init__()
        self.facts = facts

    def inspect(self) -> StoreFacts:
        return self.facts


def told(facts: StoreFacts, region: str | None = "eu-west-1") -> dict[str, Finding]:
    return {finding.name: finding for finding in findings_of("store", lambda: fact_findings(Telling(facts), region))}


@pytest.mark.parametrize(
    ("changes", "name", "verdict", "words"),
    [
        ({}, "region", Verdict.OK, "eu-west-1"),
        ({}, "expiry", Verdict.OK, "no rule"),
        ({}, "versioning", Verdict.OK, "off"),
        ({"region": "us-east-1"}, "region", Verdict.WARNED, "us-east-1"),
        ({"region": "eu"}, "region", Verdict.OK, "eu"),
        ({"region": UnknownFact("forbidden")}, "region", Verdict.UNKNOWN, "forbidden"),
        ({"versioned": True}, "versioning", Verdict.WARNED, "kept as versions"),
        ({"versioned": True, "older_versions_days": 7}, "versioning", Verdict.OK, "7 days"),
        ({"versioned": True, "older_versions_days": 1}, "versioning", Verdict.OK, "paid for, 1 day"),
        ({"versioned": UnknownFact("forbidden")}, "versioning", Verdict.UNKNOWN, "forbidden"),
        ({"expiries": UnknownFact("forbidden")}, "expiry", Verdict.UNKNOWN, "forbidden"),
        ({"expiries": ("rule tidy deletes after 30 days",)}, "store", Verdict.FAILED, "30 days"),
        ({"key_readers": ()}, "keys", Verdict.OK, "only runners"),
        ({"key_readers": ("user:eve (roles/x)",)}, "keys", Verdict.WARNED, "user:eve"),
        ({"key_readers": UnknownFact("forbidden")}, "keys", Verdict.UNKNOWN, "forbidden"),
        ({"free_bytes": 500 << 30}, "space", Verdict.OK, "GB free"),
        ({"free_bytes": 5 << 30}, "space", Verdict.WARNED, "5.4 GB free"),
        ({"free_bytes": 5 << 20}, "store", Verdict.FAILED, "full"),
    ],
    ids=str,
)
def test_doctor_judges_the_facts_of_a_store(
    changes: dict[str, object], name: str, verdict: Verdict, words: str
) -> None:
    finding = told(replace(FINE, **changes))[name]
    assert finding.verdict is verdict
    assert re.search(rf"{words}\b", finding.detail)
    assert finding.hint or verdict in (Verdict.OK, Verdict.UNKNOWN)


def test_a_store_that_tells_nothing_is_unknown_and_a_folder_knows_no_region(tmp_path: Path) -> None:
    assert [finding.verdict for finding in fact_findings(MemoryStore(), None)] == [Verdict.UNKNOWN]
    names = [finding.name for finding in fact_findings(LocalStore(tmp_path), "eu-west-1")]
    assert names == ["versioning", "space", "expiry"]


# -- at the door -----------------------------------------------------------------------------------------------------


def test_the_doctor_speaks_json_and_leaves_no_trace(sandbox: Sandbox) -> None:
    report = sandbox.call_json("doctor")
    assert report["ok"]
    assert {check["verdict"] for check in report["checks"]} <= {"ok", "warned"}
    assert f"{RACERS} writers" in next(check["detail"] for check in report["checks"] if check["name"] == "creation")
    assert not sandbox.store.exists()


def test_the_doctor_takes_the_store_of_a_job(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPOTRUN_STORE")
    job = sandbox.job("examined")
    said = sandbox.ask("doctor", job)
    assert str(sandbox.store) in said
    assert said.splitlines()[-1].startswith("ready")


def test_a_folder_that_may_not_be_written_is_refused_with_its_exit_code(sandbox: Sandbox) -> None:
    sandbox.store.write_text("a file is in the way")
    output = sandbox.call("doctor", "--json", code=StoreError.exit_code)
    report = json.loads(output[output.index("{") : output.rindex("}") + 1])
    assert not report["ok"]
    assert "who has access to this folder" in next(
        check["hint"] for check in report["checks"] if check["verdict"] == "failed"
    )
