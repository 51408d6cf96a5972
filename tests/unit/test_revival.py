"""Objects of the script in a checkpoint: they come back as they were, and bytes from elsewhere make nothing run."""

from __future__ import annotations

import enum
import subprocess
from abc import ABC, abstractmethod
from collections import namedtuple
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

from spotrun.checkpoint import plain_kinds, snapshot
from spotrun.checkpoint.objects import InitialObjects, SavedObject
from spotrun.checkpoint.tree import Unsavable
from spotrun.errors import CheckpointDamaged
from spotrun.lightning.checkpoint_file import _plain, export
from spotrun.training.revival import NotRevived, revived
from spotrun.training.tensors import owned, tensors_of
from tests.support.checkpoint_images import ONE_HASH, header, image_bytes, image_of, write_image

Point = namedtuple("Point", "x y")


class Phase(enum.Enum):
    WARM = 1
    HOT = 2


class Level(enum.IntEnum):
    LOW = 3


class Pair(NamedTuple):
    mean: torch.Tensor
    phase: Phase


@dataclass
class Meter:
    total: float = 0.0
    seen: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.made = "by __init__"


@dataclass(frozen=True, slots=True)
class Best:
    score: float
    where: Point


class Base(ABC):
    @abstractmethod
    def run(self) -> None: ...


class Plain(Base):
    def __init__(self, needed: Any) -> None:
        self.needed = needed

    def run(self) -> None: ...


def read_back(state: Any) -> Any:
    read, _ = snapshot.read_image(bytearray(image_bytes(state, {})))
    return revived(owned(read))


def test_classes_of_a_script_s_state_come_back() -> None:
    plain = Plain([Level.LOW])
    state = {
        "meters": [Meter(1.5, [1]), Meter()],
        "best": {Phase.HOT: Best(0.5, Point(1, 2))},
        "pair": Pair(torch.arange(3), Phase.WARM),
        "set": {Phase.HOT},
        "plain": plain,
    }
    back = read_back(state)
    assert back["meters"] == state["meters"]
    assert back["meters"][0].made == "by __init__", "attributes come along, and __post_init__ was not called"
    assert back["best"] == state["best"]
    assert type(back["best"][Phase.HOT].where) is Point
    assert back["pair"].phase is Phase.WARM
    assert torch.equal(back["pair"].mean, torch.arange(3))
    assert back["set"] == {Phase.HOT}
    assert back["plain"].needed == [Level.LOW]
    assert type(back["plain"].needed[0]) is Level
    assert type(back["plain"]) is Plain


def test_tensors_inside_of_objects_are_waited_for_and_kept() -> None:
    read, _ = snapshot.read_image(bytearray(image_bytes({"m": Meter(torch.ones(4))}, {})))  # type: ignore[arg-type]
    (tensor,) = tensors_of(read)
    assert torch.equal(tensor, torch.ones(4))


def test_a_state_without_objects_is_not_copied() -> None:
    state = {"a": [1, (2, {"b": torch.ones(1)})], "c": {3}}
    assert revived(state) is state


class Slotted:
    __slots__ = ("x",)

    def __del__(self) -> None: ...


class Asked:
    def __reduce__(self) -> Any:
        return str, ("asked",)


def local() -> Any:
    @dataclass
    class Local:
        a: int = 1

    return Local()


NO_PLACE = {
    "a class with __del__": (Slotted, "test_revival.Slotted"),
    "a class with __reduce__": (Asked, "test_revival.Asked"),
    "a class within a function": (local, "local.<locals>.Local, which its module does not have under that name"),
    "an object of a library": (lambda: subprocess.CompletedProcess([], 0), "subprocess.CompletedProcess"),
    "a function": (lambda: local, "builtins.function"),
    "a module": (lambda: enum, "builtins.module"),
    "a tuple type within a function": (lambda: namedtuple("Here", "a")(1), "Here, which its module does not have"),
}


@pytest.mark.parametrize("name", NO_PLACE)
def test_value_that_cannot_come_back_is_refused_with_its_place(name: str) -> None:
    make, words = NO_PLACE[name]
    with pytest.raises(Unsavable, match=r"^callbacks\.mine\.0 is an? ") as refused:
        snapshot.plan_image({"callbacks": {"mine": [make()]}}, {})
    assert words in str(refused.value)


