"""Finds the gang member that the user named on the command line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from spotrun.errors import RunNotFound

if TYPE_CHECKING:
    from spotrun.run.gang import MemberName
    from spotrun.run.state import RunState
    from spotrun.runs.open_run import OpenRun

MemberOption = Annotated[
    str | None,
    typer.Option("--member", metavar="LAUNCH.N", help="The node, if a run has several. `spotrun events` names them."),
]
NAMED_MAX = 16
_NAME = re.compile(r"(\d{1,15})\.(\d{1,2})", re.ASCII)


def member_named(run: OpenRun, state: RunState, text: str) -> MemberName:
    """
    Return the name of the member that the user typed as `text`.

    Raises:
        RunNotFound: the run has no such member.
    """
    from spotrun.run.gang import MemberName

    known = [*state.names()]
    found = _NAME.fullmatch(text)
    name = None if found is None else MemberName(int(found[1]), int(found[2]))
    if name is None or name not in known:
        newest = ", ".join(map(str, known[-NAMED_MAX:]))
        advice = (
            f"its newest members are {newest}" if known else f"`spotrun events {run.typed}` shows what it waits for"
        )
        raise RunNotFound(f"{run.id} has no member {text}", hint=advice)
    return name


def instance_of(run: OpenRun, state: RunState, text: str) -> str:
    """
    Return the id of a member's instance.

    Raises:
        RunNotFound: the run does not have this member, or the member has no instance yet.
    """
    return _recorded(run, state, member_named(run, state, text))


def living_instance_of(run: OpenRun, state: RunState, text: str) -> str:
    """
    Return the id of a member's instance. According to the ledger, the instance has not ended.

    Raises:
        RunNotFound: the run does not have this member, or the member's instance does not exist yet or has ended.
    """
    from spotrun.report.describe import timestamp

    name = member_named(run, state, text)
    gone = state.member(name).gone
    if gone is not None:
        living = [str(other) for other in state.names() if _lives(state, other)]
        advice = f"its running members are {', '.join(living)}" if living else f"see `spotrun why {run.typed}`"
        raise RunNotFound(f"member {name} of {run.id} ended at {timestamp(gone.ended_at)}", hint=advice)
    return _recorded(run, state, name)


def _recorded(run: OpenRun, state: RunState, name: MemberName) -> str:
    recorded = state.member(name).recorded
    if recorded is None:
        raise RunNotFound(f"member {name} of {run.id} has no instance yet", hint=f"see `spotrun events {run.typed}`")
    return recorded.instance_id


def _lives(state: RunState, name: MemberName) -> bool:
    member = state.member(name)
    return member.recorded is not None and member.gone is None
