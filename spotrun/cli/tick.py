"""`spotrun tick`"""

from __future__ import annotations

from spotrun.cli.options import RunArgument, StoreOption, YesOption


def tick(run: RunArgument, store: StoreOption = None, yes: YesOption = False) -> None:
    """
    Do one round of a runner's work for a run, then exit.

    Let cron call this command. An interval of two minutes suits most runs. If the run was launched on another machine,
    the first call on this machine needs --yes.
    """
    from spotrun.account.outcome import status_word
    from spotrun.report.tables import plain
    from spotrun.runner.runner import TICKS_MAX
    from spotrun.runs.interrupts import told
    from spotrun.runs.known import require_known
    from spotrun.runs.notifying import notifying
    from spotrun.runs.open_run import open_run

    opened = open_run(run, store, "tick")
    opened.ledger.refresh()
    require_known(opened, yes)
    with told(opened), notifying(opened) as notifier:
        last = opened.runner.tick()
        for _ in range(TICKS_MAX):
            if last.done or not last.actions or last.waiting_for:
                break
            last = opened.runner.tick()
        notifier.show(opened.ledger.entries)
    note = f" ({plain(last.waiting_for)})" if last.waiting_for else ""
    print(f"{opened.id}: {status_word(last.state)}{note}")