HOSTILE = {
    "a library's class": SavedObject("object", "subprocess:Popen", {"_child_created": True, "args": "touch here"}),
    "a class with __del__": SavedObject("object", f"{__name__}:Slotted", {"x": 1}),
    "a class with __reduce__": SavedObject("object", f"{__name__}:Asked", {}),
    "a module that is not there": SavedObject("object", "antigravity:Popen", {}),
    "an enum that is none": SavedObject("member", "subprocess:Popen", "args"),
    "a member that is none": SavedObject("member", f"{__name__}:Phase", "mro"),
    "a tuple that is none": SavedObject("namedtuple", "subprocess:Popen", ["touch here"]),
    "a function": SavedObject("object", "os:system", {}),
    "an attribute of a function": SavedObject("object", "os:system.__class__", {}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_names_from_elsewhere_make_nothing(name: str) -> None:
    with pytest.raises(NotRevived, match="which this script no longer has"):
        revived({"a": [HOSTILE[name]]})


@pytest.mark.parametrize("node", [{"object": []}, {"object": ["a:b"]}, {"member": "x"}, {"stands": {}}])
def test_a_malformed_object_is_damage(node: Any) -> None:
    with pytest.raises(CheckpointDamaged):
        snapshot.read_image(bytearray(image_of(header(node))))


# --- what stands at its place already ---------------------------------------------------------------------------------


class Warmup(StepLR):
    """As GradualWarmup: it holds another scheduler, a function, and a bound method."""

    def __init__(self, optimizer: Any, after: Any, shape: Any) -> None:
        self.after, self.shape, self.bound = after, shape, after.get_last_lr
        super().__init__(optimizer, 2, 0.5)

    def step(self, epoch: Any = None) -> None:
        self.after.step()
        super().step()


def schedulers() -> tuple[Any, Warmup]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    return optimizer, Warmup(optimizer, StepLR(optimizer, 3, 0.9), lambda step: step)


def looking(standing: InitialObjects, state: Any) -> Any:
    plan = snapshot.plan_image({"lr_schedulers": [state]}, {}, standing=standing)
    arena = torch.zeros(plan.size_bytes, dtype=torch.uint8)
    write_image(plan, arena)
    read, _ = snapshot.read_image(bytearray(arena.numpy().tobytes()))
    return read["lr_schedulers"][0]


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_nested_scheduler_is_saved_and_stays_the_same_object() -> None:
    optimizer, first = schedulers()
    standing = InitialObjects(("lr_schedulers",), lambda value: value is optimizer)
    looking(standing, first.state_dict())
    for _ in range(5):
        first.step()
    saved = looking(standing, first.state_dict())
    assert isinstance(revived(saved)["after"], SavedObject), "nothing is made of it without one that stands there"
    _, second = schedulers()
    after, shape = second.after, second.shape
    second.load_state_dict(revived(saved, second.state_dict()))
    assert second.after is after
    assert second.shape is shape
    assert second.after.optimizer is second.optimizer
    assert second.after.state_dict() == first.after.state_dict()
    assert second.last_epoch == first.last_epoch


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_attribute_set_after_training_began_is_refused() -> None:
    optimizer, scheduler = schedulers()
    standing = InitialObjects(("lr_schedulers",), lambda value: value is optimizer)
    looking(standing, scheduler.state_dict())
    scheduler.shape = lambda step: -step
    with pytest.raises(Unsavable, match=r"lr_schedulers\.0\.shape is a builtins\.function that was added there after"):
        looking(standing, scheduler.state_dict())


def test_a_tensor_that_an_image_names_often_is_exported_once(tmp_path: Path) -> None:
    weights = torch.ones(10_000)
    names = [f"w{number}" for number in range(200)]
    image = image_bytes({"state_dict": dict.fromkeys(names, weights), "global_step": 1}, {"epoch": 0})
    export(bytearray(image), tmp_path / "out.ckpt")
    assert (tmp_path / "out.ckpt").stat().st_size < 2 * len(image)
    read = torch.load(tmp_path / "out.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(read[name], weights) for name in names)


@pytest.mark.parametrize("kind", ["set", "dict"])
def test_time_for_keys_that_share_a_hash_only_in_an_export_is_bounded(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As enum members they have hashes of their own; the file has their contents."""
    monkeypatch.setattr(plain_kinds, "_FREE_S", 0.005)
    monkeypatch.setattr(plain_kinds, "_SECONDS_PER_KEY", 0)
    keys: list[Any] = [{"member": ["a:b", n * ONE_HASH]} for n in range(3_000)]
    node = {"dict": [["a", {kind: keys if kind == "set" else [[key, 0] for key in keys]}]]}
    with pytest.raises(CheckpointDamaged, match="cannot be exported"):
        export(bytearray(image_of(header(node))), tmp_path / "out.ckpt")
    assert not any(tmp_path.iterdir())


def test_an_image_without_a_mapping_is_not_exported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointDamaged, match="holds a list instead of a training's state"):
        export(bytearray(image_bytes([1], {})), tmp_path / "out.ckpt")


def test_an_exported_file_holds_no_object() -> None:
    read, _ = snapshot.read_image(bytearray(image_bytes({"m": Meter(1.5), "p": Point(1, Phase.HOT)}, {})))
    assert _plain(read, {}) == {"m": {"total": 1.5, "seen": [], "made": "by __init__"}, "p": [1, "HOT"]}
