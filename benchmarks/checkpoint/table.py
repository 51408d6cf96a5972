"""The figures of one model, for people."""

from __future__ import annotations

from rich.table import Table

from benchmarks.checkpoint.figures import Row
from benchmarks.checkpoint.plan import EVERY_STEPS

ABSENT = "–"
COLUMNS = (
    *("stall ms", "max", "/ copy", "paused / copy", "durable / PUT", "paused / PUT", "restore / GET", "whole / GET"),
    *("start +", "slower", "memory / state"),
)


def table(rows: list[Row]) -> Table:
    """Of one model; at least one row."""
    shown = Table(title=_title(rows[0]), title_justify="left")
    shown.add_column("", no_wrap=True)
    for name in COLUMNS:
        shown.add_column(name, justify="right")
    for row in rows:
        shown.add_row(row.variant, *_cells(row))
    return shown


def _title(row: Row) -> str:
    limits = row.limits
    rates = {"copy": limits.memcpy_s, f"PUT ({limits.client})": limits.put_s, "GET": limits.get_s}
    floors = ", ".join(f"{what} {_seconds(seconds)}" for what, seconds in rates.items())
    size = f"{row.state_bytes / 1e6:,.0f} MB"
    return f"{row.model}, {size} of state, a checkpoint every {EVERY_STEPS} steps. Floors: {floors}"


def _cells(row: Row) -> list[str]:
    restore = _ratio(row.restore_over_get)
    return [
        _number(row.stall_ms_median),
        _number(row.stall_ms_max),
        _ratio(row.stall_over_memcpy),
        _ratio(row.stall_notice_over_memcpy),
        _ratio(row.durable_over_put),
        _ratio(row.durable_notice_over_put),
        restore if row.restored_identical in (True, None) else f"{restore} DIFFERS",
        _ratio(row.whole_over_get),
        ABSENT if row.first_batch_beyond_s is None else f"{row.first_batch_beyond_s:.2f} s",
        f"{row.slowdown:.1%}",
        _ratio(row.extra_ram_over_state),
    ]


def _ratio(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.2f} ×"


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:,.1f}"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.1f} ms"
