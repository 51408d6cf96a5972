"""Python state of a script: what has changed is carried, in place, and nothing that an image names is called."""

from __future__ import annotations

import argparse
import collections
import copy
import functools
import io
import random
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import MultiStepLR, StepLR
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from spotrun.training.python_state import graph
from spotrun.training.python_state.script import Script
from spotrun.training.python_state.stateful_objects import load_scaler
from tests.support.script_process import Process, carried


def test_a_script_that_changes_nothing_has_an_empty_image() -> None:
    assert Process(a=[1], b=np.zeros(3), c=torch.zeros(3)).begun().image()["objects"] == []


PLAIN = [
    None, True, 3, -(1 << 70), 0.1, float("inf"), 1 + 2j, "a text\udc80", b"\x00\xff", (1, ("a", None)), range(1, 9, 2),
    slice(1, None, 2), ..., date(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), datetime(1, 1, 1, fold=1),
    timedelta(days=-1, microseconds=1),
    datetime(2026, 7, 1, tzinfo=ZoneInfo("Europe/Paris")),
    time(1, 2, tzinfo=timezone(timedelta(hours=1))), Decimal("1.10"), Fraction(2, 6), UUID(int=7), Path("a/b"),
    np.float32(0.1), np.int8(-3), np.bool_(True), torch.bfloat16, torch.Size([2, 3]), torch.device("cpu"),
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    def change(process: Process) -> None:
        process.net._private = value
        process.net.listed = [value, {"key": value}]

    net = carried(change).net
    for found in (net._private, net.listed[0], net.listed[1]["key"]):
        assert type(found) is type(value)
        assert found == value


def test_attributes_of_parameters_come_back() -> None:
    """As Grokfast keeps averages of gradients there, and EWC what it knows of the Fisher information."""

    def process() -> Process:
        made = Process()
        weight, bias = made.net.layer.weight, made.net.layer.bias
        weight.fisher, weight.seen, bias.old = torch.zeros(2), [], "x"
        made.script.teacher = nn.Linear(2, 2)  # no part of the trained module
        return made.begun()

    first = process()
    weight, bias = first.net.layer.weight, first.net.layer.bias
    weight.fisher += 3
    weight.seen.append(weight.fisher)
    weight.ema = torch.ones(2)
    bias.count = 7
    del bias.old
    first.script.teacher.weight.ema = torch.ones(2)
    first.image()
    weight.ema.mul_(4)
    image = first.image()
    resumed = process().resumed(image)
    layer = resumed.net.layer
    assert resumed.script.teacher.weight.ema.tolist() == [1, 1]
    assert (layer.weight.fisher.tolist(), layer.weight.ema.tolist()) == ([3, 3], [4, 4])
    assert layer.weight.seen[0] is layer.weight.fisher
    assert vars(layer.bias) == {"count": 7}


def test_instances_of_classes_that_only_a_function_has_come_back() -> None:
    """As `Transition = namedtuple(...)` within `main`, whose local variables are roots of the walk."""

    def process() -> Process:
        made = Process()
        place = collections.namedtuple("place", "x y", module="a_script")

        class Meter:
            __module__ = "a_script"

        made.callbacks = {"main()": SimpleNamespace(Place=place, Meter=Meter)}
        return made.begun()

    first = process()
    kinds = first.callbacks["main()"]
    meter = kinds.Meter()
    meter.total = 3
    first.net.seen = deque([kinds.Place(1, [2]), kinds.Place(3, meter)])
    resumed = process().resumed(first.image())
    one, other = resumed.net.seen
    again = resumed.callbacks["main()"]
    assert type(one) is again.Place
    assert one == (1, [2])
    assert type(other.y) is again.Meter
    assert other.y.total == 3


def test_saved_weights_of_a_copy_have_the_same_bytes() -> None:
    """torch keeps the versions of the modules' formats in an attribute of a `state_dict()`, which it saves too."""
    first = Process().begun()
    first.net.best = copy.deepcopy(first.net.layer.state_dict())
    resumed = Process().begun().resumed(first.image())
    of_each = [io.BytesIO(), io.BytesIO()]
    for process, file in zip([first, resumed], of_each, strict=True):
        torch.save(process.net.best, file)
    assert of_each[0].getvalue() == of_each[1].getvalue()


def test_attributes_of_a_container_are_restored_with_its_items() -> None:
    """As of the many dicts whose items are attributes, too."""

    def process() -> Process:
        made = Process()
        exec("class Config(dict):\n    pass\nCONFIG = Config(step=0)\nCONFIG.step = 0", vars(made.script))
        return made.begun()

    first = process()
    first.script.CONFIG.step = first.script.CONFIG["step"] = 5
    first.script.CONFIG.seen = [1]
    resumed = process().resumed(first.image()).script.CONFIG
    assert (resumed, resumed.step, resumed.seen) == ({"step": 5}, 5, [1])


def test_what_a_restore_has_made_is_carried_on_by_a_process_that_reads_further_data() -> None:
    """The loaders that it reads after the restore lead to what the restore has made."""

    class Cache(Dataset):
        __module__ = "a_script"

        def __init__(self) -> None:
            self.kept: dict[int, torch.Tensor] = {}

        def __len__(self) -> int:
            return 1

    def process() -> tuple[Process, DataLoader]:
        made = Process()
        made.script.Cache, data = Cache, Cache()
        made.script.data = data
        return made.begun(), DataLoader(data)

    first, _ = process()
    first.script.data.kept[0] = torch.ones(2)
    resumed, loader = process()
    resumed.state.load(first.image(), last=False)
    resumed.state.reads(loader, "train", 0)
    again, _ = process()
    again.resumed(resumed.image())
    assert again.script.data.kept[0].tolist() == [1.0, 1.0]


def test_function_that_each_step_defines_again_is_not_named() -> None:
    """As the closure of LBFGS. One that stays would be missing after a resume."""
    process, named = Process().begun(), []
    define = compile("def closure(): pass", "a_script.py", "exec")
    exec("def stays(): pass", vars(process.script))
    for _ in range(3):
        exec(define, vars(process.script))
        process.state.dump()
        process.state.dump()
        named += process.state.news()
    assert {change.path for change in named} - {"a_script.closure"} == {"a_script.stays"}
    assert [change.path for change in named[-4:]] == ["a_script.stays"] * 4


def test_value_that_an_epoch_sets_and_sets_back_is_as_at_the_snapshot() -> None:
    """The code at the epoch's beginning, which a resume repeats, has set it in both processes."""
    first, second = Process().begun(), Process().begun()
    for process in (first, second):
        process.net.best, process.script.STEPS, process.script.Net.best = -1.0, 7, 5.0
    first.net.best, first.script.STEPS = 0.0, 0
    second.resumed(first.image())
    assert (second.net.best, second.script.STEPS, second.script.Net.best) == (0.0, 0, 5.0)


def test_new_instances_with_slots_are_made_again() -> None:
    """As the transitions of a replay memory."""

    def change(process: Process) -> None:
        process.net.held.extend([process.script.Slotted(1.0, [2]), process.script.Half()])
        del process.net.held[1].total

    one, other = carried(change, lambda: {"held": deque(maxlen=3)}).net.held
    assert (type(one).__name__, one.total, one.seen) == ("Slotted", 1.0, [2])
    assert (type(other).__name__, hasattr(other, "total"), other.seen) == ("Half", False, [])


def test_a_schedule_keeps_the_kind_of_its_milestones() -> None:
    """With a dict in place of the Counter, its closed form fails, and a file of its state differs."""

    def process() -> Process:
        made = Process()
        made.script.schedule = MultiStepLR(SGD(made.net.parameters(), 0.1), [1, 1, 3])
        return made.begun()

    first = process()
    first.script.schedule.optimizer.step()
    first.script.schedule.step()
    resumed = process().resumed(first.image()).script.schedule
    assert repr(resumed.state_dict()) == repr(first.script.schedule.state_dict())
    assert resumed._get_closed_form_lr() == first.script.schedule._get_closed_form_lr()


def test_an_optimizer_that_another_wraps_is_left_to_it() -> None:
    """Its `load_state_dict` would give it parameter groups of its own, which the wrapper no longer shares."""

    class Wrapper(SGD):
        def __init__(self, inner: SGD) -> None:
            super().__init__([torch.zeros(1)], 0.1)
            self.inner, self.param_groups = inner, inner.param_groups

    def process() -> Process:
        made = Process()
        made.script.inner = SGD(made.net.parameters(), 0.1)
        made.optimizers = [Wrapper(made.script.inner)]
        return made.begun()

    first = process()
    first.script.inner.param_groups[0]["lr"] = 0.5
    resumed = process().resumed(first.image())
    assert resumed.script.inner.param_groups is resumed.optimizers[0].param_groups


def test_what_hooks_keep_comes_back() -> None:
    """As a hook that clips gradients by a running norm, which it keeps in its closure."""

    class Counting:
        calls = 0

        def after(self, *_: Any) -> None:
            self.calls += 1

    def process() -> tuple[Process, Any, Any]:
        made = Process()
        norm, seen = 1.0, []

        def clip(gradient: torch.Tensor) -> torch.Tensor:
            nonlocal norm
            norm = 0.5 * norm + 0.5 * float(gradient.norm())
            seen.append(norm)
            return gradient / norm

        clip.__module__ = Counting.__module__ = "a_script"
        counting = Counting()
        made.net.layer.weight.register_hook(clip)
        made.net.layer.register_forward_hook(counting.after)
        return made.begun(), (lambda: (norm, seen)), counting

    first, kept, counting = process()
    for _ in range(3):
        first.net.layer(torch.ones(1, 2)).sum().backward()
    resumed, kept_again, counting_again = process()
    resumed.resumed(first.image())
    assert kept()[0] != 1.0
    assert kept_again() == kept()
    assert counting_again.calls == counting.calls == 3


def seven() -> int:
    return 7


HELD: list[tuple[Any, Any]] = [
    (list, lambda held: held.extend([1, "a", [2]])),
    (list, lambda held: held.extend(float(n) / 3 for n in range(200))),
    (list, lambda held: held.extend(range(1 << 62, (1 << 62) + 200))),
    (dict, lambda held: held.update({1: "a", (2, "b"): {}})),
    (set, lambda held: held.update({1, "a", (2, 3)})),
    (OrderedDict, lambda held: held.update(b=1, a=2)),
    (Counter, lambda held: held.update("hello")),
    (lambda: defaultdict(seven), lambda held: held["a"]),
    (lambda: deque(range(3), maxlen=3), lambda held: held.append((4, 0.5))),
    (bytearray, lambda held: held.extend(b"abc")),
    (lambda: np.zeros((2, 3)), lambda held: held.__setitem__((1, 2), 5.0)),
    (lambda: np.zeros((), "datetime64[s]"), lambda held: held.fill(np.datetime64("2026-01-01"))),
    (lambda: np.ma.masked_array([1.0, 2.0, 3.0], [0, 1, 0]), lambda held: held.__setitem__(0, np.ma.masked)),
    (lambda: np.ma.masked_array([1, 2]), lambda held: held.data.__setitem__(1, 7)),
    (lambda: np.ma.masked_array([1.5, 2.5]), lambda held: setattr(held, "fill_value", -1.0)),
    (lambda: np.ma.masked_array([1, 2], [0, 1], hard_mask=True), lambda held: held.__setitem__(0, 9)),
    (lambda: np.zeros(1 << 17)[::2], lambda held: held.__setitem__(77, 1.0)),
    (lambda: torch.zeros(2, 3), lambda held: held[1].add_(2)),
    (lambda: torch.zeros(1 << 17), lambda held: held.data.__setitem__(9, 1.0)),
    (lambda: torch.zeros(3, requires_grad=True), lambda held: held.data.add_(1)),
    (lambda: torch.zeros(3), lambda held: setattr(held, "data", torch.ones(3))),  # other memory for the same tensor
    (lambda: torch.zeros(2, 3).T, lambda held: held.data.add_(1)),
    (lambda: [1, {"deep": [deque([0])]}], lambda held: held[1]["deep"][0].append(1)),
    (lambda: SimpleNamespace(a=[]), lambda held: held.a.append(1)),
    (lambda: argparse.Namespace(lr=1), lambda held: vars(held).update(lr=2)),
]


@pytest.mark.parametrize("number", range(len(HELD)))
def test_objects_of_the_script_are_restored_in_place(number: int) -> None:
    make, change = HELD[number]
    first = Process(held=make()).begun()
    change(first.net.held)
    second = Process(held=make())
    held_elsewhere = second.net.held
    second.begun().resumed(first.image())
    assert second.net.held is held_elsewhere
    assert repr(held_elsewhere) == repr(first.net.held)


def test_instances_enums_and_namedtuples_of_the_script_come_back() -> None:
    def change(process: Process) -> None:
        script, net = process.script, process.net
        net.meter.total = 2.5
        net.meter.seen.append(net.meter)
        net.grown = [script.Meter(1.0, [net.meter]), script.Meter()]
        net.mode = script.Mode.COLD
        net.pair = script.Pair(1, [2])
        net.now = (script.Mode.COLD, {script.Mode.WARM: 1})

    first = Process().begun(lambda process: setattr(process.net, "meter", process.script.Meter()))
    change(first)
    second = Process().begun(lambda process: setattr(process.net, "meter", process.script.Meter()))
    meter = second.net.meter
    net, script = second.resumed(first.image()).net, second.script
    assert net.meter is meter
    assert (meter.total, meter.seen[0]) == (2.5, meter)
    assert [type(each) for each in net.grown] == [script.Meter] * 2
    assert net.grown[0].seen[0] is meter
    assert net.mode is script.Mode.COLD
    assert net.pair == script.Pair(1, [2])
    assert type(net.pair) is script.Pair
    assert net.now == (script.Mode.COLD, {script.Mode.WARM: 1})


@pytest.mark.parametrize("name", ["Slotted", "Half"])
def test_instances_with_slots_are_filled(name: str) -> None:
    def made(process: Process) -> Process:
        process.net.slotted = getattr(process.script, name)()
        return process.begun()

    first, second = made(Process()), made(Process())
    first.net.slotted.total = 2.5
    first.net.slotted.seen.append(first.net.slotted)
    if name == "Half":
        first.net.slotted.late = 3
    slotted = second.net.slotted
    second.resumed(first.image())
    assert second.net.slotted is slotted
    assert (slotted.total, slotted.seen[0]) == (2.5, slotted)
    assert getattr(slotted, "late", 3) == 3


def test_objects_that_hooks_made_of_the_first_weights_come_back_unchanged() -> None:
    """In a process that resumes these hooks see restored weights."""

    def at_fit_start(process: Process) -> None:
        net = process.net
        net.frozen = [copy.deepcopy(net.layer)]
        net.anchors = {name: each.detach().clone() for name, each in net.layer.named_parameters()}
        net.norm = net.layer.weight.norm().item()

    def restored(process: Process) -> None:
        with torch.no_grad():
            process.net.layer.weight.add_(1)

    first, second = Process().begun(at_fit_start), Process().begun(restored, at_fit_start)
    frozen = second.net.frozen[0]
    assert not torch.equal(frozen.weight, first.net.frozen[0].weight)
    image = first.image()
    second.resumed(image)
    assert second.net.frozen[0] is frozen
    assert torch.equal(frozen.weight, first.net.frozen[0].weight)
    assert torch.equal(second.net.anchors["weight"], first.net.anchors["weight"])
    assert second.net.norm == first.net.norm
    assert "nn" not in [kind for kind, path, *_ in image["objects"] if "frozen" in path], "how it is built is known"


def test_globals_classes_functions_and_default_arguments_come_back() -> None:
    def change(process: Process) -> None:
        script = process.script
        script.STEPS, script.LATE, script.Net.best = 3, [1], 0.5
        script.HISTORY.append(1)
        script.remembered.calls = 4
        script.remembered("a")

    script = carried(change).script
    assert (script.STEPS, script.LATE, script.Net.best, script.HISTORY) == (3, [1], 0.5, [1])
    assert script.remembered.calls == 4
    assert script.remembered.__defaults__ == ({"a": 1},)


def test_flags_of_modules_and_plain_attributes_of_library_modules_come_back() -> None:
    def change(process: Process) -> None:
        net = process.net
        net.dropout.p = 0.7
        net.layer.eval()
        net.layer.bias.requires_grad_(False)

    net = carried(change).net
    assert net.dropout.p == 0.7
    assert (net.training, net.layer.training) == (True, False)
    assert (net.layer.weight.requires_grad, net.layer.bias.requires_grad) == (True, False)


def test_parts_of_the_module_that_came_late_are_as_they_were() -> None:
    """Others have put them back."""
    first, second = Process().begun(), Process().begun()
    for process in (first, second):
        process.net.late = nn.Sequential(nn.Dropout(0.1), nn.Linear(1, 1))
    first.net.late[0].p = 0.7
    first.net.late.eval()
    first.net.late[1].bias.requires_grad_(False)
    first.net.head = [first.net.late[1]]
    first.net.shared = first.net.late
    second.net.shared = second.net.late
    net = second.resumed(first.image()).net
    assert net.late[0].p == 0.7
    assert not net.late[1].training
    assert (net.late[1].weight.requires_grad, net.late[1].bias.requires_grad) == (True, False)
    assert net.head[0] is net.late[1]
    assert second.image()["objects"]


def test_late_part_that_was_not_restored_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    first = Process().begun()
    first.net.late = nn.Dropout(0.1)
    Process().begun().resumed(first.image())
    assert "spotrun: module.late cannot be restored" in capsys.readouterr().err


def averages(process: Process) -> None:
    """As a callback makes them in its first batch."""
    net = process.net
    net.layers = nn.Sequential(net.layer, net.dropout)
    net.held = [copy.deepcopy(net.layers).eval().requires_grad_(False)]
    process.script.TEACHERS = {"first": copy.deepcopy(net.dropout)}
    with torch.no_grad():
        net.held[0][0].weight.fill_(7.0)
    net.held[0][1].p = process.script.TEACHERS["first"].p = net.dropout.p = 0.3
    process.script.AGAIN = net.held[0]


def test_a_copy_of_a_part_of_the_module_that_a_batch_has_made_is_made_again() -> None:
    def layers(process: Process) -> None:
        process.net.layers = nn.Sequential(process.net.layer, process.net.dropout)

    first = Process().begun()
    averages(first)
    image = first.image()
    second = Process().begun(layers).resumed(image)
    (average,) = second.net.held
    assert second.script.AGAIN is average
    assert torch.equal(average[0].weight, torch.full((2, 2), 7.0))
    assert torch.equal(average[0].bias, first.net.layer.bias)
    assert not any(parameter.requires_grad for parameter in average.parameters())
    assert not any(part.training for part in average.modules())
    assert (average[1].p, second.script.TEACHERS["first"].p) == (0.3, 0.3)
    assert average[0].weight is not second.net.layer.weight
    assert not second.net.layer.weight.eq(7.0).all()


@pytest.mark.parametrize(
    "late", [nn.Linear(2, 3), nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Sequential(nn.Linear(2, 2))]
)
def test_a_late_module_that_is_built_like_no_part_is_named(late: nn.Module, capsys: pytest.CaptureFixture[str]) -> None:
    process = carried(lambda process: setattr(process.net, "held", [late]))
    assert not hasattr(process.net, "held")
    assert "module.held has changed and is in no checkpoint: it holds a new torch.nn.modules" in capsys.readouterr().err


class OfALibrary(nn.Module):
    """Makes its mask when it is first asked."""

    def __init__(self) -> None:
        super().__init__()
        self.mask: torch.Tensor | None = None


def test_later_objects_of_a_library_module_are_left_to_it() -> None:
    def change(process: Process) -> None:
        process.net.library.mask = torch.ones(2)
        process.net.library.eval()

    first, second = Process(), Process()
    for process in (first, second):
        process.net.library = OfALibrary()
        process.begun()
    change(first)
    second.resumed(first.image())
    assert second.net.library.mask is None
    assert not second.net.library.training


def test_zero_is_not_less_than_zero_and_one_is_no_truth() -> None:
    values = {"zero": 0.0, "one": 1, "price": Decimal("1.0")}
    net = carried(
        lambda process: vars(process.net).update(zero=-0.0, one=True, price=Decimal("1.00")), lambda: values
    ).net
    assert repr((net.zero, net.one, net.price)) == "(-0.0, True, Decimal('1.00'))"


def test_an_attribute_that_is_gone_stays_gone() -> None:
    assert not hasattr(carried(lambda process: delattr(process.net, "a"), lambda: {"a": 1}).net, "a")


def test_objects_that_start_hooks_make_again_are_restored_too() -> None:
    def hook(process: Process) -> None:
        process.net.outputs = []
        process.net.push = process.net.outputs.append

    net = carried(lambda process: process.net.push(1), dict, hook).net
    assert net.outputs == [1]
    net.push(2)
    assert net.outputs == [1, 2]


def test_no_object_is_made_that_would_lack_what_a_hook_of_the_start_gave_it() -> None:
    """Loaders are made after `configure_optimizers`, and its objects are found again when the training starts."""

    def configure(process: Process) -> None:
        process.optimizers = [SGD(process.net.parameters(), 0.1)]
        process.net.warm = process.script.Meter()
        process.net.warm.optimizer = process.optimizers[0]
        process.net.plans = [process.net.warm]

    first = Process().begun(configure)
    first.net.warm.total = 3.0
    image = first.image()

    second = Process()
    second.state.begins()
    second.state.moved()
    configure(second)
    warm = second.net.warm
    second.state.load(image, last=False)
    assert second.net.warm is second.net.plans[0] is warm
    second.state.starts()
    second.resumed(image)
    assert second.net.warm is second.net.plans[0] is warm
    assert (warm.total, warm.optimizer) == (3.0, second.optimizers[0])


def test_a_container_that_was_replaced_is_another_one() -> None:
    """The old one is as it was for whoever else holds it."""

    def change(process: Process) -> None:
        process.net.held = [2]

    first = Process(held=[1]).begun()
    change(first)
    second = Process(held=[1])
    old = second.net.held
    second.begun().resumed(first.image())
    assert (old, second.net.held) == ([1], [2])


def test_untrained_module_and_its_scheduler_come_back() -> None:
    def made() -> dict[str, Any]:
        layer = nn.Linear(2, 2)
        nn.init.zeros_(layer.weight)
        optimizer = SGD(layer.parameters(), lr=1.0, momentum=0.5)
        return {"ema": [layer], "schedule": StepLR(optimizer, 1), "_optimizer": optimizer}

    def change(process: Process) -> None:
        net = process.net
        net.ema[0].weight.data.add_(3)
        net._optimizer.step()
        net.schedule.step()
        net.schedule.step()

    net = carried(change, made).net
    assert net.schedule.last_epoch == 2
    assert net._optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    assert (net.ema[0].weight == 3).all()


def test_a_dataset_of_the_script_is_found_behind_those_of_libraries() -> None:
    class Data:
        def __init__(self) -> None:
            self.epoch, self.calls = 0, Counter[int]()

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return index

    Data.__module__ = "a_script"

    def process() -> tuple[Process, Data]:
        made, data = Process(), Data()
        made.script.Data = Data
        made.state.begins()
        made.state.reads(DataLoader(cast("Any", Subset(cast("Any", data), [0, 1]))), "train", 0)
        return made, data

    first, data = process()
    first.state.starts()
    data.epoch, data.calls[3] = 2, 5
    image = first.image()
    second, again = process()
    second.state.load(image, last=False)
    assert (again.epoch, again.calls) == (2, {3: 5})


def test_a_stream_is_left_to_its_place_in_the_data() -> None:
    class Stream(IterableDataset[int]):
        passes = 0

        def __iter__(self) -> Iterator[int]:
            self.passes += 1
            return iter(range(3))

    Stream.__module__ = "a_script"
    process = Process(stream=Stream())
    process.script.Stream = Stream
    process.state.begins()
    process.state.reads(DataLoader(process.net.stream), "train", 0)
    process.state.starts()
    list(process.net.stream)
    assert process.image()["objects"] == []


GENERATORS: list[Any] = [
    (lambda: random.Random(1), lambda generator: generator.gauss(0, 1)),
    (lambda: np.random.RandomState(1), lambda generator: generator.randn()),
    (lambda: np.random.default_rng(1), lambda generator: generator.integers(9)),
    (lambda: np.random.Generator(np.random.MT19937(1)), lambda generator: generator.random()),
    (lambda: torch.Generator().manual_seed(1), lambda generator: torch.rand(1, generator=generator).item()),
]


@pytest.mark.parametrize("number", range(len(GENERATORS)))
def test_a_generator_goes_on(number: int) -> None:
    make, draw = GENERATORS[number]
    first = Process(generator=make()).begun()
    assert first.image()["objects"] == []
    draw(first.net.generator)
    image = first.image()
    second = Process(generator=make()).begun().resumed(image)
    assert draw(second.net.generator) == draw(first.net.generator)


def test_python_and_libraries_are_no_script_wherever_they_lie() -> None:
    own = Script(["/"]).modules
    assert __name__ in own
    assert not {"os", "random", "torch", "numpy", "pytest", "spotrun"} & own.keys()
    assert __name__ not in Script(["/nowhere"]).modules


# --- sharing and cycles


@st.composite
def webs(draw: st.DrawFn) -> list[Any]:
    """Containers that hold each other and plain values in any way."""
    made: list[Any] = [
        kind() for kind in draw(st.lists(st.sampled_from([list, dict, deque, OrderedDict]), min_size=1, max_size=5))
    ]
    plain = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text("ab", max_size=3))
    for holder in list(made):
        for _ in range(draw(st.integers(0, 4))):
            part = draw(st.one_of(plain, st.sampled_from(made)))
            if draw(st.booleans()):
                part = (part, draw(plain))
                made.append(part)
            if isinstance(holder, dict):
                holder[draw(st.one_of(plain, st.tuples(plain, plain)))] = part
            else:
                holder.append(part)
    return made


