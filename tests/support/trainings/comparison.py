"""Two trainings compared."""

from __future__ import annotations


def assert_same(straight, killed):
    for n, (a, b) in enumerate(zip(straight["trace"], killed["trace"], strict=False)):
        assert a == b, f"first difference in line {n}"
    assert straight == killed
