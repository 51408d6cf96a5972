"""
How the agent hears that its instance will be taken: a metadata service as EC2's is, and as it fails. Tests are named
for the rows (N1, N2, ...) of a catalogue of what users of such tools have met.
"""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotrun.agent.attempt_journal import AttemptJournal
from spotrun.agent.decisions import SnapshotFacts, snapshot_due
from spotrun.agent.grace_period import GracePeriod, SigtermTimes, SnapshotTimes, Stage
from spotrun.agent.inbox import NoticeHeard, NoticesLost
from spotrun.agent.pace import Pace
from spotrun.clock import ScaledClock
from spotrun.clouds.aws.notices import (
    ACTION_PATH,
    Ec2Notices,
    Metadata,
    parse_action,
    parse_rebalance,
    remaining_s,
)
from spotrun.clouds.local.metadata import MetadataService
from spotrun.clouds.notices import Blind
from spotrun.folder.ledger import Decide, Ledger
from spotrun.instance import Instance, InstanceState
from spotrun.market.hazard import Hazard
from spotrun.run import events as ev
from spotrun.run.state import AttemptEnd, RunState
from tests.support.checkpoint_entries import committed
from tests.support.eventually import eventually
from tests.support.hearing import Hearing
from tests.support.histories import History, offering
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore

NOTICE = b'{"action": "terminate", "time": "2031-01-01T00:00:00Z"}'
NOT_NOTICES = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b"\xff\xfe",
    b'"terminate"',
    b'{"action": "terminate"}',
    b'{"action": "terminate", "time": "soon"}',
    b'{"action": "terminate", "time": 5}',
    b'{"action": "dance", "time": "2026-01-01T00:00:00Z"}',
    b'{"action": ["terminate"], "time": "2026-01-01T00:00:00Z"}',
    b"<html>captive portal</html>",
    b"[" * 100_000,
]


# -- services --------------------------------------------------------------------------------------------------------


@pytest.fixture
def service() -> Iterator[MetadataService]:
    """As EC2's is."""
    clock = ScaledClock(datetime.now(UTC), 60)
    instance = Instance(
        instance_id="i",
        token="t",
        run_uid="u",
        launch=1,
        offering=offering(),
        state=InstanceState.RUNNING,
        launched_at=clock.now(),
    )
    service = MetadataService(instance, clock)
    service.start()
    yield service
    service._server.shutdown()
    service._server.server_close()


class Odd(socketserver.ThreadingTCPServer):
    """
    A service that answers each request with the bytes that `reply` has for its first line, and lets whoever asks wait
    where that is None. `asked` are the first lines.
    """

    daemon_threads = allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}/"
        self.reply: Callable[[str], bytes | None] = lambda _: http(404)
        self.asked: list[str] = []
        self.over = threading.Event()


class _Answer(socketserver.StreamRequestHandler):
    server: Odd

    def handle(self) -> None:
        first = self.rfile.readline().decode("latin-1").strip()
        while self.rfile.readline().strip():
            pass
        self.server.asked.append(first)
        reply = self.server.reply(first)
        if reply is None:
            self.server.over.wait(60)
            return
        self.wfile.write(reply)


def http(status: int, body: bytes = b"", date: datetime | None = None) -> bytes:
    dated = b"" if date is None else f"Date: {format_datetime(date, usegmt=True)}\r\n".encode()
    head = f"HTTP/1.1 {status} -\r\nContent-Length: {len(body)}\r\nConnection: close\r\n".encode()
    return head + dated + b"\r\n" + body


@pytest.fixture
def odd() -> Iterator[Odd]:
    with Odd() as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.over.set()
        server.shutdown()


@pytest.fixture
def hear() -> Iterator[Callable[..., Hearing]]:
    made: list[Hearing] = []

    def start(endpoint: str, clock: ScaledClock | None = None) -> Hearing:
        made.append(Hearing(lambda own: [Ec2Notices(endpoint, own)], clock))
        return made[-1]

    yield start
    for each in made:
        each.watcher.stop()


# -- what is a notice ------------------------------------------------------------------------------------------------


