"""The report of a run says how busy its machines were, by what their agents have left in its folder."""

from __future__ import annotations

import io
from datetime import timedelta

import pytest
from rich.console import Console

from spotrun.account.summary import summarise
from spotrun.folder.machine_use import machine_use
from spotrun.folder.status_objects import AgentStatus, Busy, MachineUse, agent_key, write_status
from spotrun.report import terminal
from spotrun.report.html.page import page
from spotrun.report.machine_use import for_programs
from tests.support.histories import ON_DEMAND, START, History
from tests.support.memory_store import MemoryStore
from tests.support.parsed_page import Page


def used(seconds: float, cpu: float, waited: float, gpu: float | None = None) -> MachineUse:
    shares = {"cpu": cpu, "memory": 0.5, "waited": waited} | ({} if gpu is None else {"gpu": gpu, "gpu_memory": 0.25})
    return MachineUse(**{name: Busy(busy_s=share * seconds, of_s=seconds) for name, share in shares.items()})


def left(store: MemoryStore, launch: int, what: MachineUse) -> None:
    status = AgentStatus(launch=launch, phase="train", at=START, sequence=9, used=what)
    write_status(store, agent_key(launch), status)


@pytest.fixture
def history() -> History:
    """Three instances have trained, one after another; the third was lost before its agent wrote anything."""
    history = History()
    for _ in range(2):
        history.after(300).gone(history.running(), ended_at=history.now - timedelta(seconds=9))
    history.running(ON_DEMAND, "3.6")
    return history


def launches(history: History) -> list[int]:
    return list(history.state.launches)


def test_shares_of_all_machines_of_a_type_are_by_their_time(history: History) -> None:
    store = MemoryStore()
    first, second, _ = launches(history)
    left(store, first, used(100, cpu=0.2, waited=0.0, gpu=0.9))
    left(store, second, used(300, cpu=0.6, waited=0.4, gpu=0.5))
    (found,) = for_programs(machine_use(store, history.state))
    assert found == {
        "instance_type": "sim-gpu",
        "looked_at_s": 400.0,
        "cpu_busy": 0.5,
        "memory_used": 0.5,
        "gpu_busy": 0.6,
        "gpu_memory_used": 0.25,
        "data_wait": 0.3,
    }


def test_the_report_has_a_table_of_them_for_people(history: History) -> None:
    store = MemoryStore()
    left(store, launches(history)[0], used(7_200, cpu=0.87, waited=0.12))
    found, text = machine_use(store, history.state), io.StringIO()
    terminal.show(summarise(history.state, history.now), Console(file=text, width=80), found)
    (line,) = (line for line in text.getvalue().splitlines() if line.startswith("sim-gpu"))
    assert line.split() == ["sim-gpu", "2h00m", "87%", "50%", "-", "-", "12%"]
    shown = Page(page(history.state, history.entries, history.now, machines=found))
    assert ["sim-gpu", "2h00m", "87%", "50%", "-", "-", "12%"] in shown.cells


def test_a_run_whose_agents_have_said_nothing_has_no_such_table(history: History) -> None:
    store = MemoryStore()
    left(store, launches(history)[0], MachineUse())
    store.put_status(agent_key(launches(history)[1]), b"{")
    assert machine_use(store, history.state) == []
    assert "How busy" not in page(history.state, history.entries, history.now)


def test_usage_lists_types_in_the_order_in_which_they_trained() -> None:
    store, history = MemoryStore(), History()
    for instance_type in ("sim-large", "sim-gpu", "sim-large"):
        launch = history.running(instance_type=instance_type)
        history.after(300).gone(launch, ended_at=history.now - timedelta(seconds=9))
        left(store, launch, used(100, cpu=0.5, waited=0.0))
    found = for_programs(machine_use(store, history.state))
    assert [(each["instance_type"], each["looked_at_s"]) for each in found] == [
        ("sim-large", 200.0),
        ("sim-gpu", 100.0),
    ]
