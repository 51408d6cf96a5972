"""`spotrun events`"""

from __future__ import annotations

from spotrun.cli.options import JsonOption, RunOrNewest, StoreOption


def events(run: RunOrNewest = None, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """
    List everything that happened to a run, in order.

    Times are UTC. With `time_scale`, they are in the run's own time, which passes faster than system time. Entries
    without effect are marked VOID.
    """
    import json

    from spotrun.report.describe import EVENT_INDENT, about_times, event_line
    from spotrun.report.folding import say
    from spotrun.report.tables import plain
    from spotrun.run.entry_bytes import entry_json
    from spotrun.runs.open_run import open_run

    opened = open_run(run, store)
    state = opened.ledger.refresh()
    voids, ordinals = {void.number: void for void in state.voids}, state.ordinals()
    for entry in opened.ledger.entries:
        mark = f"   VOID: {plain(voids[entry.number].reason)}" if entry.number in voids else ""
        if as_json:
            print(json.dumps(json.loads(entry_json(entry)), separators=(",", ":")))  # ASCII only
        else:
            say(event_line(entry, ordinals) + mark, EVENT_INDENT)
    readable = {entry.number for entry in opened.ledger.entries}
    for number in sorted(voids.keys() - readable):
        if not as_json:
            void = voids[number]
            say(f"                {number:4}  {void.kind}   VOID: {plain(void.reason)}", EVENT_INDENT)
    if not as_json and (faster := about_times(opened.created.time_scale)):
        say(faster)
