"""Builds the rows of `spotrun night ls`, one for each installed night."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

import msgspec

from spotrun.account.outcome import status_word
from spotrun.account.summary import summarise
from spotrun.clouds.nights import Nights
from spotrun.clouds.registry import nights_of
from spotrun.errors import CloudError, RunNotFound, StoreError
from spotrun.folder.night import AGAIN, DAYS, Night, NotPinned
from spotrun.folder.night_record import BY_HAND, BegunNight, NightRecord, NightStrange
from spotrun.folder.run_calls import read_calls
from spotrun.night.times import next_due
from spotrun.report.tables import NOTHING, FiguresTable, dollars, plain, print_table
from spotrun.runs.open_run import OpenRun

NIGHTS_A_MONTH = 22
HOURS = 8.0
"""Length of a night, in hours, that estimates assume if the length is unknown."""
_HEADS = ("night", "days", "time", "next (UTC)", "last", "run", "was", "cost", "calls", "calls, 22 nights")


class NightRow(msgspec.Struct, frozen=True, kw_only=True):
    """
    An installed night in `spotrun night ls`.

    `run` is the newest run that the night began, and `last` says when that run was due to begin. `calls_usd` is the
    cost of the function's calls for that run. The function counts its calls; if there are no counts, the cost is
    estimated from the run's duration. `trouble` is a sentence about what is wrong with the function or its schedule; ""
    if nothing is.
    """

    name: str
    days: tuple[str, ...]
    at: str
    zone: str
    next_due: datetime | None
    last: str | None
    carried: bool
    run: str | None
    state: str | None
    cost_usd: Decimal | None
    calls_usd: Decimal
    calls_usd_a_month: Decimal
    calls_are_counted: bool
    trouble: str


def row_of(folder: str, name: str, now: datetime) -> NightRow:
    night = NightRecord(folder, name).read()
    nights = nights_of(night)
    record, trouble = _compared(nights, night, folder)
    newest = record.newest()
    last = newest[-1].begun if newest else None
    run = None if last is None else _opened(record, last)
    state = None if run is None else run.ledger.refresh()
    calls = _calls_usd(run)
    until = now if state is None or state.terminal is None else state.terminal.at
    hours = HOURS if state is None else (until - state.created_at).total_seconds() / 3600
    calls_usd = calls if calls is not None else nights.usd(hours)
    return NightRow(
        name=name,
        days=night.days,
        at=night.at,
        zone=night.zone,
        next_due=None if trouble else next_due(night, now),
        last=None if last is None else last.due,
        carried=last is not None and last.carried,
        run=None if run is None else run.id,
        state=None if state is None else status_word(state),
        cost_usd=None if state is None else summarise(state, now).total.cost_usd,
        calls_usd=calls_usd,
        calls_usd_a_month=calls_usd * NIGHTS_A_MONTH,
        calls_are_counted=calls is not None,
        trouble=trouble,
    )


def _calls_usd(run: OpenRun | None) -> Decimal | None:
    counted = None if run is None else read_calls(run.store)
    found = None if run is None or counted is None else run.cloud.runner_calls(counted)
    return None if found is None else found.usd


def _compared(nights: Nights, night: Night, folder: str) -> tuple[NightRecord, str]:
    """
    Return a night's record, as the night's function reads it. Also return a sentence that says what is wrong with the
    function or the record; "" if nothing is.
    """
    record = NightRecord(folder, night.name)
    try:
        if wrong := nights.wrong(night, folder):
            return record, wrong
        pin = nights.pinned(night.name)
        if pin is None:
            return record, f"the function is of an earlier spotrun, which trusts all that the store says: {AGAIN}"
        record = NightRecord(folder, night.name, pin)
        record.read()
    except (CloudError, NotPinned, NightStrange) as error:
        return record, error.one_line
    return record, ""


def newest_run(record: NightRecord) -> OpenRun | None:
    """Return the run of the newest night that began; None if no night began, or if its run cannot be read."""
    newest = record.newest()
    return _opened(record, newest[-1].begun) if newest else None


def _opened(record: NightRecord, begun: BegunNight) -> OpenRun | None:
    try:
        return OpenRun(record.run_uri(begun.run), "cli")
    except (RunNotFound, StoreError):
        return None


def _evening(due: str) -> str:
    """
    Return the date on which a night was due. If a person started the night, return the date and time of that start.
    """
    asked = due.removeprefix(BY_HAND)
    return due if asked == due else f"{asked[:16].replace('T', ' ')} by hand"


def _if_counted(usd: Decimal, row: NightRow) -> str:
    return dollars(usd) if row.calls_are_counted else f"~{dollars(usd)}"


def show(rows: Sequence[NightRow]) -> None:
    table = FiguresTable("", _HEADS, texts=(0, 1, 2, 3, 4, 5, 6), gap=2)
    for row in rows:
        table.add_row(
            [
                row.name,
                "daily" if len(row.days) == len(DAYS) else ",".join(row.days),
                f"{row.at} {row.zone}",
                NOTHING if row.next_due is None else f"{row.next_due:%Y-%m-%d %H:%M}",
                NOTHING if row.last is None else _evening(row.last) + (" (carried on)" if row.carried else ""),
                row.run or NOTHING,
                row.state or NOTHING,
                dollars(row.cost_usd),
                *(_if_counted(usd, row) for usd in (row.calls_usd, row.calls_usd_a_month)),
            ]
        )
    print_table(table)
    for row in rows:
        if row.trouble:
            print(plain(f"{row.name}: {row.trouble}"))
