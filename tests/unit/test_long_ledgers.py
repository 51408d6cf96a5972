"""A long ledger costs no more an entry than a short one: counted in calls, so that no clock decides."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings

from benchmarks.fold import ledger
from spotrun.account.summary import summarise
from spotrun.run.billing import ZERO
from spotrun.run.events import Entry
from spotrun.run.fold import fold, replay
from spotrun.run.state import RunState
from tests.support.histories import histories

ENTRIES = 6_000


def account(entries: list[Entry]) -> object:
    return summarise(fold(entries), entries[-1].at)


def replayed(entries: list[Entry]) -> object:
    return [after.next_number for _, _, after in replay(entries)]


def calls(act: Callable[[list[Entry]], object], entries: list[Entry]) -> int:
    """How many functions, those in C included, were called."""
    count = 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        act(entries)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.exhaustive
@pytest.mark.parametrize("act", [fold, replayed, account])
def test_twice_as_many_entries_take_twice_as_many_calls(act: Callable[[list[Entry]], object]) -> None:
    whole = ledger(ENTRIES)
    half, all_of_it = calls(act, whole[: ENTRIES // 2]), calls(act, whole)
    assert all_of_it < 2.2 * half


def test_the_ledger_of_the_benchmark_has_no_entry_without_effect() -> None:
    state = fold(ledger(ENTRIES))
    assert not state.voids
    assert len(state.commits) > ENTRIES // 3
    assert min(map(len, (state.launches, state.epochs, state.restores))) > 10


@pytest.mark.exhaustive
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(histories())
def test_indexes_of_a_state_agree_with_a_full_scan(entries: list[Entry]) -> None:
    for _, _, state in replay(entries):
        check(state)


def test_the_same_where_checkpoints_borrow_of_one_another() -> None:
    for _, _, state in replay(ledger(200)):
        check(state)
    assert any(commit.retired_at for commit in state.commits)
    assert state.borrowers


def check(state: RunState) -> None:
    launches = state.launches.values()
    assert state.pending_launch == next((each for each in reversed(launches) if each.pending), None)
    assert state.reserved_usd() == sum((each.reserved_usd(state.created.billing) for each in launches), ZERO)
    kept = [commit for commit in state.commits if not commit.cut_off]
    if kept:
        assert kept[-1].step_reached == max(commit.event.step for commit in kept)
    if state.epochs:
        assert state.epochs[-1].step_reached == max(epoch.event.step for epoch in state.epochs)
    assert all(state.commit(commit.number) is commit for commit in state.commits)
    borrowed = {prefix for commit in state.commits if commit.retired_at is None for prefix in commit.event.borrows}
    assert set(state.borrowers) == borrowed
    for prefix, numbers in state.borrowers.items():
        holders = [each.number for each in state.commits if each.retired_at is None and prefix in each.event.borrows]
        assert numbers[-1] == holders[-1]
