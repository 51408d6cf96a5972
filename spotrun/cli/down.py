"""`spotrun down`"""

from __future__ import annotations

from spotrun.cli.options import RunArgument, StoreOption, YesOption

DOWN_WITHIN_S = 60.0
"""System time."""


def down(run: RunArgument, store: StoreOption = None, yes: YesOption = False) -> None:
    """End a run and its instances now, without a last checkpoint."""
    import time

    from spotrun.cli import attend
    from spotrun.cli.wiring import open_run
    from spotrun.errors import CloudUnavailable

    opened = open_run(run, store)
    attend.confirm(yes)
    attend.request_stop(opened)
    deadline = time.monotonic() + DOWN_WITHIN_S
    while time.monotonic() < deadline:
        for instance in opened.cloud.list(opened.created.uid):
            if instance.alive:
                opened.cloud.terminate(instance.instance_id)
        if opened.runner.tick().done:
            print(f"{opened.id} is down; nothing of it is left running")
            return
    raise CloudUnavailable(f"{opened.id} is not down after a minute", hint="repeat, or look at `spotrun events`")
