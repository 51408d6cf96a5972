"""
Which checkpoints may go. The ledger says so first, irrevocably; then their objects go, late or twice (protocol 23).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from spotrun.state import Commit, RunState

FOLDER = "checkpoints/"


def to_retire(state: RunState, keep_last: int, resume_source: int | None) -> list[int]:
    """
    The commits that nobody needs, oldest first: all before the `keep_last` newest usable ones, and what a person
    asked to prune.

    Never the newest usable one, and never what the current trainer was resumed from.
    """
    usable = [commit.number for commit in state.commits if commit.usable]
    kept = usable[-max(1, keep_last) :]
    if not kept:
        return []
    unwanted = _asked_to_prune(state, usable)
    held = [commit.number for commit in state.commits if commit.retired_at is None]
    return [number for number in held if (number < kept[0] or number in unwanted) and number != resume_source]


def _asked_to_prune(state: RunState, usable: list[int]) -> Collection[int]:
    """Of the commits before the request, all but the newest few."""
    if state.prune is None:
        return ()
    before = [number for number in usable if number < state.prune.number]
    return before[: -state.prune.keep]


def to_prune(state: RunState, keep: int) -> list[Commit]:
    """
    The commits of an ended run that go when its `keep` newest usable ones stay, oldest first.

    The final one stays too, and newer ones that are suspect: they show what went wrong.
    """
    final = None if state.terminal is None else state.terminal.final_commit
    old = set(to_retire(state, keep, final))
    held = [commit for commit in state.commits if commit.retired_at is None]
    return [commit for commit in held if commit.number in old or commit.cut_off]


def garbage(state: RunState, keys: Iterable[str], retiring: Collection[int] = ()) -> list[str]:
    """
    Of the objects below `checkpoints/`, those that will never be read: of commits that are retired, or in `retiring`,
    and what attempts uploaded without a commit before they were fenced: by the current attempt, or by the run's end.
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
