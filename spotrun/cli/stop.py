"""`spotrun stop`"""

from __future__ import annotations

from spotrun.cli.options import RunOrNewest, StoreOption, YesOption


def stop(run: RunOrNewest = None, store: StoreOption = None, yes: YesOption = False) -> None:
    """
    Save a last checkpoint of a run, then end the run.

    A job that is a command without checkpoints gets SIGTERM instead, and has 30 s to exit. If the store is full, no
    last checkpoint is saved. `spotrun resume` continues the run.

    If RUN is the name of a sweep, all of its runs stop, and no further trial begins. If no RUN is given, the command
    asks for confirmation.
    """
    from spotrun.folder.status_objects import RUNNER_KEY, RunnerStatus, read_status
    from spotrun.report.tables import plain
    from spotrun.report.unattended import left_alone
    from spotrun.runs.asking import confirm
    from spotrun.runs.interrupts import request_stop
    from spotrun.runs.open_run import attended, open_run, or_newest_here
    from spotrun.runs.sweeps import sweep_meant

    sweep = None if run is None else sweep_meant(run, store)
    if sweep is not None:
        sweep.request_stop()
        asked = [each.id for each in sweep.stop_all()]
        print(f"{run} has a request to stop: {', '.join(asked) or 'all its runs have ended'}; no further trial begins")
        return
    opened = open_run(or_newest_here(run, store), store, to_end=True)
    if run is None:
        ended = opened.ledger.refresh().terminal is not None
        confirm(yes or ended, "Stop this run?", default=True, declined="nothing was stopped")
    if not request_stop(opened):
        had = "has ended" if opened.ledger.state.terminal is not None else "has a request to stop"
        print(f"{opened.id} {had} already")
    elif not attended(opened):
        print(left_alone(opened.typed, opened.ledger.state))
    else:
        print(
            f"{opened.id} has a request to stop; its runner will end the run; "
            f"`spotrun down {opened.typed}` ends the run now"
        )
        runner = read_status(opened.store, RUNNER_KEY, RunnerStatus)
        if runner is not None and runner.message:
            print(f"last message of its runner: {plain(runner.message)}")
