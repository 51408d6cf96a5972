"""
Chooses the checkpoints to retire. The ledger retires them first, irrevocably; then their objects are deleted, late or
twice (protocol 23).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from spotrun.run.state import Commit, RunState
from spotrun.spec.model import CheckpointSpec, KeepBestSpec
from spotrun.units import Steps

FOLDER = "checkpoints/"


def to_retire(state: RunState, rule: CheckpointSpec, resume_source: int | None) -> list[int]:
    """
    Return the commits that the run no longer needs, oldest first: all before the `keep_last` newest usable ones, and
    those that a user's prune request names. `keep_best` and `keep_every` keep theirs.

    Never the newest usable one, never the one that the current trainer resumed from, and never one from which a commit
    that stays has borrowed. Until the run is complete, never one with which an earlier fit() ended: each resume
    restores it.
    """
    usable = [commit for commit in state.commits if commit.usable]
    newest = [commit.number for commit in usable[-max(1, rule.keep_last) :]]
    if not newest:
        return []
    unwanted = _asked_to_prune(state, [commit.number for commit in usable])
    ends = [] if _is_complete(state) else state.ends_before(usable[-1])
    kept = {
        resume_source,
        *(end.number for end in ends),
        *_best(usable, rule.keep_best),
        *_milestones(usable, rule.keep_every),
    }
    return _without_lenders(
        state, {number for number in _held(state) if (number < newest[0] or number in unwanted) and number not in kept}
    )


def _is_complete(state: RunState) -> bool:
    return state.terminal is not None and state.terminal.outcome == "completed"


def _held(state: RunState) -> dict[int, Commit]:
    return {commit.number: commit for commit in state.commits if commit.retired_at is None}


def _without_lenders(state: RunState, going: Collection[int]) -> list[int]:
    """
    Return those of `going` from which no commit that stays has borrowed; a lender is sent whole and never borrows
    itself.

    Oldest first, but a commit that borrows parts goes before the one that lends them.
    """
    held = _held(state)
    needed = _lenders(commit for number, commit in held.items() if number not in going)
    lenders = _lenders(held.values())
    free = [number for number in going if held[number].event.prefix not in needed]
    return sorted(free, key=lambda number: (held[number].event.prefix in lenders, number))


def _lenders(commits: Iterable[Commit]) -> set[str]:
    """Return the prefixes from which any of them has borrowed."""
    return {prefix for commit in commits for prefix in commit.event.borrows}


def _asked_to_prune(state: RunState, usable: list[int]) -> Collection[int]:
    """Return all but the newest few of the commits before the request."""
    if state.prune is None:
        return ()
    before = [number for number in usable if number < state.prune.number]
    return before[: -state.prune.keep]


def _best(usable: Sequence[Commit], wanted: KeepBestSpec | None) -> list[int]:
    """
    Rank by metric, the best first; of each value the first commit that has it.

    A metric stays as it was logged until it is logged again, so the first commit is the nearest to the weights that
    it was measured with.
    """
    if wanted is None:
        return []
    first: dict[float, int] = {}
    for commit in usable:
        value = commit.event.metrics.get(wanted.metric)
        if value is not None:
            first.setdefault(value, commit.number)
    ranked = sorted(first, reverse=wanted.mode == "max")
    return [first[value] for value in ranked[: wanted.count]]


def _milestones(usable: Sequence[Commit], every: Steps | None) -> Iterator[int]:
    """Yield the first commit of each stretch of `every` steps, from the second stretch on."""
    if every is None:
        return
    passed = 0
    for commit in usable:
        reached = commit.event.step // every.count
        if reached > passed:
            passed = reached
            yield commit.number


def to_prune(state: RunState, rule: CheckpointSpec) -> list[Commit]:
    """
    Return the commits of an ended run that go by `rule`, oldest first.

    The final one stays too, and newer ones that are suspect: they show what went wrong.
    """
    final = None if state.terminal is None else state.terminal.final_commit
    held = _held(state)
    going = {*to_retire(state, rule, final), *(number for number, commit in held.items() if commit.cut_off)}
    return [held[number] for number in _without_lenders(state, going)]


def garbage(state: RunState, keys: Iterable[str], retiring: Collection[int] = ()) -> list[str]:
    """
    Return, of the objects below `checkpoints/`, those that will never be read: objects of commits that are retired, or
    in `retiring`, and uploads without a commit of attempts that were fenced: by the current attempt, or by the run's
    end.
    """
    if state.current_attempt is None and state.terminal is None:
        return []
    retired = {
        commit.event.prefix for commit in state.commits if commit.retired_at is not None or commit.number in retiring
    }
    committed = {commit.event.prefix for commit in state.commits}
    fenced = [f"{FOLDER}{attempt}-" for attempt in state.attempts if attempt != state.current_attempt]

    def is_garbage(key: str) -> bool:
        prefix = key.rpartition("/")[0]
        return prefix in retired or (prefix not in committed and key.startswith(tuple(fenced)))

    return [key for key in keys if is_garbage(key)]
