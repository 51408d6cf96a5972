"""Shows the output of `spotrun bill` as text and as JSON: ledger, statement, and each difference with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.text import Text

from spotrun.bill.charge import Charge, Statement
from spotrun.bill.corrections import Correction
from spotrun.bill.reconcile import ExplainedPart, Line, Reconciliation
from spotrun.report.amounts import as_text, rounded, with_sums
from spotrun.report.machine_readable import json_object, usd_text
from spotrun.report.tables import FiguresTable, add_row, figures_table, plain, print_figures

PLACES = 6
"""Number of decimals in the output. It is large because differences are small."""
SCOPE = (
    "Instances, their disks and addresses. Storage and requests of the bucket are not included: they have no run tag."
)


def show(found: Reconciliation, run: str, *, simulated: bool, console: Console | None = None) -> None:
    """Print the comparison. The tables have their full width even if the output is not a terminal."""
    print_figures(bill(found, run, simulated=simulated), console)


def bill(found: Reconciliation, run: str, *, simulated: bool) -> RenderableType:
    lines, total = _shown(found)
    by_reason = zip(total.explained, found.parts, strict=True)
    reasons = [Text(f"  {_dollars(shown, part.usd)}  {part.reason}") for shown, part in by_reason]
    reasons += [
        Text(f"  {_dollars(shown.left, line.unexplained_usd)}  {_unexplained(line)}")
        for line, shown in zip(found.lines, lines, strict=True)
        if line.unexplained_usd
    ]
    return Group(
        Text(f"{plain(run)} and the {found.statement.title}", style="bold"),
        *([Text("Prices are SIMULATED: no cloud has billed this run.")] if simulated else []),
        Text(_coverage(found)),
        Text(),
        _table(found, lines, total),
        Text(),
        Text("What explains the difference:" if reasons else "There is no difference."),
        *reasons,
        Text(),
        Text(SCOPE, style="dim"),
        Text(f"Rule: {plain(found.statement.rule.source)}", style="dim"),
    )


def _unexplained(line: Line) -> str:
    return f"UNEXPLAINED, {plain(line.resource, 40)}: {plain(line.why)}"


def correction(found: Correction) -> str:
    """Describe the change that `spotrun bill --correct` would make."""
    was, ended_at = (f"{at:%Y-%m-%d %H:%M:%S}" for at in (found.was, found.ended_at))
    amount = abs(found.usd)
    changed = f"{as_text(round(amount, PLACES), amount, PLACES)} {'less' if found.usd < 0 else 'more'}"
    whose = f"launch {found.launch} ({plain(found.instance_id, 40)})"
    return f"{whose} ended at {ended_at}, not at {was} ({plain(found.bound)}): {changed}"


class Shown(NamedTuple):
    """
    The dollars of one line, rounded for display. `ours` is the ledger's cost. The difference to the bill is split into
    `explained`, one amount for each reason, and `left`, the unexplained rest.
    """

    ours: Decimal
    explained: Sequence[Decimal]
    left: Decimal

    @property
    def cells(self) -> list[Decimal]:
        explained = sum(self.explained, Decimal(0))
        differ = explained + self.left
        return [self.ours, self.ours + differ, differ, explained, self.left]


def _shown(found: Reconciliation) -> tuple[list[Shown], Shown]:
    """Round the dollars of each line and of the total so that the displayed figures add up."""
    exact = []
    for line in found.lines:
        explained = {part.reason: Decimal(0) for part in found.parts}
        for part in line.parts:
            explained[part.reason] += part.usd
        exact.append([line.ours_usd, *explained.values(), line.unexplained_usd])
    *lines, total = (Shown(row[0], row[1:-1], row[-1]) for row in with_sums(rounded(exact, PLACES)))
    return lines, total


def _coverage(found: Reconciliation) -> str:
    statement = found.statement
    if statement.since is None or statement.until is None:
        return f"{_files(statement)} has no instance hours at all."
    since, until = (f"{at:%Y-%m-%d %H:%M}" for at in (statement.since, statement.until))
    return f"{_files(statement)} has the hours from {since} to {until} UTC."


def _files(statement: Statement) -> str:
    first, *others = statement.paths
    return plain(first) + (f" with {len(others)} more" if others else "")


def _table(found: Reconciliation, lines: Sequence[Shown], total: Shown) -> FiguresTable:
    table = figures_table("Instance by instance", "instance", ["ours", "theirs", "differ", "explained", "left"])
    for line, shown in zip(found.lines, lines, strict=True):
        exact = [line.ours_usd, line.theirs_usd, line.difference_usd, line.explained_usd, line.unexplained_usd]
        cells = map(_dollars, shown.cells, exact)
        add_row(table, [line.resource, *cells], style="bold" if line.unexplained_usd else "")
    table.add_section()
    explained = sum((part.usd for part in found.parts), Decimal(0))
    difference = found.theirs_usd - found.ours_usd
    sums = [found.ours_usd, found.theirs_usd, difference, explained, difference - explained]
    add_row(table, ["total", *map(_dollars, total.cells, sums)], style="bold")
    return table


def _dollars(shown: Decimal, exact: Decimal) -> str:
    return as_text(shown, exact, PLACES)


def as_json(found: Reconciliation, run: str, *, simulated: bool) -> dict[str, Any]:
    """Return the output of `spotrun bill --json`. Dollars are exact decimal strings."""
    statement = found.statement
    return json_object(
        _exact,
        run=plain(run),
        record={
            "title": statement.title,
            "paths": statement.paths,
            "rule": statement.rule.source,
            "since": statement.since,
            "until": statement.until,
        },
        simulated=simulated,
        instances=[_line(line) for line in found.lines],
        total={
            "ours_usd": found.ours_usd,
            "theirs_usd": found.theirs_usd,
            "difference_usd": found.theirs_usd - found.ours_usd,
            "explained": _parts(found.parts),
            "unexplained_usd": sum((line.unexplained_usd for line in found.lines), Decimal(0)),
        },
        scope=SCOPE,
    )


def _line(line: Line) -> dict[str, Any]:
    return {
        "launch": line.launch,
        "member": None if line.launch is None else line.member,
        "resource": plain(line.resource),
        "what": plain(line.what),
        "ours_usd": line.ours_usd,
        "theirs_usd": line.theirs_usd,
        "difference_usd": line.difference_usd,
        "explained": _parts(line.parts),
        "unexplained_usd": line.unexplained_usd,
        "why": plain(line.why),
        "lines": [_charge(charge) for charge in line.charges],
    }


def _parts(parts: tuple[ExplainedPart, ...]) -> dict[str, Decimal]:
    return {part.reason: part.usd for part in parts}


def _charge(charge: Charge) -> dict[str, Any]:
    return {
        "path": charge.path,
        "line": charge.line,
        "kind": charge.kind,
        "what": plain(charge.what),
        "start": charge.start,
        "end": charge.end,
        "amount_usd": charge.amount_usd,
    }


def _exact(amount: Decimal) -> str:
    """Format the exact amount. A cloud may report more than the nine decimal places of spotrun's own amounts."""
    return usd_text(amount) if amount == round(amount, 9) else f"{amount:f}"
