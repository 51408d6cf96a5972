"""
Estimates the training speed of instances from published figures, until a run has measured it.

Training speed is limited either by arithmetic (TFLOPS) or by memory bandwidth (GB/s), and spotrun cannot know
beforehand which of the two it will be. So the estimate is the geometric mean of both figures, relative to a V100:

    speed = sqrt(TFLOPS * GB/s)                      in general
    speed = published samples/s of a training        for an accelerator with such a figure
    speed of n accelerators = speed of one * n ** SCALING

For ResNet-50, the first formula estimates that an A100 is 2.1 times as fast as a V100; 1.9 times was measured. For
other models, the estimate may be wrong by a factor of three. `spotrun.policy.throughput` takes this uncertainty into
account, and has the run measure the speed.
"""

from __future__ import annotations

from math import log, sqrt

from spotrun.market.accelerators import PEAK_TFLOPS
from spotrun.offering import Offering

GB_PER_S = {
    "T4": 320.0,
    "V100": 900.0,
    "A10G": 600.0,
    "A100": 1555.0,
    "A100-80GB": 2039.0,
    "L4": 300.0,
    "L40S": 864.0,
    "H100": 3350.0,
    "H200": 4800.0,
    "B200": 8000.0,
}
"""
Memory bandwidth of one accelerator, as of 2026-11-25, from the data sheets that PEAK_TFLOPS cites. `A100` is the
version with 40 GB.
"""
TRAINED = {"V100": 1270.0, "A100": 2375.0}
"""
Images per second of ResNet-50 v1.5 on one GPU, in mixed precision with XLA, read on 2026-11-25:
https://github.com/NVIDIA/DeepLearningExamples/blob/master/TensorFlow/Classification/ConvNets/resnet50v1.5/README.md
"""
SCALING = log(9510 / 1270) / log(8)
"""
Exponent with which the speed grows with the number of accelerators. It is computed from the source of TRAINED: eight
V100s of one machine train 9,510 images per second, and one V100 trains 1,270.
"""
CPU_TFLOPS, CPU_GB_PER_S = 0.1, 3.0
"""
TFLOPS and GB/s of one virtual CPU, which is half a core. TFLOPS: 64 operations of FP32 per cycle and core with AVX-512,
at 3 GHz. GB/s: the virtual CPU's share of a socket with 6 channels of DDR4-2933 and 48 virtual CPUs.
https://aws.amazon.com/ec2/instance-types/c5/, 2026-11-25.
"""
_REFERENCE = "V100"


def published_speed(offering: Offering) -> float | None:
    """Return the speed of an instance in multiples of one V100; None if the figures of its accelerator are unknown."""
    if not offering.accelerators:
        return _half_way(CPU_TFLOPS * max(1, offering.cpus), CPU_GB_PER_S * max(1, offering.cpus))
    name, _, count = offering.accelerators.upper().partition(":")
    known = name if name in GB_PER_S else name.partition("-")[0]
    if known not in GB_PER_S:
        return None
    trained = TRAINED.get(known)
    one = _half_way(PEAK_TFLOPS[known], GB_PER_S[known]) if trained is None else trained / TRAINED[_REFERENCE]
    return float(one * int(count or 1) ** SCALING)


def _half_way(tflops: float, gb_per_s: float) -> float:
    return sqrt(tflops * gb_per_s / PEAK_TFLOPS[_REFERENCE] / GB_PER_S[_REFERENCE])
