"""`spotrun chaos`"""

from __future__ import annotations

from typing import Annotated

import typer

from spotrun.cli.options import RunArgument, StoreOption
from spotrun.errors import CloudError, RunEnded
from spotrun.runs.flags import only_one, read_flag
from spotrun.runs.members import MemberOption, instance_of, member_named


def chaos(
    run: RunArgument,
    store: StoreOption = None,
    notice: Annotated[
        str | None,
        typer.Option(
            "--notice",
            metavar="DURATION",
            help="Time from the notice to the loss of the instance.",
            show_default="120s",
        ),
    ] = None,
    no_notice: Annotated[bool, typer.Option("--no-notice", help="Give no notice.")] = False,
    member: MemberOption = None,
) -> None:
    """
    Interrupt the instance that a run trains on, as a cloud interrupts a spot instance.

    Works only on the local cloud. For a run on several nodes, this interrupts the instance of rank 0, or the one that
    --member names.
    """
    from spotrun.runs.open_run import open_run
    from spotrun.units import format_duration, parse_duration

    only_one(notice=notice is not None, no_notice=no_notice)
    warning = None if no_notice else read_flag("--notice", parse_duration, notice or "120s", "--notice 120s")
    opened = open_run(run, store)
    state = opened.ledger.refresh()
    if state.terminal is not None:
        raise RunEnded(f"{opened.id} has ended ({state.terminal.outcome}): there is nothing to interrupt")
    current = state.current
    if current is None and member is None:
        raise CloudError(
            f"{opened.id} is not training now", hint=f"`spotrun events {opened.typed}` shows what it is doing"
        )
    if current is not None and member is None:
        instance_id, launch = current.instance_id, current.launch
    else:
        instance_id, launch = instance_of(opened, state, member or ""), member_named(opened, state, member or "").launch
    zone = state.launches[launch].intent.offering.zone
    opened.cloud.interrupt(opened.spec, instance_id, zone, warning)
    told = "now" if warning is None else f"with a notice of {format_duration(warning)}"
    print(f"{instance_id} will be interrupted {told}")
