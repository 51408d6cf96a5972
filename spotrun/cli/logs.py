"""`spotrun logs`"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from spotrun.cli.options import RunArgument, StoreOption
from spotrun.errors import RunNotFound

if TYPE_CHECKING:
    from spotrun.cli.runs import OpenRun

FOLLOW_EVERY_S = 1.0
"""System time between two looks for new chunks."""


def logs(
    run: RunArgument,
    store: StoreOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the run ends.")] = False,
    attempt: Annotated[
        int | None, typer.Option("--attempt", metavar="N", help="Print only the attempt of this number.")
    ] = None,
) -> None:
    """Show what the training printed, attempt by attempt."""
    from spotrun.cli.runs import open_run

    opened = open_run(run, store)
    state = opened.ledger.refresh()
    if attempt is not None and attempt not in state.attempts:
        known = ", ".join(str(number) for number in state.attempts) or "none yet"
        raise RunNotFound(f"{opened.id} has no attempt {attempt}", hint=f"its attempts are {known}")
    prefix = "logs/" if attempt is None else f"logs/{state.attempts[attempt].launch}/"
    told: set[str] = set()
    while True:
        ended = opened.ledger.refresh().terminal is not None
        _print_new(opened, prefix, told)
        if not follow or ended:
            break
        time.sleep(FOLLOW_EVERY_S)
    if not told:
        _print_consoles(opened)


def _print_consoles(run: OpenRun) -> None:
    """What the instances said by themselves: all there is when no agent came to write logs."""
    from spotrun.report.describe import printable

    for instance in run.driver.instances(run.created.uid):
        if (console := run.cloud.console(instance)) is not None:
            print(f"console of {instance.instance_id}:")
            print(printable(console))
    if run.cloud.failed_starts:
        for key in _keys(run, run.cloud.failed_starts):
            print(f"{key}:")
            print(_text(run, key))


def _print_new(run: OpenRun, prefix: str, told: set[str]) -> None:
    for key in sorted((key for key in _keys(run, prefix) if key not in told), key=_order):
        sys.stdout.write(_text(run, key))
        told.add(key)
    sys.stdout.flush()


def _keys(run: OpenRun, prefix: str) -> list[str]:
    from spotrun.store.retrying import persist

    return [stored.key for stored in persist(lambda: run.store.list(prefix))]


def _text(run: OpenRun, key: str) -> str:
    from spotrun.report.describe import printable
    from spotrun.store.retrying import persist

    return printable(persist(lambda: run.store.get(key)).decode(errors="replace"))


def _order(key: str) -> tuple[int, str]:
    """Launches in the order of their numbers, then chunks in theirs."""
    _, launch, chunk = key.split("/", 2)
    return int(launch), chunk