def test_n1_without_any_notice_the_interval_commits() -> None:
    facts = SnapshotFacts(since_commit_s=61, since_snapshot_s=61, interval_s=60)
    assert snapshot_due(facts, 30) == "interval"


def test_n2_an_instance_that_is_to_hibernate_has_no_two_minutes() -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert parse_action(b'{"action": "hibernate", "time": "2026-01-01T12:00:00Z"}') == now
    clock = ManualClock(now)
    leave = GracePeriod(clock)
    leave.notice(NoticeHeard("termination", now, clock.monotonic()))
    assert leave.stage(SnapshotTimes(Pace("auto", None))) is Stage.DRAINING, "at once"


@pytest.mark.parametrize(("window_s", "asked_s"), [(120, 80), (30, 10), (600, 560)])
def test_command_without_checkpoints_gets_sigterm_as_late_as_is_safe(window_s: float, asked_s: float) -> None:
    """Half a minute before SIGKILL, after which there is time to store its files."""
    clock, times = ManualClock(), SigtermTimes()
    drain = GracePeriod(clock)
    drain.notice(NoticeHeard("termination", clock.now(), clock.monotonic() + window_s))
    clock.advance(asked_s - 1)
    assert drain.stage(times) is Stage.NOTICED
    clock.advance(1)
    assert drain.stage(times) is Stage.DRAINING
    drain.begin(times)
    clock.advance(min(30, window_s / 2) - 1)
    assert drain.stage(times) is Stage.DRAINING
    clock.advance(1)
    assert drain.stage(times) is Stage.TOO_LATE


def test_n16_a_save_that_seems_too_slow_waits_for_the_upload_in_flight_and_is_tried_then() -> None:
    """Saves of 200 s were measured, and 120 s are left. The upload in flight goes first from the notice on."""
    clock, pace = ManualClock(), Pace("auto", None)
    pace.committed(200.0, clock.monotonic())
    idle, uploading = SnapshotTimes(pace), SnapshotTimes(pace, uploading=True)
    drain = GracePeriod(clock)
    drain.notice(NoticeHeard("termination", clock.now(), clock.monotonic() + 120))
    assert drain.stage(idle) is Stage.DRAINING
    assert drain.stage(uploading) is Stage.NOTICED
    assert drain.until_next_s(uploading) == 90
    clock.advance(90)
    assert drain.stage(uploading) is Stage.DRAINING
    drain.begin(idle)
    assert not drain.too_short
    drain.begin(uploading)
    assert drain.too_short == "29 s were left, but saving a final snapshot takes 200 s"


@pytest.mark.parametrize("body", NOT_NOTICES)
def test_n6_what_is_not_a_notice_is_none(body: bytes) -> None:
    assert parse_action(body) is None
    assert parse_rebalance(body) is None


@pytest.mark.exhaustive
@given(
    st.one_of(st.binary(), st.text().map(str.encode), st.dictionaries(st.text(), st.text()).map(repr).map(str.encode))
)
def test_n6_no_body_is_a_reason_to_stop(body: bytes) -> None:
    assert parse_action(body) is None
    assert parse_rebalance(body) is None


def test_n6_nothing_there_is_the_normal_answer(odd: Odd, hear: Callable[..., Hearing]) -> None:
    odd.reply = lambda first: http(200, b"token") if first.startswith("PUT") else http(404)
    heard = hear(odd.endpoint)
    eventually(lambda: len([first for first in odd.asked if "rebalance" in first]) > 5)
    assert (heard.inbox.empty(), heard.notes) == (True, [])
    assert len([first for first in odd.asked if first.startswith("PUT")]) == 1


# -- tokens ----------------------------------------------------------------------------------------------------------


def test_n3_n9_a_notice_is_reported_once_even_when_the_token_has_expired(
    service: MetadataService, hear: Callable[..., Hearing]
) -> None:
    heard = hear(service.endpoint, service.clock)
    eventually(lambda: service._tokens)
    service._tokens.clear()
    deadline = service.clock.now() + timedelta(seconds=120)
    service.recommend_rebalance(service.clock.now())
    service.give_notice(deadline)
    both = [heard.next(), heard.next()]
    kinds = {notice.kind: notice for notice in both if isinstance(notice, NoticeHeard)}
    assert set(kinds) == {"termination", "rebalance"}
    left_s = kinds["termination"].deadline_s - service.clock.monotonic()
    assert 60 < left_s <= 121
    service._tokens.clear()
    eventually(lambda: service._tokens)
    assert heard.inbox.empty()
    assert heard.notes == []


