"""Nights without a laptop, in virtual time: whatever happens to the function, there is one run a night and no more."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from spotrun.clouds.aws.control_plane import prices, usd_of, usd_of_a_night
from spotrun.clouds.aws.night_alarm import WARNING
from spotrun.clouds.night_requests import BEGIN, RequestEstimate
from spotrun.clouds.night_requests import TICK as OF_A_TICK
from spotrun.errors import SpecInvalid
from spotrun.folder.attendance import UNATTENDED_AFTER, UNATTENDED_AFTER_MAX, lasts
from spotrun.folder.night import DAYS
from spotrun.folder.pace import ALL_THE_TIME, BY_THE_MINUTE
from spotrun.folder.status_objects import RunnerStatus
from spotrun.night.times import next_due, read_at, read_days, shortest_gap
from spotrun.policy.housekeeping import SILENCE
from spotrun.runner.creation import prepare_run
from spotrun.runs.open_run import open_run
from spotrun.spec.model import RunSpec
from tests.batteries.night_faults import live
from tests.support.night_world import NAME, NightWorld, require_one_clean_night, utc

NEW_WORLD = Callable[[str], NightWorld]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> NightWorld:
    """A Monday at noon, with a night installed for 22:00 in Berlin."""
    found = NightWorld(monkeypatch, tmp_path / "work", utc("2026-11-23T12:00:00"), work_hours=2.0)
    found.install()
    return found


def to_the_evening(world: NightWorld) -> None:
    world.is_quiet_until(world.next_due())


def test_a_night_begins_and_is_looked_after_each_minute_and_nothing_runs_between_nights(world: NightWorld) -> None:
    to_the_evening(world)
    assert world.invoked == 0
    world.passes(200)
    require_one_clean_night(world)
    calls = world.invoked
    world.passes(600)
    assert world.invoked == calls


def test_the_deadline_and_the_budget_are_those_of_the_job(world: NightWorld) -> None:
    to_the_evening(world)
    world.passes(2)
    created = world.state(world.uids()[0]).created
    assert created.deadline_at is not None
    assert created.deadline_at - created.clock_epoch == timedelta(hours=8)
    assert created.budget_usd == 15


@pytest.mark.parametrize("operation", range(0, 60, 6))
def test_a_function_that_is_killed_anywhere_while_it_begins_leaves_one_night(world: NightWorld, operation: int) -> None:
    to_the_evening(world)
    world.kill_in = operation
    world.passes(200)
    require_one_clean_night(world)


@pytest.mark.parametrize("operation", range(0, 60, 6))
def test_two_calls_for_one_night_at_once_begin_one_run(world: NightWorld, operation: int) -> None:
    to_the_evening(world)
    world.beside_in = operation
    world.passes(200)
    require_one_clean_night(world)


def test_a_function_that_hangs_until_its_time_is_over_is_followed_by_another(world: NightWorld) -> None:
    to_the_evening(world)
    world.hang_in = 20
    world.passes(200)
    require_one_clean_night(world)


def test_a_throttled_call_is_given_up_and_the_next_one_begins_the_night(world: NightWorld) -> None:
    to_the_evening(world)
    world.throttled = True
    world.passes(30)
    assert world.nights() == []
    world.throttled = False
    world.passes(240)
    require_one_clean_night(world)


def test_a_night_whose_rights_are_gone_for_an_hour_begins_when_they_are_back(world: NightWorld) -> None:
    to_the_evening(world)
    world.denied = True
    world.passes(59)
    assert world.nights() == []
    world.denied = False
    world.passes(260)
    require_one_clean_night(world)


def test_a_run_whose_runner_loses_its_rights_for_an_hour_goes_on(world: NightWorld) -> None:
    to_the_evening(world)
    world.passes(20)
    world.denied = True
    world.passes(30)
    world.is_cold()
    world.passes(30)
    world.denied = False
    world.passes(120)
    require_one_clean_night(world)


def test_redeployed_function_keeps_attending_the_living_run(world: NightWorld) -> None:
    to_the_evening(world)
    world.passes(20)
    world.is_deployed_anew()
    assert world.aws.minutes == "ENABLED"
    world.passes(180)
    require_one_clean_night(world)


def test_a_night_that_is_due_while_the_last_one_goes_on_carries_it_on(world: NightWorld) -> None:
    world.work = timedelta(hours=26)
    world.install(budget={"max_usd": "60"})
    to_the_evening(world)
    world.passes(25 * 60)
    first, second = world.nights()
    assert (first.due, second.due) == ("2026-11-23", "2026-11-24")
    assert second.carried
    assert world.uids() == [first.run] == [second.run]


def by_another(world: NightWorld, folder: Path, **changes: object) -> str:
    """A run of the night's name that no night has begun: the same job, with the files of another folder."""
    job = RunSpec.from_dict({**world.night.spec, "workdir": str(folder), **changes})
    return prepare_run(job, "theirs").create().rpartition("-")[2]