def shape(value: Any, seen: dict[int, int] | None = None) -> Any:
    """Equal for two webs only if what is shared in one is shared in the other."""
    seen = {} if seen is None else seen
    if isinstance(value, list | deque | dict):
        if id(value) in seen:
            return ("again", seen[id(value)])
        seen[id(value)] = len(seen)
        parts = value.items() if isinstance(value, dict) else value
        return (type(value).__name__, [shape(part, seen) for part in parts])
    if isinstance(value, tuple):
        return ("tuple", [shape(part, seen) for part in value])
    return (type(value).__name__, repr(value))


@pytest.mark.exhaustive
@settings(max_examples=40)
@given(web=webs(), known=st.integers(0, 3))
def test_sharing_and_cycles_are_kept(web: list[Any], known: int) -> None:
    first = Process(held=[[] for _ in range(known)]).begun()
    expected = copy.deepcopy(web)
    for holder in first.net.held:
        holder.append(web)
    first.net.web = web
    second = Process(held=[[] for _ in range(known)])
    held = second.net.held
    second.begun().resumed(first.image())
    assert shape(second.net.web) == shape(expected)
    assert all(holder[0] is second.net.web for holder in held)


def mapped(folder: Path, name: str, size: int = 4) -> Any:
    return np.memmap(folder / name, np.float32, "w+", shape=(size,))


