"""`spotrun resume`"""

from __future__ import annotations

from typing import Annotated

import typer

from spotrun.cli.options import DetachOption, RunArgument, StoreOption, YesOption
from spotrun.errors import SpecInvalid


def resume(
    run: RunArgument,
    store: StoreOption = None,
    yes: YesOption = False,
    detach: DetachOption = False,
    foreground: Annotated[bool, typer.Option("--foreground", hidden=True)] = False,
) -> None:
    """
    Continue a run that lost its runner, was stopped or failed.

    The run trains the code that `spotrun launch` uploaded. To train changed code, launch a new run.

    If the run was launched on another machine, the command first asks for confirmation, once per machine.

    If the run is complete, the command only makes sure that all instances have ended and that the bill is final.
    """
    from spotrun.account.summary import summarise
    from spotrun.folder.attendance import other_runner, process_of
    from spotrun.run.events import ResumeRequested
    from spotrun.run.state import RunState
    from spotrun.runs import attend
    from spotrun.runs.asking import say
    from spotrun.runs.background import leave_behind
    from spotrun.runs.known import require_known
    from spotrun.runs.notifying import notifying
    from spotrun.runs.open_run import open_run, who

    opened = open_run(run, store, "runner")
    opened.ledger.refresh()
    if opened.created.is_bench:
        raise SpecInvalid(
            f"{opened.id} is a measurement of a `spotrun bench` that has ended",
            hint=f"to repeat it, run the bench again; `spotrun down {opened.typed}` ends any instance that is left",
        )
    require_known(opened, yes)

    def reopen(state: RunState) -> ResumeRequested | None:
        ended = state.terminal is not None and state.terminal.outcome != "completed"
        return ResumeRequested(by=who()) if ended or (state.terminal is None and state.stop_requested) else None

    if not foreground:
        if (why := attend.fails_again(opened)) is not None:
            say(f"note: {why}")
        opened.ledger.append(reopen)
    state = opened.ledger.state
    completed = state.terminal is not None and state.terminal.outcome == "completed"
    if completed and all(launch.settled for launch in state.launches.values()):
        with notifying(opened) as notifier:
            notifier.show(opened.ledger.entries)
        print(f"{opened.id} is complete; see `spotrun report {opened.typed}`")
        attend.check_limits(opened.spec, summarise(state, opened.clock.now()))
        return
    if not foreground and (differs := attend.changed_script(opened)) is not None:
        say(f"note: {differs}")
    if not foreground and (other := other_runner(opened.store, opened.clock)) is not None:
        say(f"note: {process_of(other)} takes care of the run; this process watches, and takes over if that one ends")
    if detach:
        leave_behind(opened)
        return
    attend.attend(opened, background=foreground)
