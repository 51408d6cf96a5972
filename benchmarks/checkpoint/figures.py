"""Measurements as ratios to what the machine can do in the same run, which carry over to other machines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean, median, quantiles
from typing import Any

from benchmarks.checkpoint.measurement import Begun, Measurement
from benchmarks.checkpoint.plan import EVERY_STEPS, ROUNDS_MIN

STALLED_ITERATIONS = 2


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds for the whole state, warm and by the fastest `client` of the store that is installed."""

    client: str
    memcpy_s: float
    put_s: float
    get_s: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """
    `None` where a variant has no such figure. `slowdown` is 0.03 if training takes 3 % longer than without checkpoints,
    and so is `stall_over_ours` if the stall is 3 % longer than that of spotrun as it is, and `stall_cpu_over_ours` if
    it takes 3 % more processor time of the training thread; `extra_ram_over_state` is the peak beyond that of a
    training without them. `restore_over_get` is until the first batch, which may begin while the state of optimizers is
    coming, and `whole_over_get` until that is there too. `first_batch_beyond_s` is how much longer a resuming trainer
    takes to its first batch than its imports, its network and the part of a GET that does not overlap the imports.
    `files_first_bytes` and `files_later_bytes` are the bytes that the first checkpoint and the most expensive of the
    later ones sent of the files in the work folder.
    """

    model: str
    variant: str
    stall_ms_median: float | None
    stall_ms_max: float | None
    stall_cpu_ms_median: float | None
    stall_over_memcpy: float | None
    stall_notice_over_memcpy: float | None
    durable_over_put: float | None
    durable_notice_over_put: float | None
    restore_over_get: float | None
    whole_over_get: float | None
    restored_identical: bool | None
    first_batch_beyond_s: float | None
    slowdown: float
    stall_over_ours: float | None
    stall_cpu_over_ours: float | None
    extra_ram_over_state: float
    files_first_bytes: float | None
    files_later_bytes: float | None
    checkpoints: int
    step_ms: float
    state_bytes: int
    limits: Limits


EFFECTS = ("slowdown", "stall_over_ours", "stall_cpu_over_ours", "extra_ram_over_state")
"""Differences from another measurement, which may be chance."""
MEASURED = (
    *("stall_ms_median", "stall_ms_max", "stall_cpu_ms_median", "stall_over_memcpy", "stall_notice_over_memcpy"),
    *("durable_over_put", "durable_notice_over_put", "restore_over_get", "whole_over_get", "first_batch_beyond_s"),
    *("step_ms", "files_first_bytes", "files_later_bytes"),
    *EFFECTS,
)


@dataclass(frozen=True)
class Summary:
    """The medians of all `rounds` as a row, and each figure's `spread`: its lower and its upper quartile."""

    row: Row
    spread: dict[str, tuple[float, float]]
    rounds: int

    def is_noise(self, name: str) -> bool:
        """Return whether an effect may be none: it is smaller than its spread, or was measured too seldom."""
        if name not in self.spread:
            return False
        low, high = self.spread[name]
        return self.rounds < ROUNDS_MIN or high - low > abs(getattr(self.row, name))