def test_mapped_array_and_its_file_are_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(graph, "MAPPED_MAX_BYTES", 100)
    first, second = (
        Process(held=mapped(tmp_path, f"{name}.bin"), large=mapped(tmp_path, f"{name}-large.bin", 100)).begun()
        for name in ("first", "second")
    )
    for array in (first.net.held, first.net.large):
        array[1] = 7.0
    first.net.late = mapped(tmp_path, "late.bin")
    image = first.image()
    said = capsys.readouterr().err
    assert "module.large has changed" in said
    assert "module.late has changed" in said
    assert "module.held" not in said
    second.resumed(image)
    second.net.held.flush()
    assert type(second.net.held) is np.memmap
    assert np.fromfile(tmp_path / "second.bin", np.float32).tolist() == [0, 7, 0, 0]
    assert second.net.large.sum() == 0


def test_later_masked_array_is_made_again_with_its_mask() -> None:
    made = np.ma.masked_array([[1.0, 2.0], [3.0, 4.0]], [[0, 1], [0, 0]], fill_value=-7.0, hard_mask=True)
    found = carried(lambda process: setattr(process.net, "late", made)).net.late
    assert repr(found) == repr(made)
    assert found.data.tolist() == made.data.tolist()
    assert found.hardmask


def test_variables_that_a_function_shares_with_the_one_around_it_are_carried() -> None:
    def counting() -> Any:
        count, seen = 0, []

        def count_on() -> int:
            nonlocal count
            count += 1
            seen.append(count)
            return count

        count_on.seen = seen  # type: ignore[attr-defined]
        count_on.__module__ = "a_script"
        return count_on

    def change(process: Process) -> None:
        process.net.hook()
        process.net.hook()

    hook = carried(change, lambda: {"hook": counting()}).net.hook
    assert hook() == 3
    assert hook.seen == [1, 2, 3]


