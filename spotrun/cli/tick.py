"""`spotrun tick`"""

from __future__ import annotations

from spotrun.cli.options import RunArgument, StoreOption


def tick(run: RunArgument, store: StoreOption = None) -> None:
    """
    Look after a run once, then return.

    This is for cron. Every two minutes suits most runs.
    """
    from spotrun.account.outcome import status_word
    from spotrun.cli.interrupts import told
    from spotrun.cli.notifying import notifying
    from spotrun.cli.runs import open_run
    from spotrun.runner import TICKS_MAX

    opened = open_run(run, store, "tick")
    with told(opened), notifying(opened) as notifier:
        last = opened.runner.tick()
        for _ in range(TICKS_MAX):
            if last.done or not last.actions or last.waiting_for:
                break
            last = opened.runner.tick()
        notifier.show(opened.ledger.entries)
    note = f" ({last.waiting_for})" if last.waiting_for else ""
    print(f"{opened.id}: {status_word(last.state)}{note}")
