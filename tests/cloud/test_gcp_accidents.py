"""
Each call that a runner makes to Google, with each kind of error: once, for half a minute, and from then on for ever.

What a runner reads around a run may make its view poorer, and may never end it. `make battery NAME=accidents` goes
through all codes, and through all ways of each.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from spotrun.errors import AccessDenied
from spotrun.instance import EndedBy
from spotrun.offering import CapacityType
from spotrun.run.events import Cause
from tests.support import accidents, gcp_accidents
from tests.support.accidents import FOR_EVER_S, HALF_A_MINUTE_S
from tests.support.gce_answers import DELETED_WHILE_MADE, Failure, account_denied
from tests.support.gcp_accidents import CALLS, DELETE, INSERT, errors_of
from tests.support.plain_gcp_run import PlainGcpRun
from tests.support.plain_google import LISTS, LOGIN, Trouble

KINDS = ("403 forbidden", "403 rate", "404", "409", "503", "502 HTML", "garbage", "lost", "hangs", "400 unheard of")
"""One for each way in which errors are met."""
WAYS = (
    accidents.passes,
    accidents.passes_for_a_new_runner,
    accidents.passes_in_a_notice,
    accidents.passes_after_a_week,
)
Way = Callable[[PlainGcpRun, str, Trouble, float], bool]
EACH = [(call, kind) for call, kind in product(CALLS, KINDS) if kind in errors_of(call)]
HOWS = [(WAYS[at % len(WAYS)], call, kind) for at, (call, kind) in enumerate(EACH)]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> PlainGcpRun:
    return gcp_accidents.new_run(monkeypatch)


# -- operations --------------------------------------------------------------------------------------------------------

TRANSIENT = ("RESOURCE_OPERATION_RATE_EXCEEDED", "RESOURCE_NOT_READY", "RESOURCE_ALREADY_EXISTS", "INTERNAL_ERROR")


@pytest.mark.parametrize("code", TRANSIENT)
def test_an_operation_that_fails_for_a_while_is_no_fault_of_its_instances(run: PlainGcpRun, code: str) -> None:
    """Three in a row that end by a fault before they train fail a run, and these come three in half a minute."""
    run.fails(INSERT, Failure(code, status=503), HALF_A_MINUTE_S)
    assert run.trains_within(240), run.state.terminal
    failed = [launch.gone for launch in run.state.launches.values() if launch.gone is not None]
    assert {each.ended_by for each in failed} <= {EndedBy.CLOUD}
    run.goes_on(60)
    assert run.misbooked() == []


def test_p14_an_account_that_settles_late_costs_time_and_no_launch_on_demand(run: PlainGcpRun) -> None:
    run.fails(INSERT, account_denied("spotrun-fedcba9876@acme-training.iam.gserviceaccount.com"), 100)
    assert run.trains_within(240), run.state.terminal
    launches = [*run.state.launches.values()]
    assert {launch.intent.offering.capacity_type for launch in launches} == {CapacityType.SPOT}


@pytest.mark.parametrize("keeps", [False, True], ids=["nothing there", "instance there"])
def test_unknown_operation_error_ends_no_runner(run: PlainGcpRun, keeps: bool) -> None:
    accidents.stays(run, INSERT, Failure("NEVER_HEARD_OF", keeps=keeps))


def test_instance_deleted_while_it_is_created_is_requested_again(run: PlainGcpRun) -> None:
    """Three times in a row it would be somebody's will: https://github.com/piercefreeman/cloud-gpu-reliability/pull/5."""
    accidents.passes(run, INSERT, DELETED_WHILE_MADE, 0.0)


@pytest.mark.parametrize("kind", ["403 forbidden", "403 quota", "409", "reason IP_SPACE_EXHAUSTED", "hangs"])
@pytest.mark.parametrize("call", ["compute.instances.get", "compute.zoneOperations.get"])
def test_a_look_that_fails_refuses_no_launch_that_was_accepted(run: PlainGcpRun, call: str, kind: str) -> None:
    run.fails(call, errors_of(call)[kind], FOR_EVER_S)
    assert run.trains_within(150), run.state.terminal
    assert len(run.state.launches) == len(run.account.rented) == 1


def test_g12_a_delete_that_did_nothing_ends_no_meter(run: PlainGcpRun) -> None:
    accidents.passes(run, DELETE, errors_of(DELETE)["operation without effect"], HALF_A_MINUTE_S)