def test_arguments_of_a_partial_are_restored_in_place() -> None:
    def change(process: Process) -> None:
        process.net.scale.keywords["state"]["n"] += 1
        process.net.scale.args[0].append(2)

    net = carried(change, lambda: {"scale": functools.partial(print, [1], state={"n": 0})}).net
    assert (net.scale.keywords, net.scale.args) == ({"state": {"n": 1}}, ([1, 2],))


@pytest.mark.parametrize("kind", ["UserDict", "UserList", "ChainMap"])
@pytest.mark.parametrize("own", [False, True])
def test_contents_of_wrapping_containers_are_carried(kind: str, own: bool) -> None:
    def begun() -> Process:
        process = Process(view=memoryview(bytearray(2)))
        exec(f"class Own(collections.{kind}):\n    pass", vars(process.script))
        cls = process.script.Own if own else getattr(process.script.collections, kind)
        process.net.wrapped = cls([0]) if kind == "UserList" else cls({0: 0})
        return process.begun()

    first = begun()
    first.net.wrapped[0] = 5
    first.net.view[1] = 7
    net = begun().resumed(first.image()).net
    assert net.wrapped[0] == 5
    assert net.view.tolist() == [0, 7]


def test_thread_local_values_are_carried() -> None:
    def made() -> dict[str, Any]:
        local = threading.local()
        local.seen, local.listed = 0, [1]
        return {"local": local}

    def change(process: Process) -> None:
        process.net.local.seen += 1
        process.net.local.listed.append(2)

    local = carried(change, made).net.local
    assert (local.seen, local.listed) == (1, [1, 2])


