"""Ends that the ledger has only a bound of, and that the cloud's bill knows."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from spotrun.account.summary import summarise
from spotrun.bill import aws
from spotrun.bill.corrections import corrected, corrections
from spotrun.bill.reconcile import Reason, Reconciliation, line_filter, reconcile
from spotrun.instance import EndedBy
from spotrun.run import events as ev
from tests.support.bills import Billed, billed, cost_and_usage_rows, spot_data_feed, write_csv
from tests.support.called_spotrun import Spotrun, spotrun  # noqa: F401
from tests.support.decisions import spec
from tests.support.gang_history import GangHistory
from tests.support.histories import START, History, random_runs, refused
from tests.support.stored_runs import store_run

HEARD_S, LIVED_S, LIFE_S = 1000.0, 20_000.0, 86_400.0
"""After the first step: the last heartbeat, and the end by the bill."""


def hung(**created: object) -> tuple[History, int]:
    """A run that completed on its second instance; the first one hung, and counts up to its last heartbeat."""
    history = History(**{"name": "demo", "spec": spec().to_dict(), **created})
    launch = history.running()
    history.after(HEARD_S).gone(launch, EndedBy.FAULT, bounded_by="its last heartbeat")
    history.after(LIFE_S)
    second = history.running()
    history.after(3000).completed(history.commit())
    history.after(60).gone(second, EndedBy.ITSELF)
    return history, launch


def truth(lived_s: float = LIVED_S) -> History:
    """What the cloud has seen of the same run."""
    history = History(name="demo")
    launch = history.running()
    history.after(lived_s).gone(launch, EndedBy.FAULT)
    history.now = START + timedelta(seconds=100 + HEARD_S + LIFE_S)
    second = history.running()
    history.after(3060).gone(second, EndedBy.ITSELF)
    return history


def against(history: History, lines: list[Billed], folder: Path) -> Reconciliation:
    path = write_csv(folder / "cur.csv", cost_and_usage_rows(lines))
    return reconcile(history.state, aws.read_cost_and_usage_report([path], line_filter(history.state)), history.now)


def end_of(history: History, launch: int) -> datetime:
    gone = history.state.launches[launch].gone
    assert gone is not None
    return gone.ended_at


@pytest.mark.parametrize("lived_s", [LIVED_S, HEARD_S - 300])
def test_bill_gives_the_end_of_an_instance_that_ended_unobserved(tmp_path: Path, lived_s: float) -> None:
    history, launch = hung()
    lines = billed(truth(lived_s))
    before = history.state.settled_usd
    (found,) = corrections(history.state, against(history, lines, tmp_path))
    assert abs(found.ended_at - end_of(truth(lived_s), launch)) <= timedelta(seconds=1)
    assert (found.launch, found.bound, found.was) == (launch, "its last heartbeat", end_of(history, launch))
    history.corrected(launch, found.ended_at)
    assert history.state.settled_usd == before + found.usd
    assert float(found.usd) == pytest.approx((lived_s - HEARD_S) * 0.36 / 3600, abs=0.001)
    after = against(history, lines, tmp_path)
    assert {part.reason for part in after.parts} <= {Reason.ROUNDING}
    assert corrections(history.state, after) == ()


def test_a_bill_without_hours_knows_it_by_what_was_paid(tmp_path: Path) -> None:
    history, launch = hung()
    path = tmp_path / "feed"
    path.write_text(spot_data_feed(billed(truth())))
    statement = aws.read_spot_data_feed([path], line_filter(history.state))
    (found,) = corrections(history.state, reconcile(history.state, statement, history.now))
    assert abs(found.ended_at - end_of(truth(), launch)) <= timedelta(seconds=1)


def test_a_bill_that_may_lack_hours_corrects_nothing(tmp_path: Path) -> None:
    history, launch = hung()
    lines = billed(truth())
    last = max(line.end for line in lines if line.resource == f"i-{launch}")
    for some in ([line for line in lines if line.end < last], lines[1:]):
        assert corrections(history.state, against(history, some, tmp_path)) == ()


def test_an_end_that_the_cloud_told_is_not_corrected(tmp_path: Path) -> None:
    history = truth(HEARD_S)
    assert corrections(history.state, against(history, billed(truth()), tmp_path)) == ()


# -- the entry ---------------------------------------------------------------------------------------------------------


def test_a_corrected_end_takes_the_place_of_the_bound_and_no_training_moves() -> None:
    history, launch = hung()
    before = summarise(history.state, history.now).total
    ended_at = end_of(history, launch) + timedelta(hours=2)
    history.corrected(launch, ended_at)
    after = summarise(history.state, history.now).total
    assert after.spot_usd - before.spot_usd == Decimal("0.72")
    assert after.productive == before.productive
    history.corrected(launch, ended_at - timedelta(hours=1))  # a later bill
    assert summarise(history.state, history.now).total.spot_usd - before.spot_usd == Decimal("0.36")


@pytest.mark.parametrize(
    ("after_s", "because"),
    [
        (-1.0, "not between"),
        (LIFE_S + 1, "not between"),
        (HEARD_S + 90, "already has this end"),
    ],
)
def test_an_end_outside_of_what_it_had_reserved_is_void(after_s: float, because: str) -> None:
    history, launch = hung()
    began = history.state.launches[launch].billed_from
    assert began is not None
    ended_at = began + timedelta(seconds=after_s)
    refused(history, ev.EndCorrected(launch=launch, ended_at=ended_at, by="a test", evidence="the bill"), because)


def test_only_a_bound_is_corrected() -> None:
    history, _ = hung()
    told, unknown = max(history.state.launches), 10**6
    for launch, because in ((told, "no end that was estimated"), (unknown, "there is no launch")):
        event = ev.EndCorrected(launch=launch, ended_at=history.now, by="a test", evidence="the bill")
        refused(history, event, because)


def test_a_launch_that_is_not_gone_is_not_corrected() -> None:
    history = History()
    launch = history.running()
    event = ev.EndCorrected(launch=launch, ended_at=history.now, by="a test", evidence="the bill")
    refused(history, event, "no end that was estimated")


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_runs(), st.integers(1, 80_000))
def test_spent_amount_is_the_sum_of_all_bills_after_any_correction(history: History, lived_s: int) -> None:
    bounded = [each for each in history.state.launches.values() if each.gone is not None and each.gone.bounded_by]
    for launch in bounded:
        assert launch.billed_from is not None
        ended_at = launch.billed_from + timedelta(seconds=lived_s)
        if ended_at != end_of(history, launch.number):
            history.corrected(launch.number, ended_at)
    state = history.state
    settled = [each for each in state.launches.values() if each.settled]
    assert state.settled_usd == sum((each.reserved_usd(state.created.billing) for each in settled), Decimal(0))


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run, and beside it `cur.csv`, what its cloud has charged."""
    monkeypatch.setenv("SPOTRUN_STORE", str(tmp_path / "runs"))
    write_csv(tmp_path / "cur.csv", cost_and_usage_rows(billed(truth())))
    return store_run(tmp_path / "runs", hung()[0])


