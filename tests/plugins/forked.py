"""
A pytest plugin: collects once, then runs the tests in forked processes.

    pytest -p tests.plugins.forked --forks 2 tests/unit

Importing what the tests need takes most of a minute of processor time; pytest-xdist would spend it in each worker. Each
process takes one test file after another, so that no process waits while files are left. The files that take longest
begin first: one that began last would keep one process busy while the others have nothing left. Files that need one of
the fixtures `SHARED` go to one process, as far as that does not make the others wait.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import selectors
import signal
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings, strategies

from tests.plugins.processor_time import Times, read_times

SHARED = ("servers", "zygote")
"""Fixtures of the session that each process which needs them sets up anew, in up to ten seconds of processor time."""
_NUMBER = struct.Struct("=H")
"""A file's number, in a pipe from which all processes read. A pipe takes at least 4,096 bytes: 2,048 files."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=1, help="Run the tests in this many processes.")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect the tests without looking for garbage. What is imported stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count = session.config.getoption("--forks")
    if count < 2 or session.config.option.collectonly or session.testsfailed:  # a file could not be collected
        return None
    files = [list(items) for _, items in itertools.groupby(session.items, key=lambda item: item.path)]
    times = read_times()
    files.sort(key=lambda items: -times.get(items[0].nodeid.partition("::")[0], Times()).wall_s)
    queues = [_queue(numbers) for numbers in _groups(files)]
    if reporter := session.config.pluginmanager.getplugin("terminalreporter"):
        reporter.showfspath = False  # the reports of several files come in turn
    _warm_hypothesis()
    gc.collect()
    gc.freeze()  # so that a collection does not copy the memory that the processes share
    gc.set_threshold(100_000, 50, 100)
    sys.stdout.flush()
    children = dict(_fork(session, files, _in_order(queues, process)) for process in range(count))
    for queue in queues:
        os.close(queue)
    try:
        _receive(session, children)
    except BaseException:  # Ctrl-C, or -x after a failure
        _interrupt([*children.values()])
        raise
    for pid in children.values():
        _, status = os.waitpid(pid, 0)
        if status:
            pytest.exit(f"a process of the tests ended with {os.waitstatus_to_exitcode(status)}", returncode=1)
    return True


@settings(max_examples=1, database=None)
@given(strategies.text())
def _warm_hypothesis(_: str) -> None:
    """Before its first example, hypothesis reads the source of all modules, for constants to try."""


def _groups(files: list[list[pytest.Item]]) -> list[list[int]]:
    """Return the numbers of the files that need none of the shared fixtures, then those that need each of them."""
    groups: list[list[int]] = [[] for _ in range(1 + len(SHARED))]
    for number, items in enumerate(files):
        needed = {name for item in items for name in getattr(item, "fixturenames", ())}
        groups[next((at for at, name in enumerate(SHARED, 1) if name in needed), 0)].append(number)
    return groups


def _queue(numbers: list[int]) -> int:
    """Return a pipe from which all processes read the numbers of their next files."""
    read, write = os.pipe()
    os.write(write, b"".join(map(_NUMBER.pack, numbers)))
    os.close(write)
    return read


def _in_order(queues: list[int], process: int) -> list[int]:
    """Return the queues in the order in which a process empties them: its own first, and then that of all."""
    own = queues[1 + process : 2 + process]
    return [*own, queues[0], *(each for each in queues[1:] if each not in own)]


def _fork(session: pytest.Session, files: list[list[pytest.Item]], queues: list[int]) -> tuple[int, int]:
    """Start a process that runs files of the queues. Return the pipe of its reports, and its id."""
    reports, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return reports, pid
    code = 1
    try:
        os.close(reports)
        session.config.pluginmanager.unregister(name="terminalreporter")
        capture = session.config.pluginmanager.getplugin("capturemanager")
        if capture.is_globally_capturing():  # into a file that all processes would share
            capture.stop_global_capturing()
            capture.start_global_capturing()
            capture.suspend_global_capture()
        with os.fdopen(write, "w") as pipe:
            session.config.pluginmanager.register(_Sends(session.config, pipe))
            _run(session, files, queues)
        code = 0
    finally:
        os._exit(code)


def _run(session: pytest.Session, files: list[list[pytest.Item]], queues: list[int]) -> None:
    """Run files of the queues until these are empty. What a fixture has set up for the session lasts until then."""

    def taken() -> Iterator[pytest.Item]:
        for queue in queues:
            while number := os.read(queue, _NUMBER.size):
                yield from files[_NUMBER.unpack(number)[0]]

    try:
        for item, following in itertools.pairwise(itertools.chain(taken(), [None])):
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail:  # -x: pytest tears everything down after each further test
                break
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # another one must not keep a server from being stopped
        session._setupstate.teardown_exact(None)


def _interrupt(pids: list[int]) -> None:
    """End the processes. Each tears down its fixtures. A test may take a signal for its own: then another follows."""
    while pids:
        for pid in pids:
            os.kill(pid, signal.SIGINT)
        time.sleep(1)
        pids = [pid for pid in pids if os.waitpid(pid, os.WNOHANG) == (0, 0)]


class _Sends:
    """Sends each report of a forked process to the process that prints them."""

    def __init__(self, config: pytest.Config, pipe: Any) -> None:
        self._config, self._pipe = config, pipe

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._pipe.write(json.dumps(told, default=str) + "\n")
        self._pipe.flush()


def _receive(session: pytest.Session, children: dict[int, int]) -> None:
    """Pass the children's reports on to pytest until all children have closed their pipes."""
    with selectors.DefaultSelector() as selector:
        for pipe in children:
            selector.register(pipe, selectors.EVENT_READ, bytearray())
        while selector.get_map():
            for key, _ in selector.select():
                data = os.read(key.fd, 1 << 16)
                key.data.extend(data)
                while (end := key.data.find(b"\n")) >= 0:
                    _pass_on(session, bytes(key.data[:end]))
                    del key.data[: end + 1]
                if session.shouldfail:  # -x, or --maxfail
                    raise session.Failed(session.shouldfail)
                if not data:
                    selector.unregister(key.fd)
                    os.close(key.fd)


def _pass_on(session: pytest.Session, line: bytes) -> None:
    report = session.config.hook.pytest_report_from_serializable(config=session.config, data=json.loads(line))
    if isinstance(report.longrepr, list):  # JSON has no tuples: the place and the reason of a skipped test
        report.longrepr = tuple(report.longrepr)
    if report.when == "setup":
        session.ihook.pytest_runtest_logstart(nodeid=report.nodeid, location=report.location)
    session.ihook.pytest_runtest_logreport(report=report)
