"""Shows the plan, progress and results of `spotrun bench` as text and as JSON. The HTML page has the same tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import msgspec
from rich.console import Console, Group, RenderableType
from rich.spinner import Spinner
from rich.text import Text

from spotrun.bench.meter import Measurement
from spotrun.bench.result import BenchRow, Prices, best, cheapest, devices_of, efficiency
from spotrun.bench.trials import BenchTrial
from spotrun.bench.verdict import cpus_gain, device_gain, loading_gain, verdict
from spotrun.report.amounts import as_text
from spotrun.report.folding import say
from spotrun.report.machine_readable import json_object, rounded
from spotrun.report.tables import (
    NOTHING,
    FiguresTable,
    dollars,
    figures_table,
    percent,
    plain,
    print_figures,
    short_duration,
)
from spotrun.report.view import Screen, View
from spotrun.units import count_of, plain_usd

GIB = 1 << 30
CAUSES = ("wait", "boot", "setup", "restore")
"""
The phases of a run before its first step, in this order. They have the same names as in a run's report. In a trial,
`restore` is only the start of the script, because there is no checkpoint to restore.
"""


@dataclass(frozen=True)
class Progress:
    """
    The progress of one trial. `number` is its position in the bench, counted from 0, and `trials` is the number of all
    trials. `steps` of `wanted` steps are done. `held_up` describes what the trial is waiting for; None if it is not
    waiting.
    """

    trial: BenchTrial
    number: int
    trials: int
    steps: int
    wanted: int
    held_up: str | None


def view() -> View[Sequence[Progress]]:
    """
    Return a display of the running trials. On a terminal, it has one continuously updated line for each trial.
    Elsewhere it prints a line each time a trial begins. It writes to stderr, to keep stdout for the result.
    """
    return _Live() if sys.stderr.isatty() else _Plain()


class _Live(Screen[Sequence[Progress]]):
    def __init__(self) -> None:
        super().__init__(Console(stderr=True), refresh_per_second=8, transient=True)
        self._spinners: dict[int, Spinner] = {}

    def render(self, update: Sequence[Progress]) -> RenderableType:
        self._spinners = {each.number: self._spinner(each) for each in update}
        return Group(*self._spinners.values())

    def _spinner(self, each: Progress) -> Spinner:
        """Return the trial's spinner. A trial keeps its spinner, because a new one's animation would start over."""
        spinner = self._spinners.get(each.number) or Spinner("dots")
        spinner.update(text=Text(_line(each), overflow="ellipsis", no_wrap=True))
        return spinner


class _Plain(View[Sequence[Progress]]):
    def __init__(self) -> None:
        self._printed: set[int] = set()

    def show(self, update: Sequence[Progress]) -> None:
        for each in update:
            if each.number not in self._printed:
                self._printed.add(each.number)
                print(f"{each.number + 1} of {each.trials}: {plain(each.trial.name)}", file=sys.stderr, flush=True)


def _line(update: Progress) -> str:
    parts = [f"{update.number + 1} of {update.trials}: {plain(update.trial.name)}"]
    parts += [f"{update.steps:,} of {update.wanted:,} steps"] if update.steps else []
    parts += [plain(update.held_up)] if update.held_up and not update.steps else []
    return ", ".join(parts)


def _priced(title: str, prices: Iterable[Prices]) -> str:
    return f"{title} (simulated prices)" if any(each.simulated for each in prices) else title


def show_plan(trials: Sequence[tuple[BenchTrial, Prices]]) -> None:
    title = _priced("To be measured", (prices for _, prices in trials))
    table = figures_table(title, "", ["spot\n$/h", "on demand\n$/h"])
    for trial, prices in trials:
        table.add_row([trial.name, _price(prices.spot), _price(prices.on_demand)])
    print_figures(table)


def _price(usd_per_hour: Decimal | None) -> str:
    return dollars(usd_per_hour).removeprefix("$")


def say_row(row: BenchRow) -> None:
    """Print the result of one trial while others are still running."""
    measured = row.measured
    found = f"{_rate(row)} {_unit(row)}/s" if measured is not None else str(row.fate)
    print(f"{plain(row.trial.name)}: {plain(found, 300)}", file=sys.stderr, flush=True)


def show(rows: Sequence[BenchRow], samples: float | None, against: str | None) -> None:
    tables = (speed_table(rows), money_table(rows, samples, against), begin_table(rows))
    for table in tables if any(row.measured for row in rows) else ():
        print_figures(table)
        print()
    for line in findings(rows, samples):
        say(plain(line, 500), indent=2)


def speed_table(rows: Sequence[BenchRow]) -> FiguresTable:
    heads = [
        "samples\n/s",
        "middle half",
        "ms\na step",
        "scaling",
        "waits\nfor data",
        "CPUs\nbusy",
        "GPUs\nbusy",
        "memory",
        "GPU\nmemory",
    ]
    table = figures_table("How fast it trains", "", heads, texts=(0,))
    for row in rows:
        table.add_row([row.trial.name, *(_speed(row, rows) if row.measured else [row.fate, *[""] * (len(heads) - 1)])])
    return table


def _speed(row: BenchRow, rows: Sequence[BenchRow]) -> list[str]:
    measured = row.measured
    assert measured is not None
    share = efficiency(row, rows)
    return [
        _rate(row),
        _middle_half(row),
        _number(1000 / measured.steps_per_s),
        NOTHING if share is None else f"{share:.0%}",
        percent(measured.data_wait),
        percent(measured.cpu_share),
        percent(measured.gpu_share),
        _gib(measured.memory_bytes),
        _gib(measured.gpu_memory_bytes),
    ]


def money_table(rows: Sequence[BenchRow], samples: float | None, against: str | None) -> FiguresTable:
    base = _base(rows, against)
    more = [] if base is None else ["time\nof base", "cost\nof base"]
    unit = _unit(*rows)
    heads = [
        f"{unit}\n/$ spot",
        f"{unit}/$\non demand",
        "hours\nof the job",
        "$ of it\non spot",
        "$ of it\non demand",
        *more,
        "measuring\ncost",
    ]
    table = figures_table(_priced("What it costs", (row.prices for row in rows)), "", heads)
    for row in rows:
        prices, spot, on_demand = row.prices, row.per_usd(row.prices.spot), row.per_usd(row.prices.on_demand)
        table.add_row(
            [
                row.trial.name,
                _number(spot),
                _number(on_demand),
                _number(row.hours(samples)),
                _usd(row.usd_of_job(prices.spot, samples)),
                _usd(row.usd_of_job(prices.on_demand, samples)),
                *([] if base is None else [_number(time_of(row, base)), _number(cost_of(row, base))]),
                dollars(row.usd),
            ]
        )
    return table


def begin_table(rows: Sequence[BenchRow]) -> FiguresTable:
    table = figures_table("Until the first step", "", [*CAUSES, "together"])
    for row in rows:
        spent = [timedelta(seconds=row.begins_s.get(cause, 0.0)) for cause in CAUSES]
        whole = sum(spent, timedelta())
        table.add_row(
            [row.trial.name, *map(short_duration, [*spent, whole])]
            if row.measured
            else [row.trial.name, *[NOTHING] * 5]
        )
    return table


def findings(rows: Sequence[BenchRow], samples: float | None) -> list[str]:
    """Return sentences about what limits each trial, why a trial has no figures, and which trial is cheapest."""
    lines = [f"{row.trial.name}: {verdict(row.measured)}" for row in rows if row.measured]
    lines += [f"{row.trial.name}: {row.fate}: {row.reason}" for row in rows if row.measured is None]
    cheapest_row = best(rows)
    if cheapest_row is not None and sum(row.measured is not None for row in rows) > 1:
        price = cheapest(cheapest_row.prices)
        assert price is not None, "the best row has a rate and a price"
        usd = cheapest_row.usd_of_job(price, samples)
        whole = "" if usd is None else f"; the whole job {_usd(usd)}"
        lines.append(
            f"cheapest: {cheapest_row.trial.name}, {_number(cheapest_row.per_usd(price))} {_unit(cheapest_row)} per "
            f"dollar at ${plain_usd(price)} an hour{whole}"
        )
    spent = sum((row.usd for row in rows), Decimal(0))
    lines.append(f"measuring has cost {as_text(round(spent, 4), spent, 4)}, by {count_of(len(rows), 'run')}")
    return lines


def time_of(row: BenchRow, base: BenchRow) -> float | None:
    """Return the training time of the row's trial as a multiple of the base's, for the same number of samples."""
    return None if row.rate is None or base.rate is None else base.rate / row.rate


def cost_of(row: BenchRow, base: BenchRow) -> float | None:
    """
    Return the row's cost per sample as a multiple of the base's. Both costs are at the lower of the trial's spot and
    on-demand prices.
    """
    ours, theirs = row.per_usd(cheapest(row.prices)), base.per_usd(cheapest(base.prices))
    return None if ours is None or theirs is None else theirs / ours


def _base(rows: Sequence[BenchRow], against: str | None) -> BenchRow | None:
    if against is None:
        return None
    return next((row for row in rows if str(row.trial.kind).casefold() == against.casefold() and row.measured), None)


def _unit(*rows: BenchRow) -> str:
    known = all(row.measured.samples for row in rows if row.measured is not None)
    return "samples" if known else "steps"


def _rate(row: BenchRow) -> str:
    return _number(row.rate)


def _middle_half(row: BenchRow) -> str:
    measured, rate = row.measured, row.rate
    assert measured is not None
    assert rate is not None
    of_a_step = rate / measured.steps_per_s
    return f"{_number(measured.low * of_a_step)} to {_number(measured.high * of_a_step)}"


def _number(value: float | None) -> str:
    """Format a number with three significant digits and without an exponent."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _usd(value: float | None) -> str:
    return NOTHING if value is None else dollars(Decimal(value))


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes else NOTHING