def test_n3_a_token_that_is_always_refused_is_renewed_once_a_look_and_told(
    odd: Odd, hear: Callable[..., Hearing]
) -> None:
    odd.reply = lambda first: http(200, b"token") if first.startswith("PUT") else http(401)
    heard = hear(odd.endpoint)
    assert isinstance(heard.next(), NoticesLost)
    looks = [first.split()[0] for first in odd.asked]
    assert looks[:4] == ["PUT", "GET", "PUT", "GET"]
    assert "HTTP 401" in heard.notes[0]


@pytest.mark.parametrize("token", [b"", b"\xff\xfe", b"a\r\nb: c", b"\x00"])
def test_n3_an_invalid_token_is_requested_again(odd: Odd, hear: Callable[..., Hearing], token: bytes) -> None:
    odd.reply = lambda first: http(200, token) if first.startswith("PUT") else http(404)
    heard = hear(odd.endpoint)
    assert isinstance(heard.next(), NoticesLost)
    odd.reply = lambda first: http(200, b"token") if first.startswith("PUT") else http(200, NOTICE)
    assert isinstance(heard.next(), NoticeHeard)


# -- no answer, and no sense -----------------------------------------------------------------------------------------


def test_n4_a_service_that_takes_no_hop_more_hangs_for_a_short_while(odd: Odd) -> None:
    odd.reply = lambda _: None
    with pytest.raises(Blind, match="PUT /latest/api/token: TimeoutError"):
        Metadata(odd.endpoint).get(ACTION_PATH)


def test_n5_an_unreachable_service_is_reported_once_and_recorded(hear: Callable[..., Hearing]) -> None:
    heard = hear("http://127.0.0.1:1/")
    lost = heard.next()
    assert isinstance(lost, NoticesLost)
    eventually(lambda: heard.looks > 10)
    assert heard.inbox.empty()
    assert len(heard.notes) == 1
    written = Written()
    journal = journal_of(written)
    before = written.state.next_number
    for _ in range(2):
        journal.notices_lost(lost)
    assert written.state.next_number == before + 1
    unseen = written.state.attempts[written.attempt].unseen
    assert unseen is not None
    assert "Connection refused" in unseen.detail


def test_n5_where_no_notice_comes_checkpoints_come_more_often() -> None:
    pace = Pace("auto", None, Hazard(saved=0.75))
    pace.snapshot(1, 1.0, 0.0)
    warned_s = pace.interval_s(0.0)
    pace.unwarned()
    unwarned_s = pace.interval_s(0.0)
    assert warned_s is not None
    assert unwarned_s is not None
    assert unwarned_s == pytest.approx(warned_s / 2)


def test_n7_nothing_that_comes_back_ends_the_watcher(odd: Odd, hear: Callable[..., Hearing]) -> None:
    nonsense = [
        b"",
        b"\x00" * 100,
        b"HTTP/1.1 abc -\r\n\r\n",
        b"HTTP/1.1 200 -\r\nContent-Length: many\r\n\r\nx",
        b"HTTP/1.1 200 -\r\nContent-Length: 999\r\n\r\nx",
        b"HTTP/1.1 200 -\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 -\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 -\r\n" + b"X" * 100_000,
        *(http(status) for status in (301, 400, 403, 500, 503)),
        *(http(200, body) for body in NOT_NOTICES),
    ]
    replies = iter(nonsense)

    def reply(first: str) -> bytes:
        return http(200, b"token") if first.startswith("PUT") else next(replies, http(200, NOTICE))

    odd.reply = reply
    heard = hear(odd.endpoint)
    letters = [heard.next(), heard.next()]
    assert [type(letter) for letter in letters] == [NoticesLost, NoticeHeard]
    assert len(heard.notes) == 1


