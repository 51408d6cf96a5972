"""One member of a gang on the command line: whose log is shown, and who is meant by --member."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from spotrun.cli.app import app
from spotrun.errors import RunNotFound
from spotrun.run.gang import MemberName
from spotrun.store.local import LocalStore
from tests.support.decisions import spec
from tests.support.gang_history import GangHistory
from tests.support.stored_runs import store_run


@pytest.fixture
def history() -> GangHistory:
    """1.0 has led, and was lost. 1.1 leads now, and another one with it."""
    history = GangHistory(2)
    history.state.created.spec.update(spec().model_copy(update={"num_nodes": 2}).to_dict())
    one, two = history.training_gang()
    history.after(9).lost(one)
    (three,) = history.ask(1)
    history.exist(three)
    history.ready(two, three)
    history.start_gang([two, three])
    return history


@pytest.fixture
def store(history: GangHistory, tmp_path: Path) -> Path:
    run = LocalStore(store_run(tmp_path, history))
    for launch in history.state.launches.values():
        for index in range(len(launch.members)):
            name = MemberName(launch.number, index)
            run.put(f"logs/{name if index else launch.number}/000000.log", f"printed by {name}\n".encode())
    return tmp_path


def said(store: Path, *words: str) -> list[str]:
    found = CliRunner().invoke(app, [*words, "--store", str(store)])
    assert found.exit_code == 0, found.output
    return found.output.splitlines()


def refused(store: Path, *words: str) -> str:
    found = CliRunner().invoke(app, [*words, "--store", str(store)])
    assert isinstance(found.exception, RunNotFound)
    return str(found.exception)


def test_the_log_of_a_run_is_that_of_rank_0(store: Path):
    printed = [line for line in said(store, "logs", "demo") if line.startswith("printed")]
    assert printed == ["printed by 1.0", "printed by 1.1"]


def test_the_log_of_an_attempt_is_that_of_its_lead(store: Path):
    assert said(store, "logs", "demo", "--attempt", "1") == [
        "==> member 1.0: spot in local-a (sim-gpu) <==",
        "printed by 1.0",
    ]
    assert said(store, "logs", "demo", "--attempt", "2")[1:] == ["printed by 1.1"]


def test_another_member_is_named(history: GangHistory, store: Path):
    third = max(history.state.launches)
    assert said(store, "logs", "demo", "--member", f"{third}.0")[1:] == [f"printed by {third}.0"]


@pytest.mark.parametrize("text", ["1.2", "7.0", "one", "1", "1.0.0", ""])
def test_a_member_that_there_is_not_is_refused_with_those_that_there_are(store: Path, text: str):
    for words in (["logs", "demo"], ["ssh", "demo"], ["chaos", "demo"]):
        told = refused(store, *words, "--member", text)
        assert f"has no member {text}" in told
        assert "1.0, 1.1, " in told


def test_before_anything_trains_the_first_member_of_a_launch_is_shown(tmp_path: Path):
    history = GangHistory(2)
    history.state.created.spec.update(spec().model_copy(update={"num_nodes": 2}).to_dict())
    history.ask(2)
    run = LocalStore(store_run(tmp_path, history))
    run.put("logs/1/000000.log", b"sets up\n")
    run.put("logs/1.1/000000.log", b"sets up too\n")
    assert said(tmp_path, "logs", "demo")[1:] == ["sets up"]


def test_a_member_that_has_ended_has_no_shell_and_the_living_ones_are_named(store: Path, history: GangHistory):
    found = refused(store, "ssh", "demo", "--member", "1.0", "--print")
    assert "member 1.0 of demo" in found
    assert "ended at" in found
    assert f"its running members are 1.1, {history.state.current.names[1]}" in found
