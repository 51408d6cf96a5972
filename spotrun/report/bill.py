"""`spotrun bill` as text and as JSON: our ledger, the cloud's statement, and each difference with its reason."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from spotrun.bill.charge import Charge, Statement
from spotrun.bill.reconcile import ExplainedPart, Line, Reconciliation
from spotrun.report.machine_readable import usd_text
from spotrun.report.tables import NOTHING, FiguresTable, add_row, figures_table, plain, print_figures

SCOPE = (
    "Instances, their disks and addresses. Storage and requests of the bucket are not included: they have no run's tag."
)


def show(found: Reconciliation, run: str, *, simulated: bool, console: Console | None = None) -> None:
    """Print the comparison; it needs no terminal."""
    print_figures(bill(found, run, simulated=simulated), console)


def bill(found: Reconciliation, run: str, *, simulated: bool) -> RenderableType:
    reasons = [Text(f"  {_dollars(part.usd)}  {part.reason}") for part in found.parts]
    reasons += [
        Text(f"  {_dollars(line.unexplained_usd)}  UNEXPLAINED, {plain(line.resource, 40)}: {plain(line.why)}")
        for line in found.unexplained
    ]
    return Group(
        Text(f"{plain(run)} and the {found.statement.title}", style="bold"),
        *([Text("Prices are SIMULATED: no cloud has billed this run.")] if simulated else []),
        Text(_coverage(found)),
        Text(),
        _table(found),
        Text(),
        Text("What explains the difference:" if reasons else "There is no difference."),
        *reasons,
        Text(),
        Text(SCOPE, style="dim"),
        Text(f"Rule: {plain(found.statement.rule.source)}", style="dim"),
    )


def _coverage(found: Reconciliation) -> str:
    statement = found.statement
    if statement.since is None or statement.until is None:
        return f"{_files(statement)} has no instance hours at all."
    since, until = (f"{at:%Y-%m-%d %H:%M}" for at in (statement.since, statement.until))
    return f"{_files(statement)} has the hours from {since} to {until} UTC."


def _files(statement: Statement) -> str:
    first, *others = statement.paths
    return plain(first) + (f" with {len(others)} more" if others else "")


def _table(found: Reconciliation) -> FiguresTable:
    table = figures_table("Instance by instance", "instance", ["ours", "theirs", "differ", "explained", "left"])
    for line in found.lines:
        add_row(table, [line.resource, *_cells(line)], style="bold" if line.unexplained_usd else "")
    table.add_section()
    explained = sum((part.usd for part in found.parts), Decimal(0))
    difference = found.theirs_usd - found.ours_usd
    sums = [found.ours_usd, found.theirs_usd, difference, explained, difference - explained]
    add_row(table, ["total", *map(_dollars, sums)], style="bold")
    return table


def _cells(line: Line) -> list[str]:
    amounts = [line.ours_usd, line.theirs_usd, line.difference_usd, line.explained_usd, line.unexplained_usd]
    return [_dollars(amount) for amount in amounts]


def _dollars(amount: Decimal) -> str:
    """Six decimals, because differences are small; ten if that would show zero."""
    if not amount:
        return NOTHING
    text = f"{abs(amount):.6f}" if abs(amount) >= Decimal("0.0000005") else f"{abs(amount):.10f}"
    return f"{'-' if amount < 0 else ''}${text}"


def as_json(found: Reconciliation, run: str, *, simulated: bool) -> dict[str, Any]:
    """What `spotrun bill --json` prints. Dollars are exact decimal strings."""
    statement = found.statement
    return {
        "run": plain(run),
        "record": {
            "title": statement.title,
            "paths": list(statement.paths),
            "rule": statement.rule.source,
            "since": None if statement.since is None else statement.since.isoformat(),
            "until": None if statement.until is None else statement.until.isoformat(),
        },
        "simulated": simulated,
        "instances": [_line(line) for line in found.lines],
        "total": {
            "ours_usd": _exact(found.ours_usd),
            "theirs_usd": _exact(found.theirs_usd),
            "difference_usd": _exact(found.theirs_usd - found.ours_usd),
            "explained": _parts(found.parts),
            "unexplained_usd": _exact(sum((line.unexplained_usd for line in found.lines), Decimal(0))),
        },
        "scope": SCOPE,
    }


def _line(line: Line) -> dict[str, Any]:
    return {
        "launch": line.launch,
        "resource": plain(line.resource),
        "what": plain(line.what),
        "ours_usd": _exact(line.ours_usd),
        "theirs_usd": _exact(line.theirs_usd),
        "difference_usd": _exact(line.difference_usd),
        "explained": _parts(line.parts),
        "unexplained_usd": _exact(line.unexplained_usd),
        "why": plain(line.why),
        "lines": [_charge(charge) for charge in line.charges],
    }


def _parts(parts: tuple[ExplainedPart, ...]) -> dict[str, str]:
    return {str(part.reason): _exact(part.usd) for part in parts}


def _charge(charge: Charge) -> dict[str, Any]:
    return {
        "path": charge.path,
        "line": charge.line,
        "kind": str(charge.kind),
        "what": plain(charge.what),
        "start": charge.start.isoformat(),
        "end": charge.end.isoformat(),
        "amount_usd": _exact(charge.amount_usd),
    }


def _exact(amount: Decimal) -> str:
    """The exact amount: a cloud may write more decimals than our nano-dollars."""
    return usd_text(amount) if amount == round(amount, 9) else f"{amount:f}"
