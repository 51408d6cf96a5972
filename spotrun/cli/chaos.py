"""`spotrun chaos`"""

from __future__ import annotations

from typing import Annotated

import typer

from spotrun.cli.options import RunArgument, StoreOption, read_flag
from spotrun.errors import CloudError


def chaos(
    run: RunArgument,
    store: StoreOption = None,
    notice: Annotated[
        str, typer.Option("--notice", metavar="DURATION", help="How long before the loss to warn.")
    ] = "120s",
    no_notice: Annotated[bool, typer.Option("--no-notice", help="Give no warning.")] = False,
) -> None:
    """
    Interrupt the instance that a run trains on, as a spot market would.

    Works on the local cloud only.
    """
    from spotrun.cli.runs import open_run
    from spotrun.units import parse_duration

    opened = open_run(run, store)
    current = opened.ledger.refresh().current
    if current is None:
        raise CloudError(f"{opened.id} is training nowhere just now", hint=f"see `spotrun events {opened.id}`")
    warning = None if no_notice else read_flag("--notice", parse_duration, notice, "--notice 120s")
    opened.cloud.interrupt(current.instance_id, warning)
    print(f"{current.instance_id} will be interrupted " + ("now" if warning is None else f"with a notice of {notice}"))
