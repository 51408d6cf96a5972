"""
Computes the maximum speedup of a training, with a faster device or with faster loading of data. Pure.

In each step, the training waits for its data and then computes. `w` is the measured share of the time that it waits. A
remedy shortens either the waiting or the computing. At best, that part then takes no time at all, and the speedup is
(Amdahl 1967):

    a faster device        1 / w           if computing takes no time
    faster loading         1 / (1 - w)     if waiting takes no time

A faster device gains even less than this bound if the loaders load data while the device computes. They then have
less time to do so, and the training waits longer.
"""

from __future__ import annotations

from spotrun.bench.meter import Measurement

LITTLE = 0.05
"""Up to this share of a step, waiting for data is too short to act on."""
INPUT_BOUND = 0.30
"""Above this share of a step, waiting for data is the first thing to improve."""
BUSY = 0.8
"""If a training keeps its processors busy for this share of the time or more, it needs all of them."""
MORE_CPUS = 8
GAIN_MAX = 100.0


def device_gain(measured: Measurement) -> float:
    """Return the maximum speedup on a faster device; `inf` if the training never waits for data."""
    return 1 / measured.data_wait if measured.data_wait else float("inf")


def loading_gain(measured: Measurement) -> float:
    """Return the maximum speedup with faster loading; `inf` if the training only waits."""
    return 1 / (1 - measured.data_wait) if measured.data_wait < 1 else float("inf")


def cpus_gain(measured: Measurement, more: int = MORE_CPUS) -> float | None:
    """
    Return the speedup with `more` additional CPUs, provided that the data loaders use them as fully as the present
    CPUs.

    Return None if the training does not keep the present CPUs busy. Then more CPUs would not help, because loading
    waits for something else, or has too few workers.
    """
    if measured.cpu_share is None or measured.cpu_share < BUSY or not measured.cpus:
        return None
    waits = measured.data_wait * measured.cpus / (measured.cpus + more)
    return 1 / (1 - measured.data_wait + waits)


def verdict(measured: Measurement) -> str:
    """Return a sentence that says what limits the training, and how much each remedy can speed it up at most."""
    waits = measured.data_wait
    if waits <= LITTLE:
        most = _times(loading_gain(measured))
        return f"compute-bound: faster loading gains at most {most}, a faster device may gain more{_idle(measured)}"
    word = "input-bound" if waits > INPUT_BOUND else "partly input-bound"
    device, loading = _times(device_gain(measured)), _times(loading_gain(measured))
    more = cpus_gain(measured)
    if more is not None:
        more_cpus = f"{MORE_CPUS} more vCPUs gain {_times(more)} if the loaders use them (num_workers)"
        remedy = f"{more_cpus}, and {loading} at most"
    else:
        remedy = f"faster loading gains at most {loading}{_spare(measured)}"
    return f"{word}: a faster device gains at most {device}; {remedy}"


def _spare(measured: Measurement) -> str:
    if measured.cpu_share is None:
        return ""
    return f" (it keeps its CPUs {measured.cpu_share:.0%} busy: first try more workers, or faster storage)"


def _idle(measured: Measurement) -> str:
    """Return a sentence about GPUs that are idle although the training does not wait for data; "" if they are busy."""
    if measured.gpu_share is None or measured.gpu_share >= BUSY:
        return ""
    return f"; its GPUs compute {measured.gpu_share:.0%} of the time: try a larger batch, or less Python between steps"


def _times(gain: float) -> str:
    return f"{gain:.1f}×" if gain < GAIN_MAX else f"over {GAIN_MAX:.0f}×"
