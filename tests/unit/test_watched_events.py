"""What whoever watches a run reads of refusals: each once and in a few words; `events` and `why` have them in full."""

from __future__ import annotations

from spotrun.report.describe import event_line
from spotrun.report.next_decision import next_decision
from spotrun.report.watched import watched_line
from spotrun.report.why import decisions
from spotrun.run import events as ev
from spotrun.run.events import Cause
from spotrun.run.reasons import BRIEF_MAX
from tests.support.decisions import spec
from tests.support.histories import History, offering

REASON = "QUOTA_EXCEEDED: Quota 'GPUS_ALL_REGIONS' exceeded. Limit: 0.0 globally. " + "It is said at length. " * 20
ADVICE = "request an increase at https://console.cloud.google.com/iam-admin/quotas"


def refused(history: History, zone: str, cause: Cause = Cause.QUOTA) -> str:
    """Returns what the ledger says of it."""
    asked = offering(zone=zone)
    launch = history.launch(zone=zone)
    detail = f"Google refused to launch {asked}: {REASON}\n  try: {ADVICE}"
    history.after(3).write(ev.LaunchClosed(launch=launch, cause=cause, detail=detail, refused=True))
    return detail


def watched(history: History) -> list[str]:
    return [watched_line(entry, history.state) for entry in history.entries]


def test_refusal_is_shown_briefly_and_not_repeated_for_another_zone() -> None:
    history = History()
    for zone in ("local-a", "local-b", "local-c"):
        refused(history, zone)
    lines = [line for line in watched(history) if "given up" in line]
    assert "given up (quota): Google refused to launch it: QUOTA_EXCEEDED: Quota 'GPUS_ALL_REGIONS'" in lines[0]
    assert all(len(line) <= BRIEF_MAX + 60 for line in lines), lines
    assert all(line.endswith("given up (quota): refused for the same reason as launch 1") for line in lines[1:])
    assert ADVICE not in "".join(lines)


def test_events_and_why_have_the_whole_text_and_what_comes_next_has_not() -> None:
    history = History()
    refused(history, "local-a")
    whole = " ".join(REASON.split())
    assert whole in event_line(history.entries[-1], {})
    assert whole in decisions(history.entries, spec())[-1].sentence
    assert ADVICE in decisions(history.entries, spec())[-1].sentence
    coming = next_decision(history.state, spec(), history.now)
    assert "a quota is full (Google refused to launch it: QUOTA_EXCEEDED: " in coming
    assert len(coming) < 400
    assert ADVICE not in coming


def test_a_run_that_a_refusal_ends_does_not_repeat_it() -> None:
    history = History()
    detail = refused(history, "local-a", Cause.ACCESS)
    history.write(ev.RunFailed(cause=Cause.ACCESS, detail=detail))
    assert watched(history)[-1].endswith("run failed (access): launch 1 was refused")
    assert " ".join(REASON.split()) in event_line(history.entries[-1], {})


def test_a_run_that_fails_for_another_reason_says_it() -> None:
    history = History()
    refused(history, "local-a")
    history.write(ev.RunFailed(cause=Cause.USER_ERROR, detail="the training fails again and again"))
    assert "the training fails again and again" in watched(history)[-1]
