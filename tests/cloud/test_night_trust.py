"""A bucket in which a stranger writes, and the function of a night that reads it: in virtual time on both clouds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from spotrun.folder.night_record import BegunNight, NightRecord, NumberedNight
from spotrun.night import function as night_function
from spotrun.night.installation import left_alone
from spotrun.run.events import StopRequested
from spotrun.runner.creation import prepare_run
from spotrun.runs.open_run import OpenRun, runs_in
from spotrun.spec.model import RunSpec
from tests.support.gcp_night_world import GcpNightWorld
from tests.support.night_world import NAME, NightWorld, require_one_clean_night, utc
from tests.support.world.faults import Killed

NewWorld = Callable[..., NightWorld]
RECORD = f"runs/nights/{NAME}/night.json"
FAR_MORE = {"max_usd": "100000"}


@pytest.fixture(params=[NightWorld, GcpNightWorld], ids=["aws", "gcp"])
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[NightWorld]:
    """A Monday evening, at the time of a night that is installed with a budget of $15."""
    found: NightWorld = request.param(monkeypatch, tmp_path / "work", utc("2026-11-23T12:00:00"), work_hours=0.2)
    found.install()
    found.is_quiet_until(found.next_due())
    yield found
    assert all(found.state(uid).created.budget_usd in (15, None) for uid in ours(found)), "only what was installed"


def ours(world: NightWorld) -> list[str]:
    """The runs for which something was rented."""
    return [uid for uid in world.uids() if world.state(uid).launches]


def record_of(world: NightWorld) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(world._objects.objects[RECORD])
    return found


def plant_record(world: NightWorld, **changes: Any) -> None:
    record = record_of(world)
    record["spec"] |= changes
    world._objects.objects[RECORD] = msgspec.json.encode(record)


def plant_run(world: NightWorld, uid: str, **changes: Any) -> None:
    """A run that spotrun itself has made, with a key of whoever made it."""
    job = {**record_of(world)["spec"], "workdir": str(world.folder), **changes}
    prepare_run(RunSpec.from_dict(job), "stranger", uid=uid, shared=True).create()


def plant_begun(world: NightWorld, number: int, uid: str, due: str = "2026-11-23") -> None:
    begun = NumberedNight(number, BegunNight(due=due, run=uid, at=world.clock.now()))
    world._objects.objects[f"runs/nights/{NAME}/begun/{number:08d}.json"] = msgspec.json.encode(begun.begun)


@pytest.mark.parametrize(
    "changes",
    [{"budget": FAR_MORE}, {"secrets": {"OF_ANOTHER_TEAM": ""}}, {"envs": {"A": "B"}}],
    ids=["budget", "secrets", "variables"],
)
def test_function_refuses_a_record_that_a_stranger_has_put(world: NightWorld, changes: dict[str, Any]) -> None:
    plant_record(world, **changes)
    world.passes(100)
    assert world.uids() == []
    assert world.account.left == []
    assert "night.json" in world.said[-1]
    assert "spotrun night install" in world.said[-1]


def test_function_refuses_a_work_folder_that_a_stranger_has_put(world: NightWorld) -> None:
    (key,) = [key for key in world._objects.objects if key.startswith(f"runs/nights/{NAME}/work/")]
    world._objects.objects[key] = b"another folder"
    world.passes(100)
    assert world.uids() == []
    assert world.nights() == [], "no record says where the run would be"
    assert "spotrun night install" in world.said[-1]


def test_run_that_a_planted_record_names_is_neither_attended_nor_paid(world: NightWorld) -> None:
    plant_run(world, "5742a96e2f", budget=FAR_MORE)
    plant_begun(world, 0, "5742a96e2f")
    world.passes(5)
    assert "5742a96e2f" not in ours(world)


def test_planted_record_of_a_night_begins_no_further_run(world: NightWorld) -> None:
    for minute in range(10):
        plant_begun(world, minute + 1, f"5742a9{minute:04d}", due=f"by-hand-{minute}")
        world.passes(1)
    for number in (99_999_999, 500):
        plant_begun(world, number, "5742a96e2f")
    world._objects.objects[f"runs/nights/{NAME}/begun/00000300.json"] = b"no record"
    world.passes(30)
    require_one_run(world)


def require_one_run(world: NightWorld) -> None:
    (uid,) = world.uids()
    terminal = world.state(uid).terminal
    assert terminal is not None
    assert terminal.outcome == "completed"
    assert (world.account.left, world.account.identities_left, world.is_called_each_minute) == ([], [], False)


def test_night_is_recorded_where_a_stranger_has_put_a_record(world: NightWorld) -> None:
    for number in range(12):
        plant_begun(world, number, "5742a96e2f")
    world.passes(120)
    require_one_run(world)
    assert "is ignored: no night has written it" in str(world.answers)
    world.is_quiet_until(world.next_due())
    world.passes(5, each_minute=world.is_cold)
    assert len(world.uids()) == 2, "the next evening has a run of its own"


def begun_and_not_created(world: NightWorld, monkeypatch: pytest.MonkeyPatch) -> str:
    """The uid of a night whose function was killed after its record, and before its run."""

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(night_function, "prepare_run", killed)
        world.passes(1)
    assert world.uids() == []
    (begun,) = world.nights()
    return begun.run


def test_run_in_the_place_of_the_one_that_was_recorded_is_refused(
    world: NightWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = begun_and_not_created(world, monkeypatch)
    plant_run(world, uid, budget=FAR_MORE)
    world.passes(30)
    assert ours(world) == []
    assert world.account.left == []
    assert f"{NAME}-{uid}" in world.said[-1]


def test_key_of_a_stranger_signs_for_no_run_of_a_night(world: NightWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = begun_and_not_created(world, monkeypatch)
    planted = Ed25519PrivateKey.generate()
    world._objects.objects[f"runs/keys/{uid}"] = planted.private_bytes_raw().hex().encode()
    world.passes(30)
    require_one_clean_night(world)
    assert world.state(uid).created.public_key != planted.public_key().public_bytes_raw().hex()


def test_run_of_the_very_same_job_that_no_night_has_begun_is_not_carried_on(world: NightWorld) -> None:
    plant_run(world, "5742a96e2f")
    world.passes(20)
    assert ours(world) == []
    assert f"{NAME}-5742a96e2f is not finished, and no night has begun it" in world.said[-1]
    assert "spotrun resume" in world.said[-1]


def test_run_that_goes_on_is_carried_on_although_a_stranger_has_put_a_later_one(world: NightWorld) -> None:
    world.passes(10)
    (own,) = ours(world)
    plant_run(world, "5742a96e2f")
    planted = OpenRun(f"{world.store}/{NAME}-5742a96e2f", "stranger")
    planted.ledger.append(lambda _: StopRequested(by="stranger"))
    assert world.invoke({"kind": "begin", "by_hand": "2026-11-23T22:30:00"}), world.said
    assert [each.run for each in world.nights()] == [own, own]


def test_run_that_goes_on_is_attended_after_another_job_was_installed(world: NightWorld) -> None:
    world.passes(10)
    (own,) = ours(world)
    world.install(budget={"max_usd": "7"})
    world.is_deployed_anew()
    world.passes(30)
    require_one_clean_night(world)
    assert world.state(own).created.budget_usd == 15


def test_run_that_goes_on_is_attended_while_the_record_is_a_strangers(world: NightWorld) -> None:
    world.passes(10)
    plant_record(world, budget=FAR_MORE)
    world.passes(30, each_minute=world.is_cold)
    require_one_clean_night(world)


def test_run_of_an_earlier_pin_is_left_alone_and_named_before_the_installation(world: NightWorld) -> None:
    world.passes(10)
    (own,) = ours(world)
    entries = world.state(own).next_number
    assert f"{NAME}-{own} is not finished, and the function that is installed now has not made it" in str(
        left_alone(NightRecord(world.store, NAME).newest(), runs_in(world.store))
    )
    world.forget_pin()
    world.install()
    world.is_deployed_anew()
    assert world.state(own).next_number == entries
    assert not world.is_called_each_minute
    assert not world.invoke({"kind": "begin", "due": "2026-11-24T21:00:00Z"})
    assert f"{NAME}-{own} is not finished, and no night has begun it" in world.said[-1]
