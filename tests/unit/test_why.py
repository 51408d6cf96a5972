"""`spotrun why`: each decision in a sentence, with the reason that the ledger has for it."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from spotrun.account.outcome import status_word
from spotrun.instance import EndedBy
from spotrun.report.next_decision import next_decision
from spotrun.report.overview import notes
from spotrun.report.watching import watching
from spotrun.report.why import Decision, briefly, decisions
from spotrun.run import events as ev
from spotrun.run.events import Cause
from spotrun.spec.model import RunSpec
from tests.support.decisions import ask, decided, events_of, spec, trains
from tests.support.gang_history import GangHistory
from tests.support.histories import FREE_STORAGE, ON_DEMAND, SPOT, START, History, random_runs
from tests.support.worlds import DeadlineWorld, calm


def told(history: History, wanted: RunSpec | None = None) -> list[Decision]:
    return decisions(history.entries, wanted or spec())


def sentence(history: History, kind: str, wanted: RunSpec | None = None) -> str:
    """The newest decision of that kind."""
    return [each.sentence for each in told(history, wanted) if each.kind == kind][-1]


def intend(history: History, wanted: RunSpec | None = None) -> int:
    """The launch that is decided on now."""
    (intent,) = [event for event in events_of(decided(history, wanted)) if isinstance(event, ev.LaunchIntended)]
    return history.write(intent)


def test_the_first_launch_says_what_it_was_chosen_from() -> None:
    history = History()
    intend(history)
    assert sentence(history, "wish") == "asked for: spot where possible, on-demand after 10m without spot"
    assert sentence(history, "spot") == (
        "asked for spot in local-a (sim-gpu) at $0.30/h simulated, $0.70 an hour below on-demand: "
        "first launch: the cheapest of 3 spot pools that may be requested"
    )


def test_on_demand_says_how_long_spot_was_missing_and_what_was_waited_for() -> None:
    history = History()
    for _ in range(3):
        ask(history)
        history.after(5)
    history.after(595)
    intend(history)
    words = sentence(history, "on-demand")
    assert words.endswith("first launch: no spot for 10m10s")
    pools = ", ".join(f"spot in local-{zone} (sim-gpu)" for zone in "abc")
    assert f"after a wait of 10m (no capacity: {pools}; such a pool is not asked again for 2m)" in words


def test_a_wait_that_nothing_in_the_ledger_explains_is_called_that() -> None:
    history = History().after(3600)
    launch = intend(history)
    assert "after a wait of 1h (until a runner had read the cloud's offerings)" in sentence(history, "spot")
    history.record(launch)
    history.gone(launch)
    history.after(3600)
    intend(history)
    assert "after a wait of 1h (the ledger does not say why" in sentence(history, "spot")


def test_why_shortens_many_refusals_in_a_row() -> None:
    history = History()
    for _ in range(40):
        ask(history, spec(resources={"spot_policy": "spot"}))
        history.after(45)
    history.running()
    made = told(history)
    short = briefly(made)
    assert [each.kind for each in short] == ["wish", "spot", "refused", "refused", "spot", "refused", "spot"]
    assert short[3].sentence == f"asked 38 more times, and was refused each time (entries 3 to {made[-4].number})"
    assert briefly(made[:7]) == made[:7]
    assert "no capacity: spot in local-a (sim-gpu), spot in local-b" in made[-1].sentence


def test_the_way_back_to_spot_says_what_it_may_save() -> None:
    history = History()
    history.running(ON_DEMAND, "3.60")
    history.after(601)
    intend(history)
    assert sentence(history, "return").endswith("and $3.30 an hour may be saved")
    assert "return to spot: on-demand was kept for 10m" in sentence(history, "return")


@pytest.mark.exhaustive
def test_with_a_deadline_the_saving_and_the_changeover_that_it_pays_for_are_named() -> None:
    world = DeadlineWorld(7200, 240, 10, calm(), 20_000, strategy="ours", return_cooldown="30s")
    assert world.finished_s(20_000) is not None
    (back,) = [each for each in decisions(world.entries, world.spec) if each.kind == "return"]
    assert re.search(
        r"return to spot: \$\d\.\d\d saved in the [\dhms]+ that it may last pays for \dm\d*s? of", back.sentence
    )
    (first,) = [each for each in decisions(world.entries, world.spec) if each.kind == "on-demand"]
    assert first.sentence.endswith("first launch: the amount of work is not known yet")


def test_a_notice_says_what_it_led_to() -> None:
    history = History()
    history.running()
    history.step = 40
    history.after(100).notice()
    final = history.after(15).commit(final=True)
    history.after(1).drained(final)
    assert sentence(history, "notice").endswith("step 40 was durable 15s later; nothing has taken over yet")
    history.running()
    assert sentence(history, "notice") == (
        "the cloud gave 2m of notice for spot in local-a (sim-gpu): step 40 was durable 15s later; "
        "no step was lost; spot in local-a (sim-gpu) took over after 1m41s"
    )


@pytest.mark.parametrize(
    ("named", "unsaved", "told"),
    [
        ("", "", "no checkpoint was made after it; "),
        ("", ": the command does not catch SIGTERM", "after it: the command does not catch SIGTERM; "),
        ("its files never stop changing", "", "no checkpoint was made after it: its files never stop changing; "),
    ],
)
def test_notice_without_a_checkpoint_says_why_there_is_none(named: str, unsaved: str, told: str) -> None:
    history = History(spec={"train": {"run": "./simulate", "state": ["out/"]}})
    history.start(history.launch())
    history.resume()
    if named:
        history.not_carried("the state of the command", what=named)
    history.notice()
    history.after(60)
    history.write(
        ev.AttemptDrained(
            attempt=history.attempt, final_commit=None, stopped_at=history.now, reason=f"interruption notice{unsaved}"
        )
    )
    assert told in sentence(history, "notice")


def test_a_loss_without_a_notice_says_what_was_lost() -> None:
    history = History()
    launch = history.running()
    history.step = 40
    history.after(100).commit()
    history.after(60).gone(launch, last_step=53)
    history.running(ON_DEMAND, "3.6")
    assert "was taken without a notice" in sentence(history, "loss")
    assert "13 steps had to be done again; on-demand in local-a" in sentence(history, "loss")


def test_end_by_hand_is_reported_as_such_and_a_replacement_follows() -> None:
    history = History()
    launch = history.running()
    history.after(60).gone(launch, by=EndedBy.USER)
    intend(history)
    assert sentence(history, "loss").startswith("spot in local-a (sim-gpu) was ended from outside spotrun (")
    assert ": replacement: " in sentence(history, "spot")


def test_an_instance_after_a_resume_took_nothing_over() -> None:
    history = History()
    launch = history.running()
    history.write(ev.StopRequested(by="me"))
    history.after(60).gone(launch, by=EndedBy.USER, last_step=9)
    history.write(ev.RunStopped(reason="as requested"))
    history.after(3600).write(ev.ResumeRequested(by="me"))
    history.after(300).running()
    assert "the run had ended, and was resumed: it trained again after 1h6m" in sentence(history, "loss")
    assert "after a wait of 5m (until a runner had read the cloud's offerings)" in sentence(history, "spot")


def test_end_by_hand_before_training_is_reported_too() -> None:
    history = History()
    launch = history.launch()
    history.record(launch)
    history.after(60).gone(launch, by=EndedBy.USER)
    intend(history)
    where = "spot in local-a (sim-gpu)"
    assert sentence(history, "give-up").startswith(f"{where} was ended from outside spotrun before it took over")
    assert ": replacement: " in sentence(history, "spot")


@pytest.mark.parametrize("how", ["stop", "hang", "time-to-live"])
def test_end_by_spotrun_or_its_guard_is_no_end_by_hand(how: str) -> None:
    history = History()
    launch = history.running()
    if how == "stop":
        history.write(ev.StopRequested(by="me"))
    if how == "hang":
        history.write(ev.InstanceCondemned(launch=launch, cause=Cause.HANG, detail="silent"))
    lived_s = history.state.launches[launch].intent.time_to_live_s if how == "time-to-live" else 60
    history.after(lived_s).gone(launch, by=EndedBy.USER)
    assert "somebody" not in sentence(history, "loss")


def test_full_quota_is_reported_with_the_next_step_until_its_pool_is_requested_again() -> None:
    history = History()
    launch = history.launch(SPOT, "0.36")
    history.write(ev.LaunchClosed(launch=launch, cause=Cause.QUOTA, detail="spot vCPUs of G: 8 of 8 in use"))
    closed_at = history.now
    full = "sim-gpu spot in local/local-a, a quota is full (spot vCPUs of G: 8 of 8 in use): asked again at"
    again = f"{closed_at + timedelta(minutes=10):%H:%M:%S} UTC"
    assert next_decision(history.state, spec(), history.now).endswith(f"; {full} {again}")
    history.running(ON_DEMAND, "3.60")
    assert next_decision(history.state, spec(), history.now).endswith(f"; {full} {again}")
    assert "quota" not in next_decision(history.state, spec(), closed_at + timedelta(minutes=10))
    history.write(ev.StopRequested(by="me"))
    assert "quota" not in next_decision(history.state, spec(), history.now)


def test_an_end_says_why() -> None:
    history = History()
    history.write(ev.StopRequested(by="me"))
    history.write(ev.RunStopped(reason="the rest of the budget does not pay for another instance"))
    assert sentence(history, "stop") == "stop requested by me"
    assert sentence(history, "end").endswith("the rest of the budget does not pay for another instance")


def test_text_from_outside_moves_no_cursor() -> None:
    history = History()
    history.write(ev.RunStopped(reason="\x1b[2J\u202eover\nwritten"))
    assert sentence(history, "end") == "run stopped: \\x1b[2J\\u202eover written"


def test_void_entry_is_no_decision() -> None:
    history = History()
    entry = history.entry(ev.LaunchClosed(launch=99, cause=Cause.CAPACITY))
    assert [each.kind for each in decisions([*history.entries, entry], spec())] == ["wish"]


@pytest.mark.exhaustive
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_runs())
def test_every_launch_and_every_end_of_any_run_is_one_line(history: History) -> None:
    found = {each.number: each.sentence for each in told(history)}
    voids = {void.number for void in history.state.voids}
    for entry in history.entries:
        if isinstance(entry.event, ev.LaunchIntended | ev.RunStopped | ev.RunFailed | ev.RunCompleted):
            assert (entry.number in found) is (entry.number not in voids)
    assert all("\n" not in words and words for words in found.values())
    coming = next_decision(history.state, spec(), history.now)
    assert bool(coming) is (history.state.terminal is None)


# -- what comes next -------------------------------------------------------------------------------------------------


def test_next_decision_is_shown_with_its_reason() -> None:
    history = History()

    def coming(wanted: RunSpec | None = None) -> str:
        return next_decision(history.state, wanted or spec(), history.now)

    assert coming() == "asks each spot pool in turn; on-demand once spot has been missing for 10m00s"
    for late in ({}, {"deadline": "8h"}):
        wanted = spec(resources={"spot_policy": "on-demand"}, policy=late)
        assert coming(wanted) == "asks each on-demand pool in turn"
    history.close(history.launch(SPOT, "0.36"))
    history.launch(ON_DEMAND, "3.60")
    assert coming() == "trains on on-demand in local-a (sim-gpu) once it has booted"
    history.close(history.state.pending_launch.number)  # type: ignore[union-attr]
    history.running(ON_DEMAND, "3.60")
    assert coming() == (
        "asks for spot again at 12:11:25 UTC: $3.2400 saved an hour pays for 2m00s of changeover ($0.0120) after 13s"
    )
    hurried = spec(policy={"deadline": "8h"})
    assert coming(hurried).startswith("returns to spot when it is expected to last long enough: $3.2400 saved")
    assert coming(spec(resources={"spot_policy": "on-demand"})).startswith(
        "stays on demand, and asks for another instance"
    )
    history.notice()
    assert coming().startswith("hands over")
    history.write(ev.StopRequested(by="me"))
    assert coming() == "ends once the last checkpoint is durable"


def test_failing_standbys_are_reported_with_the_next_step() -> None:
    history = History()
    history.running()
    launch = history.failed_standbys(3)
    first, second, third = (each.sentence for each in told(history) if each.kind == "give-up")
    assert first == second == "the standby, spot in local-a (sim-gpu), ended before it took over (the cloud's record)"
    again = f"{history.now + timedelta(minutes=10):%a %H:%M:%S} UTC"
    assert third == f"{first}; 3 standbys have failed in a row, so the next standby is requested at {again}"
    assert next_decision(history.state, spec(), history.now) == (
        f"3 standbys in a row failed (the newest: instance i-{launch}, the cloud's record; `spotrun logs` shows "
        f"their output): training continues, and the next one is requested at {again}"
    )
    assert next_decision(history.state, spec(), history.after(600).now).startswith("stays on spot")


@pytest.mark.parametrize("seconds", [0, 599])
def test_the_time_told_for_a_return_is_the_time_of_it(seconds: float) -> None:
    history = History()
    trains(history, ON_DEMAND)
    began = history.state.current.started_at  # type: ignore[union-attr]
    history.now = began + timedelta(seconds=seconds)
    assert f"again at {began + timedelta(minutes=10):%H:%M:%S}" in next_decision(history.state, spec(), history.now)
    assert not decided(history)
    history.now = began + timedelta(seconds=600)
    assert events_of(decided(history))


def test_watch_shows_the_next_decision_until_all_runs_have_ended(capsys: pytest.CaptureFixture[str]) -> None:
    history = History()
    with watching() as view:
        for _ in range(2):
            view.show([row(history)])
        history.running(ON_DEMAND, "3.60")
        view.show([row(history)])
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("demo: created | epochs 0 | asks each spot pool in turn; on-demand once spot")
    assert "training | epochs 0 | asks for spot again at 12:11:25 UTC" in second
    assert notes([row(history)])[-1].startswith("demo asks for spot again at 12:11:25")


def row(history: History) -> dict[str, Any]:
    return {
        "run": "demo",
        "state": status_word(history.state),
        "step": 0,
        "epochs_completed": 0,
        "interruptions": 0,
        "started_at": START.isoformat(),
        "next": next_decision(history.state, spec(), history.now),
    }


def test_the_members_of_a_gang_are_named():
    """Also one whose launch is not that of the lead."""
    history = GangHistory(2, FREE_STORAGE)
    first, second = history.training_gang()
    history.write(
        ev.NoticeSeen(
            attempt=history.attempt, kind="termination", deadline_at=history.now + timedelta(seconds=120), member=first
        )
    )
    history.step = 10
    history.commit_shards()
    history.drained(None)
    history.after(30).lost(first)
    (third,) = history.ask(1, history.state.attempts.values()[-1].number)
    history.exist(third)
    history.ready(second, third)
    history.start_gang([second, third])
    history.meet()
    history.training()
    history.after(60).lost(third)
    found = [each.sentence for each in told(history) if each.kind in ("notice", "loss")]
    assert "of notice for member 1.0 on spot in" in found[0]
    assert f"; {third} took over after" in found[0]
    assert found[1].startswith(f"member {third} on spot in")
    assert "was taken without a notice" in found[1]
    assert len(found) == 2
