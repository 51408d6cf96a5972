"""Shows a forecast as tables, as a chart of its costs, and as JSON (rounded, with null for "never")."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Any

import msgspec
from rich.cells import cell_len

from spotrun.report.folding import fold, say, terminal_width
from spotrun.report.machine_readable import json_object
from spotrun.report.tables import (
    NOTHING,
    FiguresTable,
    add_row,
    dollars,
    figures_table,
    percent,
    plain,
    print_figures,
    short_duration,
)
from spotrun.units import count_of, format_duration, plain_usd

if TYPE_CHECKING:
    from spotrun.forecast.lifetime_forecast import Forecast
    from spotrun.forecast.plan import Plan

PICTURE_WIDTH, PICTURE_WIDTH_MIN = 44, 24

COSTS = ("mean", "P50", "P95", "over", "epochs/$")
TIMES = ("P50", "P95", "late", "lost", "start", "redo", "wait")


def heading(plan: Plan) -> str:
    due = "" if plan.time_left is None else f", to be done in {short_duration(plan.time_left)}"
    return f"{short_duration(plan.work)} of work{due}"


def basis(plan: Plan) -> list[str]:
    """Return sentences that say which markets are simulated, what the work rests on, and what that run really cost."""
    found = [f"These are {plan.forecasts[0].lifetimes} imagined markets a line: spot comes and goes {plan.market}."]
    if (run := plan.completed) is not None:
        paid, lost = f"cost {dollars(run.cost_usd)}", count_of(run.interruptions, "interruption")
        found += [
            f"The work is the training time of {run.run}, with all that slowed it on its machine; --work replaces it.",
            f"On its own market, {run.run} {paid} and took {short_duration(run.wall)}, with {lost}.",
        ]
    return found


def cost_cells(plan: Plan, row: Forecast) -> list[str]:
    per_usd = plan.epochs_per_usd(row)
    amounts = (row.cost_mean_usd, row.cost_p50_usd, row.cost_p95_usd)
    return [*map(usd, amounts), chance(row.budget_passed), NOTHING if per_usd is None else f"{per_usd:.1f}"]


def time_columns(plan: Plan) -> list[str]:
    """Return the column names in `TIMES`, without "late" if the job has no deadline."""
    return [name for name in TIMES if name != "late" or plan.time_left is not None]


def time_cells(plan: Plan, row: Forecast) -> list[str]:
    ends, stood = (row.finish_p50_s, row.finish_p95_s), (row.changeover_s, row.rework_s, row.waiting_s)
    late = [] if plan.time_left is None else [chance(row.missed)]
    return [*map(lasting, ends), *late, f"{row.interruptions:.1f}", *map(lasting, stood)]


def cost_table(plan: Plan) -> FiguresTable:
    table = figures_table(f"{heading(plan)}: what it costs", "strategy", ["markets", *COSTS], texts=(0, 1), repeated=2)
    for row in plan.forecasts:
        add_row(table, [row.strategy, row.market, *cost_cells(plan, row)])
    return table


def time_table(plan: Plan) -> FiguresTable:
    columns = ["markets", *time_columns(plan)]
    title = "When it is done, and what delays it"
    table = figures_table(title, "strategy", columns, texts=(0, 1), repeated=2)
    for row in plan.forecasts:
        add_row(table, [row.strategy, row.market, *time_cells(plan, row)])
    return table


def usd(amount: float) -> str:
    return dollars(Decimal(f"{amount:.9f}"))


def lasting(seconds: float) -> str:
    return short_duration(timedelta(seconds=seconds)) if isfinite(seconds) else "never"


def chance(share: float | None) -> str:
    """Format a probability in percent. A small probability is never shown as zero."""
    return "<1%" if share is not None and 0 < share < 0.005 else percent(share)


def cost_picture(plan: Plan, width: int | None = None) -> str:
    """
    Draw a chart of the costs: for each row of the forecast, a line from the 5th to the 95th percentile, with the median
    marked. The chart is at most `width` columns wide, and its scale starts at 0. If the names of the rows are too long
    to stand to the left of the lines, each line is drawn below its row's name.
    """
    most = max(row.cost_p95_usd for row in plan.forecasts) or 1.0
    names = [plain(f"{row.strategy}, {row.market}") for row in plan.forecasts]
    label = max(map(cell_len, names))
    beside = width is None or width - label - 2 >= PICTURE_WIDTH_MIN
    across = min(PICTURE_WIDTH, PICTURE_WIDTH if width is None else width - (label if beside else 0) - 2)
    lines = ["Cost, P5 to P95, P50 as o:"]
    for name, row in zip(names, plan.forecasts, strict=True):
        lines += [] if beside else fold(name, width)
        before = name + " " * (label - cell_len(name)) if beside else ""
        lines.append(f"{before} |{_bar(row, most, across)}".rstrip())
    before = " " * label if beside else ""
    return "\n".join([*lines, f"{before} $0{usd(most):>{across - 1}}"])


def _bar(row: Forecast, most: float, width: int) -> str:
    low, middle, high = (
        round(cost / most * (width - 1)) for cost in (row.cost_p5_usd, row.cost_p50_usd, row.cost_p95_usd)
    )
    bar = [" "] * low + ["="] * (high - low + 1)
    bar[middle] = "o"
    return "".join(bar)


def expects(plan: Plan) -> str | None:
    """
    Return a sentence that names the types on which the run will probably train; None if the job allows only one type.
    """
    if not plan.expects:
        return None
    first, *others = (f"{each.kind} in {chance(each.share)}" for each in plan.expects)
    return f"Most of the work is done on {first} of the lifetimes" + "".join(f", on {each}" for each in others) + "."


def repeats(plan: Plan) -> str | None:
    """Return a warning if the job is a command that names no state. Return None otherwise."""
    if plan.repeats is None:
        return None
    every, rework_s = lasting(plan.repeats.loss_every_s), plan.repeats.expected_rework_s
    often = "hardly ever completes" if rework_s is None else f"repeats {lasting(rework_s)} of work"
    return (
        f"This job names no files as its command's state, so the command begins again whenever its instance is lost. "
        f"With a loss every {every} on average it {often}, unless it writes into $SPOTRUN_STATE_DIR or starts a "
        "training that spotrun knows. The forecast above assumes that the command continues from its state; to make "
        "that true, name the files of its state, as in train: {state: [out/]}."
    )


def as_json(plan: Plan) -> dict[str, Any]:
    return json_object(
        work_s=plan.work,
        time_left_s=plan.time_left,
        epochs=plan.epochs,
        assumed=plan.assumed,
        expects=[figures_of(each) for each in plan.expects],
        repeats=None if plan.repeats is None else figures_of(plan.repeats),
        forecasts=[{**figures_of(row), "epochs_per_usd": plan.epochs_per_usd(row)} for row in plan.forecasts],
        offerings=[{**msgspec.to_builtins(each.offering), "why": each.why} for each in plan.offerings],
    )


def figures_of(row: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a row, rounded. An infinite value becomes None."""
    facts: dict[str, Any] = msgspec.to_builtins(row)
    return {
        name: (round(value, 4) if isfinite(value) else None) if isinstance(value, float) else value
        for name, value in facts.items()
    }


def show(plan: Plan, *, known: bool) -> None:
    """Print the whole forecast. `known` is True if the job itself states how long the work takes."""
    for sentence in basis(plan):
        say(sentence)
    print()
    print_figures(cost_table(plan))
    print()
    print_figures(time_table(plan))
    print()
    print(cost_picture(plan, terminal_width()))
    print()
    if (line := expects(plan)) is not None:
        say(line)
    for each in plan.offerings:
        say(f"{each.offering} at ${plain_usd(each.offering.price_usd_per_hour)}/h: {each.why}", indent=2)
    say(plan.assumed)
    if (line := repeats(plan)) is not None:
        say(line)
    if not known and plan.time_left is not None:
        advice = f"policy.expected_work: {format_duration(timedelta(seconds=round(plan.work.total_seconds())))}"
        say(f"The job does not state how long it takes, so a run of it would begin on demand; write {advice}")
