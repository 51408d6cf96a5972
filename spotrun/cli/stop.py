"""`spotrun stop`"""

from __future__ import annotations

from spotrun.cli.options import RunArgument, StoreOption


def stop(run: RunArgument, store: StoreOption = None) -> None:
    """
    Commit a last checkpoint, then end a run.

    A command without checkpoints gets SIGTERM instead, and has 30 s to end. A full store takes no last checkpoint.
    `spotrun resume` carries it on.
    """
    from spotrun.cli.interrupts import request_stop
    from spotrun.cli.runs import open_run

    opened = open_run(run, store)
    if request_stop(opened):
        print(f"{opened.id} was asked to stop; its runner ends it, or `spotrun down {opened.typed}` does at once")
    else:
        print(f"{opened.id} has ended already, or was asked before")
