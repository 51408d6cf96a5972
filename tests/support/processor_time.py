"""
A pytest plugin: limits the processor time of each test, and compares the share of each test file with the last one.

    pytest -p tests.support.processor_time --cpu-max 0.5
    pytest -p tests.support.processor_time --shares tests/shares.json
    pytest -p tests.support.processor_time --write-shares tests/shares.json

Processor time, with that of the processes that a test has started and awaited, does not depend on what else the machine
does. A share is in thousandths of the whole suite, so it does not depend on the machine either.
"""

from __future__ import annotations

import json
import resource
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

CPU_S = "cpu_s"
GROWN = 4 / 3
"""A file whose share is larger by this factor is reported."""
BUDGET = 2.0
"""A file whose share is larger by this factor fails the run."""
NOISE = 2.0
"""Thousandths of the suite by which a share may grow in any case: files of a few seconds vary."""
WHOLE = 0.98
"""A run with less than this part of the recorded files is no run of the whole suite, and is not compared."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-max", type=float, default=0.0, help="Maximum processor seconds of a test; 0 for no limit.")
    parser.addoption("--shares", type=Path, help="Compare the shares of test files with those in this file.")
    parser.addoption("--write-shares", type=Path, help="Write the shares of test files into this file.")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # pytest-xdist's workers send their reports to this process
        config.pluginmanager.register(Shares(config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[_BEGAN] = _cpu_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    before_s, limit_s = _cpu_s(), item.config.getoption("--cpu-max")
    yield
    used_s = _cpu_s() - before_s
    if limit_s and used_s > limit_s:
        pytest.fail(f"{used_s:.2f} s of processor time, {limit_s} s are allowed: mark it exhaustive, or make it cheap")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if call.when == "teardown":
        report.user_properties.append((CPU_S, _cpu_s() - item.stash[_BEGAN]))
    return report


class Shares:
    """Sums the processor time of each test file, and compares or writes the shares at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._seconds = Counter[str]()
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == CPU_S:
                self._seconds[report.nodeid.partition("::")[0]] += float(value)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        known, write = self._config.getoption("--shares"), self._config.getoption("--write-shares")
        shares = shares_of(self._seconds)
        if write is not None and exitstatus == 0:
            write.write_text(
                json.dumps({name: round(share, 1) for name, share in sorted(shares.items())}, indent=1) + "\n"
            )
        self.grown = [] if known is None else grown(json.loads(known.read_text()), shares)
        if exitstatus == 0 and any(each.is_over for each in self.grown):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(f"processor time of the tests: {sum(self._seconds.values()):.0f} s")
        for each in self.grown:
            over = ", which is over its budget: make it cheaper, or run `make durations`" if each.is_over else ""
            terminalreporter.write_line(f"{each.file}: {each.share:.1f} of 1,000, it was {each.before:.1f}{over}")


class Grown(NamedTuple):
    """A test file whose share of the suite has grown, in thousandths."""

    file: str
    before: float
    share: float

    @property
    def is_over(self) -> bool:
        return self.share > self.before * BUDGET + NOISE


def shares_of(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return each file's share of the sum, in thousandths."""
    total = sum(seconds.values()) or 1.0
    return {name: 1000 * each / total for name, each in seconds.items()}


def grown(before: Mapping[str, float], now: Mapping[str, float]) -> list[Grown]:
    """Return the files whose share has grown by a third, the largest first; none if `now` is not the whole suite."""
    if len(before.keys() & now.keys()) < WHOLE * len(before):
        return []
    found = [Grown(name, before.get(name, 0.0), share) for name, share in now.items()]
    return sorted((each for each in found if each.share > each.before * GROWN + NOISE), key=lambda each: -each.share)


def _cpu_s() -> float:
    """Return the processor seconds of this process, and of its children that have ended and were awaited."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


_BEGAN = pytest.StashKey[float]()
