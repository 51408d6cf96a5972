"""
A pytest plugin: a test that uses more than `--cpu-max` seconds of processor time fails.

    pytest -p tests.support.processor_time --cpu-max 0.5 tests/unit

The processes that a test starts and awaits count too. What else the machine does hardly changes that time.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-max", type=float, default=0.0, help="Maximum processor seconds of a test; 0 for no limit.")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    before_s, limit_s = _cpu_s(), item.config.getoption("--cpu-max")
    yield
    used_s = _cpu_s() - before_s
    if limit_s and used_s > limit_s:
        pytest.fail(f"{used_s:.2f} s of processor time, {limit_s} s are allowed: mark it exhaustive, or make it cheap")


def _cpu_s() -> float:
    """Return the processor seconds of this process, and of its children that have ended and were awaited."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
