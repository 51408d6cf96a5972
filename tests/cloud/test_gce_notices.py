"""
How the agent hears that Compute Engine will take its instance: a metadata server as Google's is, and as it fails.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator
from itertools import cycle, repeat
from pathlib import Path

import pytest
from google.auth import compute_engine
from google.auth.compute_engine import _metadata
from google.auth.transport.requests import Request

from spotrun.agent.inbox import NoticeHeard, NoticesLost
from spotrun.clock import ScaledClock, system_clock
from spotrun.clouds.gcp.notices import FLAVOR, FLAVOR_HEADER, MAINTENANCE, PREEMPTED, ROOT, MetadataValue, gce_notices
from spotrun.clouds.notices import Blind
from tests.support.eventually import eventually
from tests.support.gce_metadata import GOOGLE, HANGS, USUAL, GceMetadata, gce_metadata, told
from tests.support.hearing import Hearing

Hear = Callable[..., Hearing]


@pytest.fixture
def metadata() -> Iterator[GceMetadata]:
    with gce_metadata() as server:
        yield server


@pytest.fixture
def hear(metadata: GceMetadata, tmp_path: Path) -> Iterator[Hear]:
    made: list[Hearing] = []

    def start(asked_s: int = 120, clock: ScaledClock | None = None, folder: Path = tmp_path) -> Hearing:
        told = {"SPOTRUN_NOTICE_S": str(asked_s), "SPOTRUN_INSTANCE_DIR": str(folder)}
        environment = {"GCE_METADATA_HOST": metadata.host, **told}
        made.append(Hearing(lambda own: gce_notices(environment, own), clock))
        return made[-1]

    yield start
    for each in made:
        each.watcher.stop()


def polled(metadata: GceMetadata, times: int = 1, name: str = PREEMPTED) -> None:
    eventually(lambda: len(metadata.polls(name)) >= times)


# -- being taken -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked_s", "left_s"), [(120, 120), (0, 27)])
def test_g10_a_preemption_notice_arrives_at_once_and_its_time_counts_from_then(
    metadata: GceMetadata, hear: Hear, asked_s: int, left_s: int
) -> None:
    heard = hear(asked_s)
    polled(metadata)
    assert heard.inbox.empty()
    before_s, before = heard.clock.monotonic(), heard.clock.now()
    metadata.preempt()
    notice = heard.next()
    assert isinstance(notice, NoticeHeard)
    assert notice.kind == "termination"
    assert notice.deadline_s is not None
    assert notice.deadline_at is not None
    assert before_s + left_s <= notice.deadline_s <= heard.clock.monotonic() + left_s
    assert left_s <= (notice.deadline_at - before).total_seconds()
    first, poll = [asked for asked in metadata.asked if asked.name == PREEMPTED][:2]
    assert first.query == {}
    assert poll.query["timeout_sec"] == "60"


def test_without_a_word_of_the_bootstrap_the_usual_notice_counts(metadata: GceMetadata) -> None:
    metadata.preempt()
    clock = system_clock()
    before_s = clock.monotonic()
    preemption, _ = gce_notices({"GCE_METADATA_HOST": metadata.host}, clock)
    (notice,) = preemption.notices()
    assert notice.deadline_s is not None
    assert before_s + 27 <= notice.deadline_s < before_s + 30


def test_an_agent_that_is_started_again_has_no_more_time_than_the_one_before(metadata: GceMetadata, hear: Hear) -> None:
    metadata.preempt()
    first = hear()
    heard = first.next()
    again = hear(clock=first.clock).next()
    assert isinstance(heard, NoticeHeard)
    assert isinstance(again, NoticeHeard)
    assert again.deadline_s == heard.deadline_s


def test_a_moment_that_can_be_neither_kept_nor_read_costs_no_notice(
    metadata: GceMetadata, hear: Hear, tmp_path: Path
) -> None:
    metadata.preempt()
    (tmp_path / "preempted-at").mkdir()
    assert isinstance(hear().next(), NoticeHeard)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/preempted-at").write_text("soon")
    assert isinstance(hear(folder=tmp_path / "other").next(), NoticeHeard)
    assert isinstance(hear(folder=tmp_path / "nowhere").next(), NoticeHeard)


def test_n9_each_repeated_notice_is_reported_once(metadata: GceMetadata, hear: Hear) -> None:
    heard = hear()
    polled(metadata)
    metadata.preempt()
    metadata.change(MAINTENANCE, "TERMINATE_ON_HOST_MAINTENANCE")
    letters = [heard.next(), heard.next()]
    assert {letter.kind for letter in letters if isinstance(letter, NoticeHeard)} == {"termination", "rebalance"}
    for more in range(2, 5):
        polled(metadata, more)
        polled(metadata, more, MAINTENANCE)
        metadata.time_out()
    assert (heard.inbox.empty(), heard.notes) == (True, [])


# -- maintenance of the host -----------------------------------------------------------------------------------------


def test_n8_an_end_for_maintenance_is_a_recommendation_and_a_migration_is_nothing(
    metadata: GceMetadata, hear: Hear
) -> None:
    heard = hear()
    polled(metadata, 1, MAINTENANCE)
    metadata.change(MAINTENANCE, "MIGRATE_ON_HOST_MAINTENANCE")
    polled(metadata, 2, MAINTENANCE)
    assert (heard.inbox.empty(), heard.notes) == (True, [])
    metadata.change(MAINTENANCE, "TERMINATE_ON_HOST_MAINTENANCE")
    assert heard.next() == NoticeHeard("rebalance")


def test_n14_nothing_else_is_read(metadata: GceMetadata, hear: Hear) -> None:
    """Fields of a graceful shutdown, above all: they say nothing of a preemption."""
    hear()
    polled(metadata)
    polled(metadata, 1, MAINTENANCE)
    assert {asked.name for asked in metadata.asked} == {PREEMPTED, MAINTENANCE}


# -- nothing to say --------------------------------------------------------------------------------------------------


def test_n13_the_end_of_a_long_poll_is_the_normal_case(metadata: GceMetadata, hear: Hear) -> None:
    heard = hear()
    for times in range(1, 6):
        polled(metadata, times)
        metadata.time_out()
    assert (heard.inbox.empty(), heard.notes) == (True, [])
    assert len({poll.query["last_etag"] for poll in metadata.polls(PREEMPTED)}) == 1
    metadata.preempt()
    assert isinstance(heard.next(), NoticeHeard)


def test_an_etag_that_moves_without_a_change_is_no_notice(metadata: GceMetadata, hear: Hear) -> None:
    heard = hear()
    for times in range(1, 6):
        polled(metadata, times)
        metadata.move_etags()
    assert (heard.inbox.empty(), heard.notes) == (True, [])
    assert len({poll.query["last_etag"] for poll in metadata.polls(PREEMPTED)}) >= 5


@pytest.mark.parametrize("etag", [{}, {"ETag": "a&timeout_sec=0#%\"'"}])
def test_metadata_server_that_answers_at_once_is_polled_no_more_often(
    metadata: GceMetadata, hear: Hear, etag: dict[str, str]
) -> None:
    metadata.replies[PREEMPTED] = repeat(told(200, b"FALSE\n", {**GOOGLE, **etag}))
    began_s = time.monotonic()
    heard = hear()
    eventually(lambda: len([asked for asked in metadata.asked if asked.name == PREEMPTED]) >= 6)
    assert time.monotonic() - began_s > 5 * 0.05 - 0.01
    assert (heard.inbox.empty(), heard.notes) == (True, [])
    assert {poll.query["last_etag"] for poll in metadata.polls(PREEMPTED)} == {*etag.values()}


# -- no answer, and no sense -----------------------------------------------------------------------------------------

ODD = {
    "503": told(503),
    "500": told(500, b"TRUE"),
    "404": told(404, b"TRUE"),
    "403": told(403, b"TRUE"),
    "204": told(204),
    "a redirect": told(301, b"TRUE", {**GOOGLE, "Location": f"{ROOT}instance/elsewhere"}),
    "a captive portal": told(200, b"TRUE", {}),
    "another flavor": told(200, b"TRUE", {FLAVOR_HEADER: "Amazon"}),
    "no body": told(200),
    "small letters": told(200, b"true"),
    "both": told(200, b"TRUE FALSE"),
    "a page": told(200, b"<html>TRUE</html>"),
    "no text": told(200, b"\xff\xfeTRUE"),
    "much": told(200, b"TRUE" * 100_000),
    "no answer": None,
}


@pytest.mark.parametrize("name", [PREEMPTED, MAINTENANCE])
@pytest.mark.parametrize("odd", ODD)
def test_n7_a_malformed_answer_is_no_notice_and_blindness_is_reported_once(
    metadata: GceMetadata, hear: Hear, name: str, odd: str
) -> None:
    metadata.change("instance/elsewhere", "TRUE")
    metadata.replies[name] = repeat(ODD[odd], 5)
    heard = hear()
    lost = heard.next()
    assert isinstance(lost, NoticesLost)
    assert name in lost.reason
    polled(metadata, name=name)
    assert (heard.inbox.empty(), len(heard.notes)) == (True, 1)
    metadata.preempt()
    assert isinstance(heard.next(), NoticeHeard)
    assert "instance/elsewhere" not in {asked.name for asked in metadata.asked}


def test_isolated_failures_report_no_blindness(metadata: GceMetadata, hear: Hear) -> None:
    metadata.replies[PREEMPTED] = cycle([told(503), told(503), USUAL])
    heard = hear()
    eventually(lambda: len([asked for asked in metadata.asked if asked.name == PREEMPTED]) > 9)
    assert (heard.inbox.empty(), heard.notes) == (True, [])


def test_next_poll_reports_a_preemption_that_came_during_a_failure(metadata: GceMetadata, hear: Hear) -> None:
    heard = hear()
    polled(metadata)
    metadata.replies[PREEMPTED] = iter([told(503)])
    metadata.move_etags()
    metadata.preempt()
    assert isinstance(heard.next(), NoticeHeard)
    assert heard.notes == []


def test_n5_a_server_that_never_answers_is_waited_for_no_longer_than_a_poll(metadata: GceMetadata) -> None:
    value = MetadataValue(PREEMPTED, (metadata.host,), held_back_s=0.2, answer_within_s=0.1)
    waited: list[float] = []
    for hangs in (True, False, True):
        metadata.replies[PREEMPTED] = iter([HANGS] if hangs else [])
        asked_s = time.monotonic()
        if hangs:
            with pytest.raises(Blind, match="TimeoutError"):
                value.get()
            waited.append(time.monotonic() - asked_s)
        else:
            assert value.get() == "FALSE"
    at_once_s, poll_s = waited
    assert at_once_s >= 0.1
    assert poll_s >= 0.3, "the server may hold its answer back for all of the time that it was given"


# -- where it is -----------------------------------------------------------------------------------------------------


def test_metadata_server_is_polled_by_address_and_then_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[str, int]] = []

    def refused(address: tuple[str, int], *_: object) -> None:
        tried.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(http.client.socket, "create_connection", refused)
    preemption, maintenance = gce_notices({}, system_clock())
    for source in (preemption, preemption, preemption, maintenance):
        with pytest.raises(Blind):
            list(source.notices())
    address, name = ("169.254.169.254", 80), ("metadata.google.internal", 80)
    assert tried == [address, name, address, address]


def test_it_is_another_one_that_answers_after_the_first_did_not(metadata: GceMetadata) -> None:
    value = MetadataValue(PREEMPTED, ("127.0.0.1:1", metadata.host))
    with pytest.raises(Blind, match="Connection refused"):
        value.get()
    assert value.get() == "FALSE"


# -- the server of the tests -----------------------------------------------------------------------------------------


def test_without_its_header_the_server_says_nothing(metadata: GceMetadata) -> None:
    for headers in ({}, {FLAVOR_HEADER: FLAVOR, "X-Forwarded-For": "10.0.0.1"}):
        connection = http.client.HTTPConnection(metadata.host)
        connection.request("GET", f"{ROOT}{PREEMPTED}", headers=headers)
        assert connection.getresponse().status == 403
        connection.close()
    assert metadata.asked == []


def test_google_s_own_library_finds_its_account_and_token_there(
    metadata: GceMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", metadata.host)
    credentials = compute_engine.Credentials()
    credentials.refresh(Request())
    assert credentials.token == metadata.token
    assert credentials.service_account_email == "run@p.iam.gserviceaccount.com"