def test_n8_a_recommendation_ends_nothing(service: MetadataService, hear: Callable[..., Hearing]) -> None:
    service.recommend_rebalance(service.clock.now())
    notice = hear(service.endpoint, service.clock).next()
    assert notice == NoticeHeard("rebalance")
    pace = Pace("auto", 0.0)
    pace.rebalance()
    assert GracePeriod(service.clock).stage(SnapshotTimes(pace)) is Stage.STAYING
    assert pace.snapshot_due(31.0) == "rebalance"


# -- time ------------------------------------------------------------------------------------------------------------


def test_n15_time_left_is_read_off_the_service_s_clock() -> None:
    deadline = datetime(2026, 1, 1, 12, 2, tzinfo=UTC)
    wrong = datetime(2026, 1, 1, 18, tzinfo=UTC)
    assert remaining_s(deadline, "Thu, 01 Jan 2026 12:00:30 GMT", wrong) == 90
    assert remaining_s(deadline, "nonsense", deadline - timedelta(seconds=7)) == 7
    assert remaining_s(deadline, None, deadline - timedelta(seconds=7)) == 7


def test_n15_the_deadline_is_on_the_monotonic_clock(odd: Odd, hear: Callable[..., Hearing]) -> None:
    """The service's day is not ours, and its answer took no time that counts in our favour."""
    theirs = datetime(2031, 5, 5, tzinfo=UTC)
    body = f'{{"action": "terminate", "time": "{theirs + timedelta(seconds=100):%Y-%m-%dT%H:%M:%SZ}"}}'.encode()
    odd.reply = lambda first: http(200, b"token") if first.startswith("PUT") else http(200, body, theirs)
    clock = ScaledClock(datetime.now(UTC), 20)
    before_s = clock.monotonic()
    notice = hear(odd.endpoint, clock).next()
    assert isinstance(notice, NoticeHeard)
    assert notice.deadline_s is not None
    assert before_s + 100 <= notice.deadline_s <= clock.monotonic() + 100


# -- the last word ---------------------------------------------------------------------------------------------------


def test_a_step_that_became_durable_while_the_end_was_decided_on_is_the_one_that_survives() -> None:
    written = Written()
    journal = journal_of(written)
    mine = written.state.attempts[written.attempt]
    written.meanwhile = [committed(written.attempt, "checkpoints/5", 286, mine.booted_at)]
    journal.ended(ev.Cause.INTERRUPTED, 511, "interruption notice: out of time", lossy=True)
    assert end_of(written).detail == "interruption notice: out of time; step 286 survives"


def test_where_nothing_is_durable_the_end_says_that_no_step_survives() -> None:
    written = Written()
    journal_of(written).ended(ev.Cause.INTERRUPTED, 511, "interruption notice: out of time", lossy=True)
    assert end_of(written).detail == "interruption notice: out of time; no step survives"


# -- small things ----------------------------------------------------------------------------------------------------


class Written:
    """
    The recorder of an attempt that trains, each entry written at once; `meanwhile`, by others just before the next one.
    """

    def __init__(self) -> None:
        history = History()
        history.running()
        self.attempt = history.attempt
        self.meanwhile: list[ev.AnyEvent] = []
        clock = ManualClock(history.now)
        store = MemoryStore(clock)
        history.put_into(store)
        self._ledger = Ledger(store, history.uid, "test", clock, retry_for_s=0)
        self._ledger.refresh()

    @property
    def state(self) -> RunState:
        return self._ledger.state

    def append(self, decide: Decide) -> Future[ev.Entry | None]:
        while self.meanwhile:
            event = self.meanwhile.pop()
            self._ledger.append(lambda _: event)  # noqa: B023
        future: Future[ev.Entry | None] = Future()
        future.set_result(self._ledger.append(decide))
        return future


def journal_of(written: Written) -> AttemptJournal:
    mine = written.state.attempts[written.attempt]
    journal = AttemptJournal(written, mine.launch, mine.instance_id, mine.booted_at)
    journal.attempt = written.attempt
    return journal


def end_of(written: Written) -> AttemptEnd:
    end = written.state.attempts[written.attempt].end
    assert end is not None
    return end
