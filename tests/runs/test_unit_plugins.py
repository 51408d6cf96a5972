"""The plugins of the tests: forked processes, the processor time of a test, and processes with warm imports."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugins.processor_time import ProcessTree, compare
from tests.plugins.warm import AT_IMPORT, AUTOLOAD, ROOM, Program, Servers, Start, is_usual, program_of
from tests.support.eventually import eventually
from tests.support.repository import ROOT
from tests.support.sandbox import environment_of

pytestmark = pytest.mark.checks(
    *(f"tests/plugins/{name}.py" for name in ("forked", "processor_time", "unchanged", "warm", "warm_server"))
)
SERVER = """
import os, pytest

@pytest.fixture(scope="session", autouse=True)
def server():
    with open("servers", "a") as file:
        print("up", os.getpid(), file=file, flush=True)
        yield
        print("down", os.getpid(), file=file, flush=True)
"""
"""A fixture that leaves a line where a real one would leave a server running."""
BOTH = ("-p", "tests.plugins.forked", "-p", "tests.plugins.processor_time", "-p", "no:cacheprovider")
TESTS = """
import os, time
import pytest
HERE = os.getpid()

def test_passes():
    print(os.getpid())

def test_fails():
    assert False, "on purpose"

def test_burns():
    began = time.process_time()
    while time.process_time() < began + 0.3:
        pass

@pytest.mark.skip(reason="never")
def test_is_skipped():
    pass
"""


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on two files of these tests, in two forked processes."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name in ("test_a.py", "test_b.py"):
        (folder / name).write_text(TESTS)
    words = [sys.executable, "-m", "pytest", *BOTH, "--forks", "2", "-rfs", "-p", "no:xdist", *options, str(folder)]
    return subprocess.run(words, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)


def test_forked_processes_report_each_test_once_and_name_the_expensive_one(tmp_path: Path) -> None:
    done = run(tmp_path, "--cpu-max", "0.25")
    assert done.returncode == 1
    assert "2 passed" in done.stdout
    assert "4 failed" in done.stdout
    assert "2 skipped" in done.stdout
    assert done.stdout.count("on purpose") >= 2
    assert "test_burns" in done.stdout
    assert "0.25 s are allowed" in done.stdout


def test_option_x_stops_all_processes_at_the_first_failure(tmp_path: Path) -> None:
    done = run(tmp_path, "-x")
    assert done.returncode == 1
    assert "stopping after 1 failures" in done.stdout


@pytest.mark.parametrize("options", [(), ("-x",)], ids=["all", "stopped"])
def test_each_process_sets_up_session_fixtures_once_and_tears_them_down(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "conftest.py").write_text(SERVER)
    (tmp_path / "test_c.py").write_text("def test_last(): pass\n")  # three files, two processes
    run(tmp_path, *options)
    lines = sorted((tmp_path / "servers").read_text().split("\n")[:-1])
    down, up = lines[: len(lines) // 2], lines[len(lines) // 2 :]
    assert 1 <= len(up) <= 2
    assert [line.replace("down", "up") for line in down] == up


def test_budget_is_a_modules_share_of_the_whole() -> None:
    committed = {"a": 10.0, "b": 20.0, "c": 30.0}
    assert compare({"a": 21.0, "b": 40.0, "c": 61.0}, committed) == ([], [])  # a slower machine
    grown, over = compare({"a": 10.0, "b": 40.0, "c": 30.0, "new": 2.0}, committed)
    assert [line.split(":")[1] for line in grown] == [" b"]
    assert not over
    _, over = compare({"a": 10.0, "b": 130.0, "c": 30.0, "new": 19.0}, committed)
    assert [line.split(":")[1] for line in over] == [" b", " new"]


def test_time_of_a_server_belongs_to_the_tests_during_which_it_worked() -> None:
    burn = "import sys, time\nfor _ in sys.stdin:\n    end = time.process_time() + 0.3\n"
    burn += "    while time.process_time() < end: pass\n    print('done', flush=True)\n"
    tree, pipe = ProcessTree(), subprocess.PIPE
    with subprocess.Popen([sys.executable, "-S", "-c", burn], stdin=pipe, stdout=pipe, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        times = [tree.used_s()]
        for _ in range(2):
            print("go", file=server.stdin, flush=True)
            assert server.stdout.readline() == "done\n"
            times.append(tree.used_s())
    times.append(tree.used_s())
    first, second, end = (after - before for before, after in itertools.pairwise(times))
    assert 0.25 < first < 0.6
    assert 0.25 < second < 0.6
    assert end < 0.1  # the server has ended: its time is not counted once more


def test_file_that_cannot_be_imported_stops_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_c.py").write_text("import no_such_module\n")
    done = run(tmp_path)
    assert done.returncode == 2
    assert "no_such_module" in done.stdout
    assert "passed" not in done.stdout


def test_a_process_that_dies_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_c.py").write_text("import os\n\ndef test_dies():\n    os._exit(3)\n")
    done = run(tmp_path)
    assert done.returncode != 0
    assert "ended with 3" in done.stdout + done.stderr


CHECKS = """
import pytest

pytestmark = pytest.mark.checks("tool")

