"""`spotrun tick`"""

from __future__ import annotations

from spotrun.cli.options import RunArgument, StoreOption


def tick(run: RunArgument, store: StoreOption = None) -> None:
    """Attend to a run for one pass, then return: for cron. Every two minutes suits most runs."""
    from spotrun.account.outcome import status_word
    from spotrun.cli.notifying import notifying
    from spotrun.cli.wiring import open_run
    from spotrun.runner import PASSES_MAX

    opened = open_run(run, store, "tick")
    with notifying(opened) as notifier:
        seen = opened.runner.tick()
        for _ in range(PASSES_MAX):
            if seen.done or not seen.actions or seen.waiting_for:
                break
            seen = opened.runner.tick()
        notifier.show(opened.ledger.entries)
    note = f" ({seen.waiting_for})" if seen.waiting_for else ""
    print(f"{opened.id}: {status_word(seen.state)}{note}")
