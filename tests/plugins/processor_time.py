"""
A pytest plugin that measures the processor time of tests, including the processes that they start. What else the
machine does hardly changes that time.

    pytest -p tests.plugins.processor_time --cpu-max 0.5 tests/unit     # a test that needs more fails
    pytest -p tests.plugins.processor_time --shares check tests         # a module that needs more than its budget fails
    pytest -p tests.plugins.processor_time --shares write tests         # measure the budgets anew

`processor_times.txt` has the time of each module. A slower machine needs more for all modules, so what is compared is
each module's share of the whole.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from spotrun.proc import ProcessMark, Stat, stat
from tests.support.repository import ROOT

TIMES = Path(__file__).with_name("processor_times.txt")
GROWN = 4 / 3
"""A module is reported if it needs more than this many times its share."""
BUDGET = 2.0
"""A module fails the run if it needs more than this many times its share."""
NOISE_S = 10.0
"""
Seconds that a module may need more than its share, whatever its size. The module that is the first to use a server pays
for its start, and the order of the modules changes.
"""
_PROPERTY = "processor_s"
_HEAD = "# Seconds of each test module: processor time, and with waits. `make shares` rewrites this file.\n"


class Times(NamedTuple):
    """The seconds that a test module needs: of processors, and from its beginning to its end."""

    processor_s: float = 0.0
    wall_s: float = 0.0

    def plus(self, processor_s: float, wall_s: float) -> Times:
        return Times(self.processor_s + processor_s, self.wall_s + wall_s)


class ProcessTree:
    """This process and all that it started, also indirectly. A process whose parent has ended still belongs to it."""

    def __init__(self) -> None:
        self._alive: dict[ProcessMark, Stat] = {}
        self._orphans_s = 0.0

    def used_s(self) -> float:
        """Return the processor seconds of the whole tree since it began."""
        alive = {each.mark: each for each in self._processes()}
        ended = self._alive.keys() - alive.keys()
        # The time of any other process that has ended is in that of the parent that awaited it.
        self._orphans_s += sum(self._alive[key].cpu_s for key in ended if self._alive[key].parent == 1)
        self._alive = alive
        return sum(os.times()[:4]) + sum(each.cpu_s for each in alive.values()) + self._orphans_s

    def _processes(self) -> Iterator[Stat]:
        """Yield the processes that this one started, and those that such processes have left behind."""
        waiting = [*_children(os.getpid()), *(mark.pid for mark in self._alive if _exists(mark))]
        seen = set()
        while waiting:
            pid = waiting.pop()
            if pid in seen or (found := stat(pid)) is None:
                continue
            seen.add(pid)
            yield found
            waiting += _children(pid)


def _exists(mark: ProcessMark) -> bool:
    """Return True if the process still exists. Another one may have the id of a process that has ended."""
    found = stat(mark.pid)
    return found is not None and found.mark == mark


def _children(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            yield from map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-max", type=float, default=0.0, help="Maximum processor seconds of a test; 0 for no limit.")
    parser.addoption(
        "--shares", choices=("check", "write", "print"), help="Check, rewrite or add up the modules' processor times."
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Measures(), "processor-time-of-tests")
    if config.getoption("--shares"):
        config.pluginmanager.register(_Shares(config), "processor-time-of-modules")


class _Measures:
    """Measures each test. What a test needs to set up, for itself or for later ones, is part of it."""

    def __init__(self) -> None:
        self._pid = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        """Begin anew in each process that runs tests. Collecting them is not part of any test."""
        if self._pid != os.getpid():
            self._pid, self._tree = os.getpid(), ProcessTree()
            self._before_s = self._tree.used_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        limit_s = item.config.getoption("--cpu-max")
        before_s = self._tree.used_s() if limit_s else 0.0
        yield
        if limit_s and (used_s := self._tree.used_s() - before_s) > limit_s:
            pytest.fail(
                f"{used_s:.2f} s of processor time, {limit_s} s are allowed: mark it exhaustive, or make it cheap"
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.when == "teardown":
            now_s = self._tree.used_s()
            item.user_properties.append((_PROPERTY, round(now_s - self._before_s, 3)))
            self._before_s = now_s


class _Shares:
    """Adds up the tests of each module, and compares the sums with the committed ones."""

    def __init__(self, config: pytest.Config) -> None:
        self._mode = config.getoption("--shares")
        self._times: defaultdict[str, Times] = defaultdict(Times)
        self._over: list[str] = []
        self._grown: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        used = dict(report.user_properties).get(_PROPERTY, 0.0) if report.when == "teardown" else 0.0
        assert isinstance(used, float | int)
        name = report.nodeid.partition("::")[0]
        self._times[name] = self._times[name].plus(used, report.duration)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._mode == "write" and exitstatus == pytest.ExitCode.OK:
            write_times(self._times)
        elif self._mode == "check":
            self._grown, self._over = compare(_processor(self._times), _processor(read_times()))
            if self._over and exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        total_s = sum(_processor(self._times).values())
        terminalreporter.section("processor time", "-")
        terminalreporter.line(f"{total_s / 60:.1f} minutes in {len(self._times)} modules")
        for line in [*self._grown, *self._over]:
            terminalreporter.line(line)


def compare(used_s: Mapping[str, float], committed_s: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """
    Return a line for each module that needs more than its share, and one for each module that exceeds its budget.

    `used_s` are the seconds of each module that ran. `committed_s` are those that `make shares` measured, perhaps on
    another machine. A module that is not among them has a budget of `NOISE_S`.
    """
    both = used_s.keys() & committed_s.keys()
    speed = sum(used_s[name] for name in both) / (sum(committed_s[name] for name in both) or 1.0)
    grown, over = [], []
    for name, used in sorted(used_s.items(), key=lambda item: -item[1]):
        share = committed_s.get(name, 0.0) * (speed or 1.0)
        line = f"{name}: {used:.1f} s of processor time, its share is {share:.1f} s"
        if used > share * BUDGET + NOISE_S:
            over.append(f"error: {line}. Make it cheaper, or accept it by `make shares`")
        elif used > max(share * GROWN, share + NOISE_S):
            grown.append(f"note: {line}")
    return grown, over


def _processor(times: Mapping[str, Times]) -> dict[str, float]:
    return {name: each.processor_s for name, each in times.items()}


def read_times() -> dict[str, Times]:
    """Return the committed times of each module."""
    rows = (line.split() for line in TIMES.read_text().splitlines() if not line.startswith("#"))
    return {name: Times(float(processor_s), float(wall_s)) for processor_s, wall_s, name in rows}


def write_times(measured: Mapping[str, Times]) -> None:
    """Commit these times, of the modules that ran; those of modules that still exist but did not run are kept."""
    times = {name: each for name, each in (read_times() | dict(measured)).items() if (ROOT / name).exists()}
    rows = sorted(times.items(), key=lambda row: (-round(row[1].wall_s, 1), row[0]))
    TIMES.write_text(_HEAD + "".join(f"{each.processor_s:8.1f} {each.wall_s:8.1f}  {name}\n" for name, each in rows))