def test_flags_of_several_members_are_carried() -> None:
    def begun() -> Process:
        process = Process()
        exec("class Does(enum.Flag):\n    CLIP = 1\n    NOISE = 2\n    FAST = 4", vars(process.script))
        process.net.does, process.net.listed = process.script.Does(0), []
        return process.begun()

    first, second = begun(), begun()
    sys.modules["a_script"] = first.script
    first.net.does = first.script.Does(6)
    first.net.listed.append(first.script.Does.CLIP)
    sys.modules["a_script"] = second.script
    net = second.resumed(first.image()).net
    assert net.does is second.script.Does(6)
    assert net.listed == [second.script.Does.CLIP]


def test_a_variable_of_a_function_that_came_to_be_in_training_is_carried() -> None:
    def later() -> Any:
        def found() -> Any:
            nonlocal late
            late = [1]

        def get() -> Any:
            return late

        found.__module__ = get.__module__ = "a_script"
        if False:
            late: Any = None
        return {"found": found, "get": get}

    net = carried(lambda process: process.net.found(), later).net
    assert net.get() == [1]


@pytest.mark.parametrize("kind", ["collections.OrderedDict", "Lru"])
def test_the_order_of_an_ordered_dict_is_carried_where_only_it_has_changed(kind: str) -> None:
    def begun() -> Process:
        process = Process()
        exec("class Lru(collections.OrderedDict):\n    pass", vars(process.script))
        process.net.cache = eval(f"{kind}(a=1, b=2)", vars(process.script))
        return process.begun()

    first = begun()
    first.net.cache.move_to_end("a")
    found = begun().resumed(first.image()).net.cache
    assert list(found.items()) == [("b", 2), ("a", 1)]
    assert found.popitem(last=False) == ("b", 2)


