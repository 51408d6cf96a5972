"""
The dress rehearsal: a run on Compute Engine from its launch to its bill, against servers that speak Google's protocols.

Compute Engine is tests/support/google_server.py, whose instances execute their startup-script; objects are in
fake-gcs-server, behind a gate that knows each instance by its token. Everything between them is what a real project
would get: this very wheel out of the run's folder, the bootstrap, the agent, the notices. The image has no PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from spotrun.folder.ledger import key_of
from spotrun.offering import CapacityType
from spotrun.run.events import Cause
from spotrun.run.state import Attempt, RunState
from spotrun.runner.creation import prepare_run
from spotrun.spec.file import load_spec
from tests.support import gce_operations as kinds
from tests.support.gce_bills import dollars
from tests.support.gcp_instance import instance
from tests.support.gcp_sandbox import REGION, SECRET, TYPE, Gcp, gcp_sandbox
from tests.support.object_stores import RunningServer
from tests.support.sandbox import environment_of, final_tensors, processes_now

A, B, C = (f"{REGION}-{letter}" for letter in "abc")
SPOT = "SPOT"
EPOCHS = 50
"""Enough that a machine that has to install everything is there before the end."""
FEW_EPOCHS, STEPS_OF_AN_EPOCH = 20, 12


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: Callable[[str], RunningServer]) -> Iterator[Gcp]:
    with gcp_sandbox(tmp_path, monkeypatch, servers("gs")) as sandbox:
        yield sandbox


@pytest.mark.timeout(600)
def test_a_run_on_compute_engine_loses_a_machine_and_does_each_step(sandbox: Gcp) -> None:
    """The bits of a run without an interruption are compared at night, and by make test on EC2."""
    another_run(sandbox, "calm")
    runner = sandbox.start("launch", sandbox.job_on_gcp("stormy", f"--epochs, '{FEW_EPOCHS}', --step-s, '0.4'"), "-y")
    first = sandbox.trains_on(runner, steps=5)
    assert SECRET in {environment_of(process).get("WORD") for process in processes_now()}
    its_token_reaches_what_an_instance_may(sandbox)
    sandbox.project.preempt(first)
    sandbox.trains_on(runner, before=first, steps=1)
    sandbox.hurry()
    output, _ = runner.communicate(timeout=240)
    assert runner.returncode == 0, output

    state = sandbox.state("stormy")
    attempts = list(state.attempts.values())
    assert [attempt.end.cause for attempt in attempts if attempt.end is not None] == [Cause.INTERRUPTED, Cause.DONE]
    assert notice_of(attempts[0]) > timedelta(seconds=100)
    its_set_up_was_paid_once(state)
    lines = sandbox.trace_by_step()
    assert sorted(lines) == [*range(FEW_EPOCHS * STEPS_OF_AN_EPOCH)]
    assert all(len(found) == 1 for found in lines.values()), "a step that was done twice was the same"
    its_bill_is_what_google_charges(sandbox)
    its_secret_is_nowhere_else(sandbox, output)
    nothing_of_it_is_left(sandbox, [first])


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_run_on_compute_engine_loses_its_machines_and_ends_as_if_nothing_had_happened(sandbox: Gcp) -> None:
    calm(sandbox, EPOCHS)
    for zone in (A, B):
        sandbox.project.stock_out(zone, TYPE, SPOT)
    runner = sandbox.start("launch", sandbox.job_on_gcp("stormy", f"--epochs, '{EPOCHS}', --step-s, '0.4'"), "-y")

    first = sandbox.trains_on(runner)
    assert SECRET in {environment_of(process).get("WORD") for process in processes_now()}
    its_token_reaches_what_an_instance_may(sandbox)
    sandbox.extended_notice = False
    sandbox.project.preempt(first)
    second = sandbox.trains_on(runner, before=first)
    sandbox.project.timings.shutdown = timedelta(seconds=30)
    sandbox.project.preempt(second)
    third = sandbox.trains_on(runner, before=second)
    sandbox.project.stock_out(C, TYPE, SPOT)
    sandbox.project.preempt_at_once(third)
    fourth = sandbox.trains_on(runner, before=third)
    for zone in (A, B, C):
        sandbox.project.restock(zone, TYPE, SPOT)
    sandbox.trains_on(runner, before=fourth)
    sandbox.hurry()
    output, _ = runner.communicate(timeout=240)
    assert runner.returncode == 0, output

    state = sandbox.state("stormy")
    it_lost_what_it_was_to_lose_and_came_back_to_spot(sandbox, state)
    its_set_up_was_paid_once(state)
    it_ended_as_the_calm_one(sandbox)
    its_bill_is_what_google_charges(sandbox)
    its_secret_is_nowhere_else(sandbox, output)
    nothing_of_it_is_left(sandbox, [first, second, third])


def another_run(sandbox: Gcp, name: str) -> None:
    """A folder beside that of the run that is looked at."""
    prepare_run(load_spec(sandbox.job(name)), "a test").create()


def calm(sandbox: Gcp, epochs: int) -> None:
    """The same run without an interruption, on the local cloud."""
    sandbox.call("launch", sandbox.job("calm", args=f"--epochs, '{epochs}', --step-s, '0'"), "-y")
    sandbox.trace.rename(sandbox.trace.with_suffix(".calm"))


def it_ended_as_the_calm_one(sandbox: Gcp) -> None:
    quiet = dict(line.split(" ", 1) for line in sandbox.trace.with_suffix(".calm").read_text().splitlines())
    assert {str(step): lines for step, lines in sandbox.trace_by_step().items()} == {
        step: {f"{step} {rest}"} for step, rest in quiet.items()
    }
    assert final_tensors(sandbox.run("stormy")) == final_tensors(sandbox.run("calm"))


def its_token_reaches_what_an_instance_may(sandbox: Gcp) -> None:
    """With the token that its metadata give out: its own run's folder and no other's, and no entry is written twice."""
    runs = {name: sandbox.run(name) for name in ("stormy", "calm")}
    written = runs["stormy"].store.get(key_of(0)).decode()
    with instance(sandbox.google, sandbox.account("stormy")) as one:
        assert one.ask(runs["stormy"].uri, "get", key_of(0)) == written
        for verb, *arguments in (("put", key_of(0), "another"), ("delete", key_of(0)), ("put", "boot/start.sh", "x")):
            assert one.ask(runs["stormy"].uri, verb, *arguments)[0] == "StoreError"
        for verb, key in (("get", key_of(0)), ("list", "")):
            assert one.ask(runs["calm"].uri, verb, key)[0] == "StoreError"
    assert runs["stormy"].store.get(key_of(0)).decode() == written
    sandbox.google.denied.clear()


def it_lost_what_it_was_to_lose_and_came_back_to_spot(sandbox: Gcp, state: RunState) -> None:
    attempts = list(state.attempts.values())
    pools = [state.launch_of(attempt).intent.offering.pool for attempt in attempts]
    assert [attempt.end.cause for attempt in attempts if attempt.end is not None][:3] == [Cause.INTERRUPTED] * 3
    assert attempts[2].notice is None
    assert notice_of(attempts[0]) > timedelta(seconds=100)
    assert notice_of(attempts[1]) < timedelta(seconds=30)
    assert [pool.zone for pool in pools[:3]] == [C] * 3
    refused = [zone for zone in asked_for(sandbox, "SPOT") if zone != C]
    assert refused[:1] in ([A], [B])
    assert asked_for(sandbox, "SPOT")[:2] == [refused[0], C], "the refusal said where there is some"
    capacity = [pool.capacity_type for pool in pools]
    assert CapacityType.ON_DEMAND in capacity
    assert capacity[0] is capacity[-1] is CapacityType.SPOT


def its_secret_is_nowhere_else(sandbox: Gcp, output: str) -> None:
    """In no object of its folder, the ledger and its logs among them, in no launch and in nothing that was printed."""
    store = sandbox.run("stormy").store
    assert [each.key for each in store.list("") if SECRET.encode() in store.get(each.key)] == []
    asked = sandbox.google.calls("compute.instances.insert")
    assert asked
    assert SECRET not in str([each.body for each in asked])
    assert SECRET not in output
    readers = {each.who for each in sandbox.google.asked if each.method.endswith("versions.access")}
    assert readers == {f"serviceAccount:{sandbox.account('stormy')}"}, "each instance, and nobody else"


def notice_of(attempt: Attempt) -> timedelta:
    assert attempt.notice is not None
    assert attempt.notice.deadline_at is not None
    assert attempt.notice_at is not None
    return attempt.notice.deadline_at - attempt.notice_at


def asked_for(sandbox: Gcp, market: str) -> list[str]:
    """The zones of all inserts that were carried out, in their order."""
    asked = sandbox.google.calls("compute.instances.insert")
    return [each.arguments["zone"] for each in asked if each.body["scheduling"]["provisioningModel"] == market]


def its_set_up_was_paid_once(state: RunState) -> None:
    """PyTorch is a part of it."""
    setups = [attempt.setup for attempt in state.attempts.values() if attempt.setup is not None]
    assert [setup.how for setup in setups] == ["run", *["unpacked"] * (len(state.attempts) - 1)]


def its_bill_is_what_google_charges(sandbox: Gcp) -> None:
    bill = sandbox.call_json("report", "stormy")
    told = Decimal(bill["total"]["spot_usd"]) + Decimal(bill["total"]["on_demand_usd"])
    assert abs(dollars(sandbox.project.charges) - Fraction(told)) < Fraction(1, 10**6)
    parts = [*bill["epochs"], bill["unfinished"]]
    assert sum(Decimal(part["cost_usd"]) for part in parts) == Decimal(bill["total"]["cost_usd"]) > 0


def nothing_of_it_is_left(sandbox: Gcp, taken: list[str]) -> None:
    """By a client that is not ours. Google took what it gave notice of, with its disk."""
    log = sandbox.project.operations.known(sandbox.project.now)
    assert [each.target.rpartition("/")[2] for each in log if each.kind == kinds.PREEMPTED] == taken
    libcloud = sandbox.libcloud()
    assert libcloud.list_nodes("all") == []
    assert libcloud.list_volumes("all") == []
    assert sandbox.google.iam.accounts == {}
    assert [*sandbox.google.iam.members()] == []
    assert {*sandbox.google.denied} == set(), "the roles that we ship allow all that a run asks for"
