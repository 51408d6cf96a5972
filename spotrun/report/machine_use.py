"""Formats how busy a run's machines were, as text for the report and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from spotrun.account.summary import RunSummary
from spotrun.folder.machine_use import TypeUse
from spotrun.folder.run_calls import RunnerCalls
from spotrun.report import machine_readable, runner_calls
from spotrun.report.machine_readable import rounded
from spotrun.report.tables import FiguresTable, add_row, figures_table, percent, plain, short_duration

TITLE = "How busy the machines were"
HEADS = ("measured\nfor", "CPUs\nbusy", "memory\nused", "GPUs\nbusy", "GPU memory\nused", "waited\nfor data")


def machine_table(found: Sequence[TypeUse]) -> FiguresTable:
    table = figures_table(TITLE, "type", list(HEADS))
    for each in found:
        add_row(table, [plain(each.instance_type), *cells(each)])
    return table


def cells(found: TypeUse) -> list[str]:
    """Return the cells for the columns in `HEADS`."""
    return [short_duration(_looked_at(found)), *(percent(share) for share in _shares(found).values())]


def whole_report(summary: RunSummary, machines: Iterable[TypeUse], calls: RunnerCalls | None = None) -> dict[str, Any]:
    """Return the output of `spotrun report --json`, as plain values."""
    return machine_readable.report(summary) | {
        "machines": for_programs(machines),
        "runner_calls": runner_calls.for_programs(calls),
    }


def for_programs(found: Iterable[TypeUse]) -> list[dict[str, Any]]:
    """
    Return the shares of time in which the machines were busy, for the output of `--json`. Each share is a number from 0
    to 1. It is None if it is unknown, such as the GPUs' share on a machine without a GPU.
    """
    return [
        {
            "instance_type": plain(each.instance_type),
            "looked_at_s": round(_looked_at(each).total_seconds(), 3),
            **{name: rounded(share) for name, share in _shares(each).items()},
        }
        for each in found
    ]


def _looked_at(found: TypeUse) -> timedelta:
    return timedelta(seconds=found.used.cpu.of_s)


def _shares(found: TypeUse) -> dict[str, float | None]:
    used = found.used
    return {
        "cpu_busy": used.cpu.share,
        "memory_used": used.memory.share,
        "gpu_busy": used.gpu.share,
        "gpu_memory_used": used.gpu_memory.share,
        "data_wait": used.waited.share,
    }