@pytest.mark.parametrize("changes", [{}, {"budget": {"max_usd": "100000"}}], ids=["files", "budget"])
def test_night_neither_carries_on_nor_ticks_a_strangers_run_with_other_files_or_another_budget(
    world: NightWorld, tmp_path: Path, changes: dict[str, object]
) -> None:
    folder = world.folder
    if not changes:
        folder = tmp_path / "theirs"
        folder.mkdir()
        (folder / "train.py").write_text("print('theirs')\n")
    theirs = by_another(world, folder, **changes)
    to_the_evening(world)
    world.passes(3)
    assert world.nights() == []
    assert world.account.alive == []
    assert "is not finished, and no night has begun it" in world.said[-1]
    assert len(open_run(f"{world.store}/{NAME}-{theirs}", None).ledger.refresh().launches) == 0


def test_a_night_that_is_wanted_by_hand_is_one_of_its_own(world: NightWorld) -> None:
    event = {"kind": "begin", "by_hand": "2026-11-23T12:00:00"}
    assert world.invoke(event)
    assert world.invoke(event)
    assert len(world.nights()) == 1
    world.passes(200)
    require_one_clean_night(world)
    to_the_evening(world)
    world.passes(5)
    assert [each.due for each in world.nights()] == ["by-hand-2026-11-23T12:00:00", "2026-11-23"]
    assert len(world.uids()) == 2


def test_interruption_warning_makes_the_function_request_a_replacement_at_once(world: NightWorld) -> None:
    to_the_evening(world)
    world.install(policy={"on_demand_after": "10m", "return_to_spot": False})
    world.passes(20)
    assert world.is_interrupted()
    world.passes(1)
    state = world.state(world.uids()[0])
    assert state.current is not None
    assert state.current.notice_at is not None
    replacement = state.launches[max(state.launches)]
    assert replacement.number != state.current.launch
    assert replacement.intended_at - state.current.notice_at < timedelta(seconds=5)
    world.passes(180)
    require_one_clean_night(world)


def test_function_acts_on_a_warning_before_the_agent_has_it(world: NightWorld) -> None:
    to_the_evening(world)
    world.install(policy={"on_demand_after": "10m", "return_to_spot": False})
    world.passes(20)
    training = world.training
    assert training is not None
    detail = {"instance-id": training.instance_id, "instance-action": "terminate"}
    told_at = world.clock.now()
    event = {"detail-type": WARNING, "time": f"{told_at:%Y-%m-%dT%H:%M:%SZ}", "detail": detail}
    assert world.invoke(event)
    state = world.state(world.uids()[0])
    assert state.current is not None
    assert state.current.notice is not None
    assert state.current.notice.deadline_at == told_at.replace(microsecond=0) + timedelta(minutes=2)
    replacement = state.launches[max(state.launches)]
    assert replacement.number != state.current.launch
    assert len(world.aws.alive) == 2
    launches, late = len(state.launches), {**event, "time": f"{told_at - timedelta(minutes=5):%Y-%m-%dT%H:%M:%SZ}"}
    assert world.invoke(event)
    assert world.invoke(late)
    assert len(world.state(world.uids()[0]).launches) == launches


def test_news_of_an_instance_that_is_not_the_runs_changes_nothing(world: NightWorld) -> None:
    to_the_evening(world)
    world.passes(20)
    before = world.state(world.uids()[0]).next_number
    assert world.invoke({"detail-type": "EC2 Instance State-change Notification", "detail": {"instance-id": "i-1"}})
    assert world.answers[-1]["not_ours"] == "i-1"
    assert world.state(world.uids()[0]).next_number == before


def test_a_run_whose_schedules_were_removed_ends_by_its_time_to_live(world: NightWorld) -> None:
    world.work = timedelta(hours=100)
    to_the_evening(world)
    world.passes(20)
    world.is_removed()
    assert len(world.aws.alive) == 1
    world.clock.advance(timedelta(days=3).total_seconds())
    assert world.aws.alive == []


def test_a_run_whose_folder_was_deleted_is_not_created_again(world: NightWorld) -> None:
    to_the_evening(world)
    world.passes(200)
    uid = world.uids()[0]
    world.delete(uid)
    to_the_evening(world)
    world.passes(5)
    assert world.uids() == [world.nights()[-1].run]
    assert world.uids() != [uid]


