"""The difference between the ticks and the runner itself, as tables, in words and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import msgspec

from benchmarks.fidelity.lifetimes import ByRunner
from benchmarks.fidelity.twins import Fidelity
from spotrun.forecast.report import lasting, usd
from spotrun.forecast.study_report import case_title
from spotrun.report.tables import FiguresTable, add_row, figures_table, print_figures, short_duration


def fidelity_table(found: Fidelity) -> FiguresTable:
    """Return a line by the ticks, and one by the runner."""
    table = figures_table("", f"{found.strategy}, {jobs_of(found)}", ["cost", "late", "losses"])
    for name, share, late, losses in (
        ("in ticks", found.ticks_share, found.ticks_late, found.ticks_losses),
        ("by the runner", found.runner_share, found.runner_late, found.runner_losses),
    ):
        add_row(table, [name, f"{share:.3f}", f"{late}/{found.jobs}", f"{losses:.1f}"])
    return table


def jobs_of(found: Fidelity) -> str:
    return "1 job" if found.jobs == 1 else f"{found.jobs} jobs"


def in_words(found: Fidelity) -> str:
    """Return the difference, in one line."""
    cost = f"{found.cost_off:+.3f} of the on-demand bill (at most {found.cost_off_max:+.3f} in one job)"
    done = f"{_later(found.finish_off_s)} (at most {_later(found.finish_off_max_s)})"
    return f"The runner costs {cost} and is done {done}."


def _later(seconds: float) -> str:
    if abs(seconds) < 1:
        return "at the same time"
    return f"{short_duration(timedelta(seconds=abs(seconds)))} {'later' if seconds > 0 else 'earlier'}"


def as_json(found: Iterable[Fidelity]) -> list[dict[str, Any]]:
    facts = [msgspec.to_builtins(each) for each in found]
    return [{**each.pop("case"), **each} for each in facts]


def lived_in_words(lived: ByRunner) -> str:
    """Return the runner's own results for some of the lifetimes, in one line."""
    off = lived.finish_apart_s
    times = (
        "none done by both"
        if lived.ticks_finish_s is None or lived.runner_finish_s is None or off is None
        else f"done after {lasting(lived.runner_finish_s)} where they say {lasting(lived.ticks_finish_s)} "
        f"({lasting(off)} apart)"
    )
    late = "" if lived.missed is None else f", {lived.missed} late"
    return (
        f"By the runner itself, {lived.lifetimes} of these lifetimes of {lived.strategy}, {lived.market}: on average "
        f"{usd(lived.runner_usd)} where the ticks say {usd(lived.ticks_usd)} ({usd(lived.usd_apart)} apart), {times}; "
        f"{lived.cost_inside} within P5 to P95 of the cost, {lived.finish_inside} of the time{late}, "
        f"{lived.unfinished} unfinished."
    )


def show(found: Iterable[Fidelity]) -> None:
    print("The same jobs by the ticks, and by the runner in simulated worlds:\n")
    for each in found:
        print(f"{case_title(each.case)}\n")
        print_figures(fidelity_table(each))
        print(f"\n{in_words(each)}\n")
