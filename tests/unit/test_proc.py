"""Processes by their environment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from spotrun import proc
from spotrun.clouds.local.processes import carrying, kill_all
from tests.support.eventually import eventually

ROUNDS = 40
"""Without a second look at who is within execve, dozens in a hundred escape."""
MANY = {f"SPOTRUN_TEST_{number}": "x" for number in range(1000)}
"""With these, Linux needs so long to enter where the variables end that some escape who seem to have none."""


@pytest.mark.exhaustive
def test_a_process_between_two_programs_is_found_too(tmp_path: Path) -> None:
    script = tmp_path / "another"
    script.write_text('#!/bin/sh\nexec "$0"\n')
    script.chmod(0o755)
    escaped = []
    for number in range(ROUNDS):
        variable = {"SPOTRUN_TEST_PROC": f"{os.getpid()}-{number}"}
        child = subprocess.Popen([script], env=os.environ | MANY | variable, start_new_session=True)
        kill_all(lambda variable=variable: carrying(*next(iter(variable.items()))))
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(10)
            continue
        escaped.append(number)
        child.kill()
        child.wait()
    assert escaped == []


def test_search_does_not_wait_for_a_process_without_any_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "EXEC_WITHIN_S", 3600.0)
    child = subprocess.Popen(["/bin/sleep", "60"], env={})
    try:
        eventually(lambda: (found := proc.stat(child.pid)) is not None and found.has_no_environment)
        assert proc.started_with("SPOTRUN_TEST_PROC", "nobody") == []
    finally:
        child.kill()
        child.wait()


def test_process_started_during_the_search_by_an_ended_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    variable = {"SPOTRUN_TEST_PROC": "a mother", "PATH": os.environ["PATH"]}
    program = ["sh", "-c", "read -r _; sleep 60 & echo $!; exec sleep 60"]
    mother = subprocess.Popen(program, env=variable, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert mother.stdin is not None
    assert mother.stdout is not None
    children: list[int] = []
    environment = proc._environment

    def as_she_dies(pid: int) -> bytes | None:
        if pid == mother.pid and not children:
            print(file=mother.stdin, flush=True)
            children.append(int(mother.stdout.readline()))
            mother.kill()
            os.waitid(os.P_PID, mother.pid, os.WEXITED | os.WNOWAIT)
        return environment(pid)

    monkeypatch.setattr(proc, "_environment", as_she_dies)
    try:
        assert proc.started_with("SPOTRUN_TEST_PROC", "a mother") == children
    finally:
        mother.kill()
        mother.wait()
        for child in children:
            os.kill(child, signal.SIGKILL)


def test_only_who_was_started_with_the_variable_is_found() -> None:
    one, other = (
        subprocess.Popen(["sleep", "60"], env={"SPOTRUN_TEST_PROC": value, "PATH": os.environ["PATH"]})
        for value in ("this", "this too")
    )
    try:
        assert proc.started_with("SPOTRUN_TEST_PROC", "this") == [one.pid]
        one.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)  # dead, and nobody has fetched its exit code
        assert proc.started_with("SPOTRUN_TEST_PROC", "this") == []
    finally:
        for child in (one, other):
            child.kill()
            child.wait()