def test_a_runner_that_is_called_once_a_minute_attends_between_its_signs_of_life() -> None:
    def status(every_s: float) -> RunnerStatus:
        return RunnerStatus(at=utc("2026-11-27T00:00:00"), pid=1, host="elsewhere", sequence=1, every_s=every_s)

    assert lasts(status(ALL_THE_TIME.look_every_s)) == UNATTENDED_AFTER
    assert lasts(status(BY_THE_MINUTE.look_every_s)) > timedelta(minutes=5)
    assert lasts(status(86_400.0)) == UNATTENDED_AFTER_MAX


def test_pace_of_the_function_leaves_an_agent_time_for_a_heartbeat() -> None:
    assert BY_THE_MINUTE.look_every_s < BY_THE_MINUTE.gap.total_seconds() < SILENCE.total_seconds()


# -- the clock -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "began_at"),
    [
        ("2026-10-24T12:00:00", "2026-10-25T00:30:00"),  # 02:30 comes twice: the first time
        ("2027-03-27T12:00:00", "2027-03-28T01:00:00"),  # 02:30 does not exist: at 03:00
    ],
)
def test_a_night_at_a_time_that_exists_twice_or_never_begins_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, start: str, began_at: str
) -> None:
    world = NightWorld(monkeypatch, tmp_path / "work", utc(start), work_hours=2.0)
    world.install(at="02:30")
    to_the_evening(world)
    world.passes(260)
    require_one_clean_night(world)
    assert world.nights()[0].at == utc(began_at)


def test_next_night_follows_the_rules_of_the_scheduler(world: NightWorld) -> None:
    world.install(at="02:30", days=("sun",))
    assert next_due(world.night, utc("2027-03-25T12:00:00")) == utc("2027-04-04T00:30:00")
    assert next_due(world.night, utc("2026-10-24T12:00:00")) == utc("2026-10-25T00:30:00")


def test_times_and_days_are_read_as_people_write_them() -> None:
    assert read_at("22:00 Europe/Berlin") == ("22:00", "Europe/Berlin")
    assert read_at(" 7:05  UTC ") == ("07:05", "UTC")
    assert read_days("mon-fri") == DAYS[:5]
    assert read_days("Sat-Mon") == ("mon", "sat", "sun")
    assert read_days("wednesday") == ("wed",)
    assert read_days("daily") == DAYS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("22:00", "is not a time with a time zone"),
        ("25:00 UTC", "is not a time with a time zone"),
        ("22:00 Europe/Berln", "did you mean Europe/Berlin?"),
        ("22:00 berlin", "did you mean Europe/Berlin?"),
        ("22:00 localtime", "there is no time zone 'localtime'"),
        ("22:00 Factory", "there is no time zone 'Factory'"),
    ],
)
def test_a_time_that_is_none_is_refused_with_what_to_write(text: str, words: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        read_at(text)
    assert words in refused.value.one_line


def test_the_shortest_time_between_two_nights_is_known() -> None:
    assert shortest_gap(DAYS) == timedelta(days=1)
    assert shortest_gap(("mon", "wed", "sun")) == timedelta(days=1)
    assert shortest_gap(("mon", "thu")) == timedelta(days=3)
    assert shortest_gap(("fri",)) == timedelta(days=7)


def test_a_day_that_is_none_is_refused() -> None:
    with pytest.raises(SpecInvalid, match="'funday' is not a day"):
        read_days("mon-fri,funday")


# -- all of it -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nights", [2, pytest.param(7, marks=pytest.mark.nightly)])
def test_nights_with_faults_at_random_keep_every_promise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nights: int
) -> None:
    results = live(monkeypatch, tmp_path / "work", nights=nights, seed=7, start=utc("2026-10-20T12:00:00"), at="02:30")
    assert results.trouble == []
    assert sum(results.faults.values()) > nights


def test_a_month_of_nights_costs_less_than_ten_cents_to_call(world: NightWorld) -> None:
    world.work = timedelta(hours=7.9)
    to_the_evening(world)
    world.passes(8 * 60 + 10)
    require_one_clean_night(world)
    asked, ticks = world.asked, world.invoked
    counted = RequestEstimate(
        gets=asked["get"], puts=sum(asked[each] for each in ("list", "put", "put_if_absent", "put_status"))
    )
    assert counted.gets <= BEGIN.gets + ticks * OF_A_TICK.gets
    assert counted.puts <= BEGIN.puts + ticks * OF_A_TICK.puts
    calls = world.calls(world.uids()[0])
    assert calls.calls + calls.uncounted >= ticks - 10, "the calls that follow a night find no run"
    assert abs(calls.writes - counted.puts) <= 10
    assert usd_of(calls) * 22 < 0.10
    assert prices().as_of == "2026-11-27"
    assert usd_of_a_night(8.0) * 22 < 0.10