def as_json(rows: Sequence[BenchRow], samples: float | None, against: str | None) -> dict[str, Any]:
    base, found = _base(rows, against), best(rows)
    return json_object(
        rows=[_for_programs(row, rows, samples, base) for row in rows],
        cheapest=None if found is None else found.trial.name,
        simulated=any(row.prices.simulated for row in rows),
        usd=sum((row.usd for row in rows), Decimal(0)),
    )


def _for_programs(
    row: BenchRow, rows: Sequence[BenchRow], samples: float | None, base: BenchRow | None
) -> dict[str, Any]:
    measured = row.measured
    trial = row.trial
    told: dict[str, Any] = {
        "name": trial.name,
        "type": None if trial.kind is None else str(trial.kind),
        "instance_type": row.instance_type or None,
        "devices": devices_of(row),
        "batch": trial.batch,
        "precision": trial.precision,
        "fate": row.fate,
        "reason": row.reason or None,
        "run": row.run or None,
        "usd": row.usd,
        "spot_usd_per_hour": row.prices.spot,
        "on_demand_usd_per_hour": row.prices.on_demand,
    }
    if measured is None:
        return told | {"measured": None}
    return told | {
        "measured": _figures(measured)
        | {
            "steps_per_s": rounded(measured.steps_per_s),
            "samples_per_s": rounded(measured.samples_per_s),
            "samples_total": measured.samples_total,
        },
        "efficiency": rounded(efficiency(row, rows)),
        "samples_per_usd_spot": rounded(row.per_usd(row.prices.spot)) if measured.samples else None,
        "samples_per_usd_on_demand": rounded(row.per_usd(row.prices.on_demand)) if measured.samples else None,
        "hours": rounded(row.hours(samples)),
        "usd_of_job_spot": rounded(row.usd_of_job(row.prices.spot, samples)),
        "usd_of_job_on_demand": rounded(row.usd_of_job(row.prices.on_demand, samples)),
        "time_of_base": None if base is None else rounded(time_of(row, base)),
        "cost_of_base": None if base is None else rounded(cost_of(row, base)),
        "begins_s": {cause: round(row.begins_s.get(cause, 0.0), 3) for cause in CAUSES},
        "verdict": verdict(measured),
        "gains_at_most": {
            "faster_device": _finite(device_gain(measured)),
            "faster_loading": _finite(loading_gain(measured)),
            "8_more_vcpus": _finite(cpus_gain(measured)),
        },
    }


def _figures(measured: Measurement) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(measured)
    return {{"low": "steps_per_s_low", "high": "steps_per_s_high"}.get(name, name): each for name, each in told.items()}


def _finite(gain: float | None) -> float | None:
    return None if gain is None or gain == float("inf") else rounded(gain)
