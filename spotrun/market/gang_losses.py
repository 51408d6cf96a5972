"""
Says how much more often a gang loses a member than one instance is lost.

Instances in one zone are often lost together, so a gang of N loses its first member less than N times as often.
"""

from __future__ import annotations

TOGETHER_IN_ZONE = 0.08
"""
How strongly the losses of instances in one zone are correlated: 0 if they are independent, 1 if all are lost at once.
This parameter was fitted to four public records of groups of instances (https://github.com/uclasystem/bamboo, traces:
V100 and T4 on AWS, V100 and A100 on Google Cloud). For members that are drawn at random from such a group, the table
shows how many times as often as one instance the first of them is lost.

    members      in the four records     first_of
    4            2.9 to 3.6              3.2
    8            4.2 to 6.2              5.1
    16           5.6 to 10.1             7.3
"""


def first_of(size: int) -> float:
    """Return how many times as often as one instance a gang of `size` instances in one zone loses a member."""
    return size / (1 + TOGETHER_IN_ZONE * (size - 1))
