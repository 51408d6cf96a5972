"""
Which checkpoints may go. The ledger says so first, irrevocably; then their objects go, late or twice (protocol 23).
"""

from __future__ import annotations

from spotrun.state import RunState

FOLDER = "checkpoints/"


def to_retire(state: RunState, keep_last: int, resume_source: int | None) -> list[int]:
    """
    The commits that nobody needs, oldest first: all before the `keep_last` newest usable ones.

    Never the newest usable one, and never what the current trainer was resumed from.
    """
    usable = [commit.number for commit in state.commits if commit.usable]
    kept = usable[-max(1, keep_last) :]
    if not kept:
        return []
    held = [commit.number for commit in state.commits if commit.retired_at is None and commit.number < kept[0]]
    return [number for number in held if number != resume_source]


def garbage(state: RunState, keys: list[str]) -> list[str]:
    """
    Of the objects below `checkpoints/`, those that will never be read: of retired commits, and what attempts before
    the current one uploaded without a commit.
    """
    if state.current_attempt is None:
        return []
    retired = {commit.event.prefix for commit in state.commits if commit.retired_at is not None}
    committed = {commit.event.prefix for commit in state.commits}
    fenced = [f"{FOLDER}{attempt}-" for attempt in state.attempts if attempt < state.current_attempt]

    def is_garbage(key: str) -> bool:
        prefix = key.rpartition("/")[0]
        return prefix in retired or (prefix not in committed and key.startswith(tuple(fenced)))

    return [key for key in keys if is_garbage(key)]