@pytest.mark.parametrize("kind", ["operation INTERNAL_ERROR", "operation without effect", "404"])
def test_g12_an_instance_that_outlives_its_deletion_is_reported(run: PlainGcpRun, kind: str) -> None:
    """It has switched itself off, so its disk alone is billed. The run has not ended until that is gone."""
    accidents.is_never_mended(run, DELETE, errors_of(DELETE)[kind])
    told = [tick.remark for tick in run.ticks if tick.remark and "still exists" in tick.remark]
    assert told != []
    assert ("INTERNAL_ERROR" in told[-1]) is (kind == "operation INTERNAL_ERROR")


def test_while_instances_cannot_be_listed_prices_and_places_are_not_asked_for(run: PlainGcpRun) -> None:
    """A project that is throttled needs fewer calls, not more: what surrounds instances is read every ten minutes."""
    assert run.trains_within(60)
    run.fails(LISTS[0], errors_of(LISTS[0])["403 rate"], FOR_EVER_S)
    run.goes_on(60)
    before = run.is_asked("compute.images.getFromFamily")
    run.goes_on(1300)
    assert run.is_asked("compute.images.getFromFamily") == before
    assert run.training is not None


# -- every call, every kind -------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize(("call", "kind"), EACH[::17])
def test_an_error_that_comes_once_ends_nothing(run: PlainGcpRun, call: str, kind: str) -> None:
    accidents.passes(run, call, errors_of(call)[kind], 0.0)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("way", "call", "kind"), HOWS[::7])
def test_an_error_that_passes_ends_nothing(run: PlainGcpRun, way: Way, call: str, kind: str) -> None:
    way(run, call, errors_of(call)[kind], HALF_A_MINUTE_S)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("call", "kind"), EACH[1::17])
def test_lasting_error_ends_no_runner_and_no_training_and_is_reported(run: PlainGcpRun, call: str, kind: str) -> None:
    accidents.stays(run, call, errors_of(call)[kind])


@pytest.mark.exhaustive
@pytest.mark.parametrize("call", CALLS)
def test_run_completes_despite_a_lasting_error(run: PlainGcpRun, call: str) -> None:
    accidents.is_never_mended(run, call, errors_of(call)["401" if call == LOGIN else "403 forbidden"])


@pytest.mark.exhaustive
@pytest.mark.parametrize("call", [call for call in CALLS if call != LOGIN])
def test_a_project_that_forbids_a_call_from_the_start_on_says_so(run: PlainGcpRun, call: str) -> None:
    """It is the run that fails, not its runner; or the run goes without what it may not ask for."""
    accidents.is_there_from_the_start(run, call, errors_of(call)["403 forbidden"], by_itself=False)
    terminal = run.state.terminal
    if terminal is not None and terminal.outcome == "failed":
        assert terminal.cause is Cause.ACCESS
        assert "grant the roles of infra/gcp" in terminal.detail


@pytest.mark.parametrize(("call", "kind"), [*((call, "403 forbidden") for call in LISTS), (LOGIN, "nobody")])
def test_missing_right_to_list_is_reported_at_the_first_listing(run: PlainGcpRun, call: str, kind: str) -> None:
    run.fails(call, errors_of(call)[kind], FOR_EVER_S)
    with pytest.raises(AccessDenied) as raised:
        run.goes_on(10)
    assert raised.value.hint


def test_undeletable_instance_is_reported_and_its_disk_is_billed_until_it_is_deleted(run: PlainGcpRun) -> None:
    """Its machine has switched itself off, and costs nothing any more."""
    assert run.trains_within(60)
    fault = run.fails(DELETE, errors_of(DELETE)["403 forbidden"], FOR_EVER_S)
    run.goes_on(60)
    run.completes()
    run.goes_on(1800)
    assert not run.ticks[-1].done
    assert "cannot be ended" in (run.ticks[-1].remark or "")
    assert run.misbooked() == []
    fault.ends()
    assert run.ends_within(60)
    assert run.misbooked() == []
    assert run.left_behind == []


def test_a_run_makes_each_of_these_calls_and_no_others(run: PlainGcpRun) -> None:
    assert run.trains_within(60)
    run.runner = run.new_runner()
    accidents.passes_in_a_notice(run, DELETE, errors_of(DELETE)["503"], 0.0)
    assert {*run.account.counts} == {*CALLS}


@pytest.mark.parametrize("call", ["iam.projects.serviceAccounts.get", "iam.projects.serviceAccounts.delete"])
def test_identity_that_iam_still_shows_after_a_404_is_reported_as_left(run: PlainGcpRun, call: str) -> None:
    accidents.passes(run, call, errors_of(call)["404"], 0.0)
    assert "spotrun reap" in (run.ticks[-1].remark or "")
    assert run.account.identities_left != []