def row(
    model: str,
    variant: str,
    found: Measurement,
    none: Measurement,
    limits: Limits,
    ours: Measurement | None = None,
) -> Row:
    """
    Return the ratios. `none` is a training without checkpoints, of about the same minutes: the machine's speed drifts.
    So is `ours`.
    """
    stalls, cpu = stalls_s(found), stalls_cpu_s(found)
    other = ours if found is not ours else None
    return Row(
        model=model,
        variant=variant,
        stall_ms_median=_median(stalls, 1e-3),
        stall_ms_max=max(stalls) * 1e3 if stalls else None,
        stall_cpu_ms_median=_median(cpu, 1e-3),
        stall_over_memcpy=_median(stalls, limits.memcpy_s),
        stall_notice_over_memcpy=_median([stall for stall, _ in found.paused], limits.memcpy_s),
        durable_over_put=_median([durable for _, durable in found.saves], limits.put_s),
        durable_notice_over_put=_median([durable for _, durable in found.paused], limits.put_s),
        restore_over_get=_ratio(found.restore_s, limits.get_s),
        whole_over_get=_ratio(found.whole_s, limits.get_s),
        restored_identical=found.restored_identical,
        first_batch_beyond_s=None if found.begun is None else _beyond_s(found.begun, limits.get_s),
        slowdown=step_s(found) / step_s(none) - 1,
        stall_over_ours=None if other is None else over(stalls, stalls_s(other)),
        stall_cpu_over_ours=None if other is None else over(cpu, stalls_cpu_s(other)),
        extra_ram_over_state=(found.peak_bytes - none.peak_bytes) / found.state_bytes,
        files_first_bytes=found.files_first_bytes,
        files_later_bytes=found.files_later_bytes,
        checkpoints=len(stalls),
        step_ms=step_s(found) * 1e3,
        state_bytes=found.state_bytes,
        limits=limits,
    )


def stalls_s(found: Measurement) -> list[float]:
    """
    Return for each checkpoint the seconds that the loop took besides computing, in its own iteration and in the next,
    where it waits for a copy that overlaps forward and backward, less those of as many other iterations.
    """
    return _beyond_calm_s([one.rest_s for one in found.iterations], found)


def stalls_cpu_s(found: Measurement) -> list[float]:
    """Return the processor time of the training thread in the same iterations, less that of other iterations."""
    return _beyond_calm_s([one.rest_cpu_s for one in found.iterations], found)


def _beyond_calm_s(rest: list[float], found: Measurement) -> list[float]:
    calm = median(rest)
    steps = [step for step, _ in found.saves if step + STALLED_ITERATIONS <= len(rest) + 1]
    return [sum(rest[step - 1 : step - 1 + STALLED_ITERATIONS]) - STALLED_ITERATIONS * calm for step in steps]


def step_s(found: Measurement) -> float:
    """
    Return the mean seconds of a step from the second checkpoint on, up to where another would follow. Costs of the
    first one alone (imports, a process to upload, memory that is made) are in the longest stall.
    """
    return fmean(one.seconds for one in found.iterations[2 * EVERY_STEPS - 1 :])


def _beyond_s(begun: Begun, get_s: float) -> float:
    return begun.first_batch_s - begun.imports_s - begun.build_s - max(0.0, get_s - begun.imports_s)


def over(stalls: list[float], others: list[float]) -> float | None:
    """Return how much longer the median is: 0.03 for 3 %. None if there is nothing to compare."""
    return median(stalls) / median(others) - 1 if stalls and others and median(others) else None


def _ratio(seconds: float | None, limit_s: float) -> float | None:
    return None if seconds is None else seconds / limit_s


def _median(values: list[float], unit: float) -> float | None:
    return median(values) / unit if values else None


def summary(rows: list[Row]) -> Summary:
    """Return the summary of one variant and model from a row for each round; at least one."""
    values = {name: [value for one in rows if (value := getattr(one, name)) is not None] for name in MEASURED}
    spread = {name: quartiles(found) for name, found in values.items() if found}
    limits = {name: median(getattr(one.limits, name) for one in rows) for name in ("memcpy_s", "put_s", "get_s")}
    told = [one.restored_identical for one in rows if one.restored_identical is not None]
    found = replace(
        rows[0],
        **{name: middle for name, (_, middle, _) in spread.items()},
        restored_identical=all(told) if told else None,
        checkpoints=sum(one.checkpoints for one in rows),
        limits=replace(rows[0].limits, **limits),
    )
    return Summary(found, {name: (low, high) for name, (low, _, high) in spread.items()}, len(rows))


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile of at least one value."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return low, middle, high


def as_json(found: list[Summary]) -> list[dict[str, Any]]:
    return [
        vars(one.row)
        | {"limits": vars(one.row.limits), "rounds": one.rounds, "spread": one.spread}
        | {"noise": [name for name in EFFECTS if one.is_noise(name)]}
        for one in found
    ]
