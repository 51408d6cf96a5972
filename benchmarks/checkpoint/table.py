"""The figures of one model, for people."""

from __future__ import annotations

from rich.table import Table

from benchmarks.checkpoint.figures import Row, Summary
from benchmarks.checkpoint.plan import EVERY_STEPS

ABSENT = "–"
COLUMNS = (
    *("stall ms", "max", "CPU ms", "/ copy", "paused / copy", "durable / PUT", "paused / PUT", "restore / GET"),
    *("whole / GET", "start +", "stall +", "CPU +", "slower", "memory / state", "files sent"),
)


def table(found: list[Summary]) -> Table:
    """
    Return the table of one model; at least one variant. A difference from another measurement has its quartiles with
    it.
    """
    shown = Table(title=_title(found[0]), title_justify="left")
    shown.add_column("", no_wrap=True)
    for name in COLUMNS:
        shown.add_column(name, justify="right")
    for one in found:
        shown.add_row(one.row.variant, *_cells(one))
    return shown


def _title(found: Summary) -> str:
    row, limits = found.row, found.row.limits
    rates = {"copy": limits.memcpy_s, f"PUT ({limits.client})": limits.put_s, "GET": limits.get_s}
    floors = ", ".join(f"{what} {_seconds(seconds)}" for what, seconds in rates.items())
    size = f"{row.state_bytes / 1e6:,.0f} MB"
    rounds = f"medians of {found.rounds} rounds" if found.rounds > 1 else "one round"
    return f"{row.model}, {size} of state, a checkpoint every {EVERY_STEPS} steps, {rounds}. Floors: {floors}"


def _cells(found: Summary) -> list[str]:
    row = found.row
    restore = _ratio(row.restore_over_get)
    return [
        _number(row.stall_ms_median),
        _number(row.stall_ms_max),
        _number(row.stall_cpu_ms_median),
        _ratio(row.stall_over_memcpy),
        _ratio(row.stall_notice_over_memcpy),
        _ratio(row.durable_over_put),
        _ratio(row.durable_notice_over_put),
        restore if row.restored_identical in (True, None) else f"{restore} DIFFERS",
        _ratio(row.whole_over_get),
        ABSENT if row.first_batch_beyond_s is None else f"{row.first_batch_beyond_s:.2f} s",
        _effect(found, "stall_over_ours"),
        _effect(found, "stall_cpu_over_ours"),
        _effect(found, "slowdown"),
        _ratio(row.extra_ram_over_state),
        _files(row),
    ]


def _files(row: Row) -> str:
    """Return the bytes sent by the first checkpoint, and by the later one that sent most."""
    sizes = (row.files_first_bytes, row.files_later_bytes)
    return ", ".join(ABSENT if size is None else f"{size / 1e6:,.3g} MB" for size in sizes)


def _effect(found: Summary, name: str) -> str:
    if name not in found.spread:
        return ABSENT
    low, high = found.spread[name]
    shown = f"{getattr(found.row, name):.1%} ({low:.1%} … {high:.1%})"
    return f"{shown} noise" if found.is_noise(name) else shown


def _ratio(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.2f} ×"


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:,.1f}"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.1f} ms"