def test_bill_correct_writes_what_the_bill_knows(stored: Path, tmp_path: Path, spotrun: Spotrun) -> None:  # noqa: F811
    cur = tmp_path / "cur.csv"
    said = spotrun("bill", "demo", "--cur", cur, "--correct")
    assert said.code != 0
    assert "cannot ask for confirmation" in said.err
    assert spotrun("bill", "demo", "--cur", cur, "--correct", "--yes", "--json").json["total"]["explained"]
    told = spotrun("events", "demo").out
    assert "by AWS Cost and Usage Report" in told
    again = spotrun("bill", "demo", "--cur", cur, "--correct", "--yes")
    assert "no end time is corrected" in again.err
    assert Reason.UNSEEN_END not in again.out


def test_the_end_of_one_member_is_corrected_and_the_other_stays(tmp_path: Path) -> None:
    history, seen = GangHistory(), GangHistory()
    for each, bounded_by in ((history, "its last heartbeat"), (seen, "")):
        first, second = each.training_gang()
        each.after(HEARD_S if bounded_by else LIVED_S)
        each.write(each.end_of(second, EndedBy.FAULT, bounded_by=bounded_by))
        each.now = START + timedelta(seconds=100 + LIFE_S)
        each.lost(first, EndedBy.ITSELF)
    before = history.state.settled_usd
    (found,) = corrections(history.state, against(history, billed(seen), tmp_path))
    event = corrected(history.state, found, by="test", evidence="the bill")
    assert (found.member, event.member) == (1, 1)
    history.write(event)
    assert history.state.settled_usd == before + found.usd
    ends = [member.gone.ended_at for member in history.state.members() if member.gone is not None]
    known = [member.gone.ended_at for member in seen.state.members() if member.gone is not None]
    assert all(abs(ours - theirs) <= timedelta(seconds=1) for ours, theirs in zip(ends, known, strict=True))


def test_a_correction_in_a_run_on_one_instance_names_no_member(tmp_path: Path) -> None:
    history, _ = hung()
    (found,) = corrections(history.state, against(history, billed(truth()), tmp_path))
    assert corrected(history.state, found, by="test", evidence="the bill").member is UNSET
