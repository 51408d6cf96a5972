"""
Runs whose service account Compute Engine does not know yet, or no longer: each run has an account of its own, and a new
one "can take 60 seconds or more" to be usable (https://cloud.google.com/iam/docs/service-accounts-create).
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from spotrun.clouds.identities import SETTLES_WITHIN
from spotrun.run.events import Cause
from tests.support.gce_answers import Failure, Refusal, account_denied, account_unknown
from tests.support.gce_catalog import PROJECT
from tests.support.gcp_accidents import INSERT
from tests.support.memory_run import UID
from tests.support.plain_gcp_run import PlainGcpRun
from tests.support.plain_google import LISTS, Trouble

EMAIL = f"spotrun-{UID}@{PROJECT}.iam.gserviceaccount.com"
UNKNOWN = account_unknown(EMAIL)
FIELD = f"Invalid value for field 'resource.serviceAccounts[0].email': '{EMAIL}'."
ACT_AS = "iam.serviceAccounts.actAs"
FORMS: dict[str, Trouble] = {
    "operation": UNKNOWN,
    "operation without a status": UNKNOWN._replace(status=0),
    "operation, one of": UNKNOWN._replace(message=UNKNOWN.message.replace(EMAIL, f"One of [{EMAIL}]")),
    "operation, external": UNKNOWN._replace(code="EXTERNAL_RESOURCE_NOT_FOUND"),
    "operation, invalid": Failure("INVALID_FIELD_VALUE", f"{FIELD} The service account does not exist.", 400),
    "operation, denied": account_denied(EMAIL),
    "operation, forbidden": Failure("PERMISSIONS_ERROR", f"Required '{ACT_AS}' permission for '{EMAIL}'", 403),
    "answer 404": Refusal(404, "notFound", UNKNOWN.message),
    "answer 404, by its address": Refusal(404, "notFound", f"The resource '{EMAIL}' was not found"),
    "answer 400": Refusal(400, "invalid", FIELD),
    "answer 400, does not exist": Refusal(400, "badRequest", f'Service account "{EMAIL}" does not exist.'),
    "answer 403": Refusal(403, "forbidden", f"Permission '{ACT_AS}' denied on {EMAIL} (or it may not exist)."),
}
SETTLED_AFTER = timedelta(seconds=100)
TRAINS_AFTER_S = 130


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> PlainGcpRun:
    return PlainGcpRun(monkeypatch)


def trains_by_one_launch(run: PlainGcpRun) -> None:
    assert run.trains_within(TRAINS_AFTER_S + run.google.stale.total_seconds()), run.state.terminal
    assert len(run.state.launches) == 1
    run.goes_on(60)
    run.completes()
    assert run.ends_within(240)
    assert run.misbooked() == []
    assert run.left_behind == []


@pytest.mark.parametrize("form", FORMS)
def test_launch_waits_for_its_account_whatever_the_words_of_google(run: PlainGcpRun, form: str) -> None:
    run.fails(INSERT, FORMS[form], SETTLED_AFTER.total_seconds())
    trains_by_one_launch(run)


@pytest.mark.parametrize("stale", [timedelta(), timedelta(seconds=60)], ids=["lists are right", "lists are late"])
def test_account_known_after_100_s_costs_time_and_one_launch(run: PlainGcpRun, stale: timedelta) -> None:
    run.google.stale = stale
    run.google.accounts.after = SETTLED_AFTER
    trains_by_one_launch(run)
    assert len(run.account.rented) == 1


def test_two_runners_wait_for_one_account_and_rent_one_instance(run: PlainGcpRun) -> None:
    run.google.accounts.after = SETTLED_AFTER
    run.has_beside = run.new_runner()
    trains_by_one_launch(run)
    assert len(run.account.rented) == 1


def test_runner_that_replaces_another_waits_on_with_the_same_launch(run: PlainGcpRun) -> None:
    run.google.accounts.after = SETTLED_AFTER
    run.goes_on(50)
    run.runner = run.new_runner()
    trains_by_one_launch(run)


def test_account_that_vanishes_is_made_again_for_the_next_launch(run: PlainGcpRun) -> None:
    assert run.trains_within(60)
    run.google.accounts.after = SETTLED_AFTER
    run.goes_on(60)
    run.google.iam.accounts.clear()
    run.is_interrupted()
    assert run.trains_within(TRAINS_AFTER_S), run.state.terminal
    assert [*run.google.iam.accounts] == [EMAIL]
    assert len(run.state.launches) == 2


@pytest.mark.parametrize("denial", ["answer 403", "operation, denied"])
def test_account_that_vanishes_is_made_again_where_google_only_denies_its_use(run: PlainGcpRun, denial: str) -> None:
    """Of an account that is not there Google says to a caller that its use is denied, "or it may not exist"."""
    trouble, accounts = FORMS[denial], run.google.iam.accounts
    run.google.fault = lambda call: trouble if call == INSERT and not accounts else None
    assert run.trains_within(60)
    run.goes_on(60)
    accounts.clear()
    run.is_interrupted()
    assert run.trains_within(TRAINS_AFTER_S), run.state.terminal
    assert len(run.state.launches) == 2


@pytest.mark.parametrize(("form", "cause"), [("operation", Cause.EXTERNAL), ("answer 403", Cause.ACCESS)])
def test_account_unknown_for_longer_than_any_takes_fails_the_run_with_its_name(
    run: PlainGcpRun, form: str, cause: Cause
) -> None:
    run.fails(INSERT, FORMS[form], SETTLES_WITHIN.total_seconds() * 10)
    run.goes_on(SETTLES_WITHIN.total_seconds() - 10)
    assert [each.closed for each in run.state.launches.values()] == [None]
    run.goes_on(120)
    terminal = run.state.terminal
    assert terminal is not None
    assert (terminal.outcome, terminal.cause) == ("failed", cause)
    assert EMAIL in terminal.detail


def test_late_answer_of_a_launch_that_another_runner_repeated_ends_no_instance(run: PlainGcpRun) -> None:
    """The second runner sees old lists, so Google gives it the answer that the first one had long ago."""
    run.google.accounts.after = timedelta(seconds=20)
    run.goes_on(10)
    assert run.google.counts[LISTS[0]]
    assert run.trains_within(60)
    (name,) = run.account.alive
    run.google.stale = timedelta(hours=1)
    run.has_beside = run.new_runner()
    run.goes_on(60)
    assert run.account.alive == [name]
