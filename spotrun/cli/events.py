"""`spotrun events`"""

from __future__ import annotations

from spotrun.cli.options import JsonOption, RunArgument, StoreOption


def events(run: RunArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """
    List everything that happened to a run, in order.

    Times are UTC. Entries without effect are marked VOID.
    """
    from spotrun.cli.runs import open_run
    from spotrun.report.live import event_line
    from spotrun.report.tables import plain
    from spotrun.run.events import entry_json

    opened = open_run(run, store)
    state = opened.ledger.refresh()
    voids, ordinals = {void.number: void.reason for void in state.voids}, state.ordinals()
    for entry in opened.ledger.entries:
        mark = f"   VOID: {plain(voids[entry.number])}" if entry.number in voids else ""
        print(entry_json(entry).decode() if as_json else event_line(entry, ordinals) + mark)
    readable = {entry.number for entry in opened.ledger.entries}
    for number in sorted(voids.keys() - readable):
        if not as_json:
            print(f"                {number:4}  VOID: {plain(voids[number])}")