def test_of_the_tool(): pass
"""


def test_tests_of_a_tool_are_left_out_until_the_tool_changes(tmp_path: Path) -> None:
    (tmp_path / "tests" / "plugins").mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = checks: of a tool\n")
    (tmp_path / "test_tool.py").write_text(CHECKS)
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "code.py").write_text("1")

    def done(mode: str) -> str:
        plugins = ["-p", "tests.plugins.unchanged", "-p", "no:cacheprovider"]
        words = [sys.executable, "-m", "pytest", *plugins, "--unchanged", mode, str(tmp_path)]
        environment = {"PYTHONPATH": str(ROOT)}
        return subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False).stdout

    assert "1 passed" in done("skip")  # nothing is recorded yet
    assert "1 passed" in done("record")
    assert "1 deselected" in done("skip")
    (tmp_path / "tool" / "code.py").write_text("2")
    assert "1 passed" in done("skip")


@pytest.fixture(scope="module")
def servers() -> Servers:
    return Servers()


def begin(servers: Servers, folder: Path, *words: str, **variables: str) -> tuple[int, Path]:
    """Start `spotrun …` by a server. Return its process id and the file of its output."""
    output = folder / "output"
    with output.open("wb") as file, open(os.devnull, "rb") as nothing:
        fds = {0: nothing.fileno(), 1: file.fileno(), 2: file.fileno()}
        pid = servers.start(
            Start(Program("spotrun", True, False, words), {**os.environ, **variables}, str(folder), fds, False), None
        )
    assert pid is not None
    return pid, output


def test_warm_process_is_a_child_with_its_own_folder_variables_arguments_and_exit_code(
    servers: Servers, tmp_path: Path
) -> None:
    pid, output = begin(servers, tmp_path, "status", "--store", "none", SPOTRUN_TESTS_OWN="its own")
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    assert "there is no folder none" in output.read_text()
    pid, output = begin(servers, tmp_path, "metrics", "--store", ".", "--listen", "127.0.0.1:0", SPOTRUN_TESTS_OWN="1")
    eventually(lambda: "serving" in output.read_text())
    assert environment_of(pid)["SPOTRUN_TESTS_OWN"] == "1"
    assert Path(f"/proc/{pid}/cmdline").read_bytes().startswith(f"{sys.executable}\0-m\0spotrun\0metrics".encode())
    assert os.readlink(f"/proc/{pid}/cwd") == str(tmp_path)
    os.kill(pid, signal.SIGINT)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["-c", "pass"], {}),
        (["-m", "spotrun.store"], {}),
        (["-u", "-m", "spotrun"], {}),
        (["own.py"], {}),
        (["-m", "spotrun"], {"PYTHONHASHSEED": "3"}),
        (["quick.py"], {"PYTHONPATH": "/elsewhere"}),
        (["-m", "spotrun"], {"PYTHONPATH": "/elsewhere"}),
    ],
)
def test_process_that_no_server_can_stand_for_starts_as_always(words: list[str], variables: dict[str, str]) -> None:
    program = program_of([sys.executable, *words], None)
    assert program is None or not is_usual({**os.environ, **variables}, program)


def test_servers_run_agents_and_the_trainers_that_they_start() -> None:
    agent = program_of([sys.executable, "-P", "-m", "spotrun.agent"], None)
    assert agent == Program("spotrun.agent", True, True, [])
    assert is_usual({**os.environ, "PYTHONPATH": str(ROOT)}, agent)
    trainer = program_of([sys.executable, "quick.py", "--epochs", "2"], None)
    assert trainer == Program("quick.py", False, False, ["--epochs", "2"])
    assert trainer.command == [sys.executable, "quick.py", "--epochs", "2"]
    assert is_usual({**os.environ, "PYTHONPATH": str(AUTOLOAD), "PYTHONHASHSEED": "3"}, trainer)


AGENT = """
import os, subprocess, sys
from types import ModuleType
from tests.plugins import warm, warm_server

warm_server.hidden["made_up"] = ModuleType("made_up")
warm.intercept(warm_server.start)
del os.environ["SPOTRUN_TESTS_ROOM"]  # that room is for the trainer's variables
trainer = subprocess.Popen([sys.executable, "quick.py"], stdout=subprocess.PIPE, text=True)
print(trainer.stdout.read().split() == [str(os.getpid()), "made_up"], trainer.wait())
"""
"""Starts a trainer as an agent does that has the imports of trainers. The trainer ends with exit code 7."""


def test_forked_trainer_is_a_child_of_its_agent_which_learns_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "quick.py").write_text("import os, made_up; print(os.getppid(), made_up.__name__); raise SystemExit(7)")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SPOTRUN_TESTS_ROOM": ROOM}
    words = [sys.executable, "-c", AGENT, ROOM]
    result = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout == "True 7\n"


def test_each_setting_that_an_import_reads_has_a_server_of_its_own() -> None:
    read = {
        name
        for path in ROOT.glob("spotrun/**/*.py")
        for name in re.findall(r'^[A-Z_]+ = \w+\(os\.environ\.get\("(\w+)"', path.read_text(), re.MULTILINE)
    }
    assert read == AT_IMPORT