MANY: list[tuple[Any, Any]] = [
    (lambda: [1, 2], lambda held: held.append(3)),
    (lambda: [1, 2], lambda held: held.__setitem__(0, 7)),
    (lambda: {"a": 1}, lambda held: held.update(a=2)),
    (lambda: OrderedDict(a=1, b=2), lambda held: held.move_to_end("a")),
    (lambda: deque([1, 2], maxlen=2), lambda held: held.append(3)),
    (lambda: [1, {"deep": [deque([0])]}], lambda held: held[1]["deep"][0].append(1)),
    (lambda: np.zeros(3), lambda held: held.__setitem__(1, 5.0)),
    (lambda: np.zeros(2), lambda held: held.__setitem__(0, -0.0)),
    (lambda: np.array(["2026-01-01"], "datetime64[s]"), lambda held: held.fill(np.datetime64("2026-02-01"))),
    (lambda: torch.zeros(3), lambda held: held.data.add_(1)),
    (lambda: torch.zeros(3), lambda held: setattr(held, "data", torch.ones(3))),
]


@pytest.mark.parametrize("number", range(len(MANY)))
@pytest.mark.parametrize("at", [0, 100])
def test_of_many_objects_the_one_that_changes_is_carried_whenever_it_does(number: int, at: int) -> None:
    make, change = MANY[number]

    def made() -> dict[str, Any]:
        return {f"kept_{n}": make() for n in range(150)}

    first = Process(**made()).begun()
    assert first.image()["objects"] == []
    change(vars(first.net)[f"kept_{at}"])
    assert next(path for _, path, *_ in first.image()["objects"]).startswith(f"module.kept_{at}")
    image = first.image()  # once more, as it has left those that rest
    found = Process(**made()).begun().resumed(image).net
    for name in (f"kept_{at}", "kept_50"):
        assert repr(vars(found)[name]) == repr(vars(first.net)[name])


