"""`spotrun why`"""

from __future__ import annotations

from spotrun.cli.options import JsonOption, RunOrNewest, StoreOption, print_json


def why(run: RunOrNewest = None, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """
    Explain each decision of a run in one sentence, and say what comes next.

    Times are UTC. With `time_scale`, they are in the run's own time, which passes faster than system time.
    """
    from spotrun.folder.store_capacity import shortage
    from spotrun.report.describe import EVENT_INDENT, about_times, timestamp
    from spotrun.report.folding import say
    from spotrun.report.machine_readable import json_object
    from spotrun.report.next_decision import left_undone, next_decision
    from spotrun.report.why import briefly, decisions
    from spotrun.runs.open_run import attended, open_run

    opened = open_run(run, store)
    state = opened.ledger.refresh()
    made = decisions(opened.ledger.entries, opened.spec)
    coming = next_decision(state, opened.spec, opened.clock.now(), shortage(opened.store, state))
    if coming and not attended(opened):
        coming = left_undone(coming, opened.typed, opened.created)
    if as_json:
        scale = opened.created.time_scale
        print_json(json_object(run=opened.id, time_scale=scale, decisions=made, next=coming or None))
        return
    for each in briefly(made):
        say(f"{timestamp(each.at)}  {each.number:4}  {each.sentence}", EVENT_INDENT)
    if coming:
        say(f"next                  {coming}", EVENT_INDENT)
    if faster := about_times(opened.created.time_scale):
        say(faster)
