"""
The fold that computes the state of a run from its entries alone.

`begin` makes the first state from entry 0, and `apply` adds one entry. `apply` checks the preconditions of the entry's
event. A program checks them before it writes an entry (protocol 3), but another program may write an entry in between.
An entry that breaks a precondition is *void*: it stays in the ledger, and has no effect. All programs check the same
entries in the same order. So if two programs write conflicting entries, all programs agree on which of the two is void.

Folding a ledger in two parts gives the same state as folding it all at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace
from pyrsistent import pvector

from spotrun.run import events as ev
from spotrun.run.effects import EFFECTS
from spotrun.run.events import Entry
from spotrun.run.preconditions import check, check_first, check_run
from spotrun.run.refusal import Refusal
from spotrun.run.state import RunState, Void


def begin(entry: Entry) -> RunState:
    """
    Return the state after entry 0.

    Raises:
        Refusal: `entry` does not create a run, for the reason in the message.
    """
    assert entry.number == 0, f"a fold began at entry {entry.number}"
    created = check_first(entry)
    return RunState(created=created, created_at=entry.at, opened_at=entry.at, entry_times=pvector([entry.at]))


def fold(entries: Iterable[Entry], start: RunState | None = None) -> RunState:
    """
    Return the state after all these entries. If `start` is given, the entries continue that state. Otherwise, the
    entries must begin with entry 0.
    """
    rest = iter(entries)
    state = start or begin(next(rest))
    for entry in rest:
        state = apply(state, entry)
    return state


def apply(state: RunState, entry: Entry) -> RunState:
    """Return the state after one more entry, whose number must be the next one."""
    assert entry.number == state.next_number, f"entry {entry.number} folded at {state.next_number}"
    reason = refusal(state, entry)
    counted = replace(state, next_number=entry.number + 1, entry_times=state.entry_times.append(entry.at))
    if reason is not None:
        return _void(counted, entry.number, ev.kind(entry.event), reason)
    return EFFECTS[type(entry.event)](counted, entry, entry.event)


def apply_malformed(state: RunState, number: int, reason: str = "not a well-formed entry", kind: str = "?") -> RunState:
    """
    Return the state after reading an object that is stored under an entry's number but is not an entry of this run. The
    object only occupies its number, and has no other effect.
    """
    assert number == state.next_number
    return _void(replace(state, next_number=number + 1), number, kind, reason)


def refusal(state: RunState, entry: Entry) -> str | None:
    """Return the reason why this entry would be void after `state`; None if it would be accepted."""
    try:
        check_run(state, entry)
        check(state, entry.event)
    except Refusal as reason:
        return str(reason)
    except ArithmeticError:
        return "a total that includes the entry's figures cannot be computed"
    return None


def replay(entries: Iterable[Entry]) -> Iterator[tuple[RunState, Entry, RunState]]:
    """
    Yield three things for each entry that has an effect: the state before the entry, the entry, and the state after it.
    There is no state before entry 0, so for entry 0 both are the state after it.
    """
    state: RunState | None = None
    for entry in entries:
        if state is None:
            state = begin(entry)
            yield state, entry, state
            continue
        while state.next_number < entry.number:
            state = apply_malformed(state, state.next_number)
        before, state = state, apply(state, entry)
        if len(state.voids) == len(before.voids):
            yield before, entry, state


def _void(state: RunState, number: int, kind: str, reason: str) -> RunState:
    return replace(state, voids=state.voids.append(Void(number=number, kind=kind, reason=reason)))