def test_an_array_and_a_tensor_of_the_same_bytes_in_another_shape_have_changed() -> None:
    first = Process(array=np.zeros((2, 3)), tensor=torch.zeros(2, 3)).begun()
    assert first.image()["objects"] == []
    first.net.array.shape = (3, 2)
    first.net.tensor.t_()
    assert {path for _, path, *_ in first.image()["objects"]} == {"module.array", "module.tensor"}


def test_of_many_objects_another_one_may_change_after_the_first() -> None:
    first = Process(**{f"kept_{n}": [n] for n in range(150)}).begun()
    for n in (3, 4, 140):
        vars(first.net)[f"kept_{n}"].append(0)
        first.image()
    assert {path for _, path, *_ in first.image()["objects"]} == {f"module.kept_{n}" for n in (3, 4, 140)}


def test_a_new_holder_refers_to_what_rests_by_its_path() -> None:
    def change(process: Process) -> None:
        process.net.both = [process.net.kept_1, process.net.kept_1]

    net = carried(change, lambda: {f"kept_{n}": [n] for n in range(3)}).net
    assert net.both[0] is net.kept_1
    assert net.both[1] is net.kept_1


def test_a_scaler_that_goes_on_at_the_end_of_a_pass_can_step_before_it_scales() -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    first, second = (torch.amp.GradScaler("cpu", init_scale=scale) for scale in (8.0, 2.0))
    first.scale(torch.ones(()))
    load_scaler(second, first.state_dict())
    second.step(SGD([weight], 1.0))
    second.update()
    assert weight.tolist() == [1 - 1 / 8] * 2


# -- loggers and callbacks -------------------------------------------------------------------------------------------


def logging_process() -> tuple[Process, Any]:
    """A process with a logger of the script's class, which the training alone holds."""
    process = Process()
    logger = process.script.Meter()
    process.loggers, process.callbacks = [logger], {"loggers[0]": logger}
    return process.begun(), logger


def test_a_logger_of_the_scripts_class_goes_on_with_its_rows() -> None:
    first, logger = logging_process()
    logger.seen.append({"step": 1, "loss": [0.5]})
    again, other = logging_process()
    again.resumed(first.image())
    assert other.seen == [{"step": 1, "loss": [0.5]}]


def test_a_logger_that_comes_or_goes_in_training_is_named() -> None:
    process, logger = logging_process()
    late = process.script.Meter()
    process.loggers, process.callbacks = [late], {"loggers[0]": late}
    process.state.dump()
    assert [str(lost) for lost in process.state.news()] == [
        "loggers[0] has changed and is in no checkpoint: a a_script.Meter that was added during training",
        "loggers[0] has changed and is in no checkpoint: a a_script.Meter that was removed during training",
    ]
    assert logger.seen == []
