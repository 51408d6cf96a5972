"""
Chooses the checkpoints to retire. A checkpoint is deleted in two steps. First, an entry in the ledger retires it, for
good. Its objects are deleted at any later time. That deletion can be repeated if it is interrupted (protocol 23).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from spotrun.run.state import Commit, RunState
from spotrun.spec.model import CheckpointSpec, KeepBestSpec
from spotrun.units import Steps

FOLDER = "checkpoints/"


def to_retire(state: RunState, rule: CheckpointSpec, resume_source: int | None) -> list[int]:
    """
    Return the commits that the run no longer needs, in the order in which to retire them. These are the commits older
    than the `keep_last` newest usable commits, and the commits that a user's prune request covers.

    The result never contains:
    - a commit that `keep_best` or `keep_every` keeps
    - the newest usable commit
    - the commit from which the current trainer resumed
    - a commit from which a remaining commit has borrowed
    - in a run that is not complete, the last commit of an earlier fit() call of the script, because each resume
      restores it
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
    Return the commits in `going`, in the order in which to retire them. Leave out each commit from which a remaining
    commit has borrowed.

    Commits from which others have borrowed come last, so that no commit is retired before those that need it. (These
    commits borrow nothing themselves.) Otherwise, older commits come first.
    """
    held = _held(state)
    needed = _lenders(commit for number, commit in held.items() if number not in going)
    lenders = _lenders(held.values())
    free = [number for number in going if held[number].event.prefix not in needed]
    return sorted(free, key=lambda number: (held[number].event.prefix in lenders, number))


def _lenders(commits: Iterable[Commit]) -> set[str]:
    return {prefix for commit in commits for prefix in commit.event.borrows}


def _asked_to_prune(state: RunState, usable: list[int]) -> Collection[int]:
    """
    Return the commits in `usable` that the user's prune request covers: all that were made before the request, except
    the newest `keep`.
    """
    if state.prune is None:
        return ()
    before = [number for number in usable if number < state.prune.number]
    return before[: -state.prune.keep]


def _best(usable: Sequence[Commit], wanted: KeepBestSpec | None) -> list[int]:
    """
    Return the best commits by metric, best first. Of several commits with equal values, return only the first.

    A metric keeps its value until it is logged again, so commits with equal values usually share one measurement. The
    first of them was made soonest after that measurement, so its weights are closest to the measured weights.
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
    """Yield the first commit at or after each multiple of `every` steps."""
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
    Return the commits that `rule` retires once a run has ended, in the order in which to retire them.

    The run's final commit is kept, and so are newer commits that are suspect, because they show what went wrong.
    """
    final = None if state.terminal is None else state.terminal.final_commit
    held = _held(state)
    going = {*to_retire(state, rule, final), *(number for number, commit in held.items() if commit.cut_off)}
    return [held[number] for number in _without_lenders(state, going)]


def garbage(state: RunState, keys: Iterable[str], retiring: Collection[int] = ()) -> list[str]:
    """
    Return the keys whose objects will never be read again. These objects belong to commits that are retired or in
    `retiring`, or to uploads that an attempt left uncommitted when it ended. All `keys` must be below `checkpoints/`.
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
