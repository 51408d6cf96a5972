"""
Snapshots of tensors on an accelerator, and each fault that a missing wait, pin, event or stream would cause.

A test stops copies at a gate of the simulated accelerator, lets everything else come to rest, and looks. `MUTANTS` are
the faults: each changes one line of spotrun, and the test that it names must fail.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from spotrun.checkpoint import accelerator, snapshot, staging
from spotrun.training import tensors
from spotrun.training.trace import digests
from tests.device import toy
from tests.device.apart import fault_in_fork
from tests.support.repository import ROOT

SIZE = 256 << 10
"""Bytes of the weights of a test: several steps of a copy."""
ARENA_BYTES = 1 << 20
UNTOUCHED = 0xEE
DEVICES = [0, 1]


@contextlib.contextmanager
def stager_with_arena() -> Iterator[staging.Stager]:
    stager = staging.Stager()
    adopt(stager, 0)
    try:
        yield stager
    finally:
        for device in DEVICES:
            toy.allow(toy.ALL, device=device)
            toy.allow(toy.ALL, toy.UPLOAD, device=device)
        stager.close()


def adopt(stager: staging.Stager, number: int) -> Tensor:
    """Give the stager an arena with this number, in place of any other."""
    fd = os.memfd_create("arena")
    os.ftruncate(fd, ARENA_BYTES)
    stager.adopt(fd, ARENA_BYTES, (0,), number)
    arena = stager._arenas[number]
    arena.fill_(UNTOUCHED)
    return arena


def weights_on(device: int, value: int = 1, size: int = SIZE) -> Tensor:
    return torch.full((size,), value, dtype=torch.uint8, device=f"toy:{device}")


def planned(*weights: Tensor) -> snapshot.ImagePlan:
    return snapshot.plan_image(dict(enumerate(weights)), {})


def expect(stager: staging.Stager, plan: snapshot.ImagePlan, *values: set[int], arena: int = 0) -> None:
    """Compare the values that each tensor has in the arena. (Here, pytest prints no tensor and waits for no device.)"""
    memory = stager._arenas[arena]
    found = [set(memory[piece.start :][: piece.size_bytes].unique().tolist()) for piece in plan.pieces]
    assert found == [*values]


def begin(stager: staging.Stager, *weights: Tensor) -> tuple[staging.Staged, snapshot.ImagePlan]:
    """Take a snapshot whose tensors are all copied while training continues."""
    plan = planned(*weights)
    staged = stager.stage(plan, plan.pieces)
    staged.begin()
    return staged, plan


def computes(device: int) -> bool:
    """Return True if no work is waiting on the stream on which this thread computes."""
    return bool(torch.accelerator.current_stream(device).query())


# --- waits


@pytest.mark.parametrize("device", DEVICES)
def test_copy_waits_for_work_that_was_queued_before(device: int) -> None:
    weights = weights_on(device)
    with stager_with_arena() as stager:
        for number in (0, 1):  # the second copy is on a stream that is there already
            if number:
                adopt(stager, number)
            written = torch.full((SIZE,), 2 + number, dtype=torch.uint8, pin_memory=True)
            toy.allow(0, toy.UPLOAD, device)
            weights.copy_(written, non_blocking=True)
            staged, plan = begin(stager, weights)
            toy.settle(copies=number + 1, device=device)
            expect(stager, plan, {UNTOUCHED}, arena=number)
            assert not staged.done()
            toy.allow(toy.ALL, toy.UPLOAD, device)
            staged.wait()
            expect(stager, plan, {2 + number}, arena=number)


def test_copy_waits_for_work_on_a_stream_of_the_script() -> None:
    weights, written = weights_on(0), torch.full((SIZE,), 2, dtype=torch.uint8, pin_memory=True)
    with stager_with_arena() as stager, torch.Stream("toy:0"):
        toy.allow(0, toy.UPLOAD)
        weights.copy_(written, non_blocking=True)
        staged, plan = begin(stager, weights)
        toy.settle(copies=1)
        expect(stager, plan, {UNTOUCHED})
        toy.allow(toy.ALL, toy.UPLOAD)
        staged.wait()
        expect(stager, plan, {2})


def test_copy_does_not_wait_for_work_that_is_queued_later() -> None:
    weights, other = weights_on(0), weights_on(0)
    written = torch.full((SIZE,), 2, dtype=torch.uint8, pin_memory=True)
    with stager_with_arena() as stager:
        plan = planned(weights)
        staged = stager.stage(plan, plan.pieces)
        toy.allow(0, toy.UPLOAD)
        other.copy_(written, non_blocking=True)
        staged.begin()
        toy.settle(copies=1)
        expect(stager, plan, {1})
        toy.allow(toy.ALL, toy.UPLOAD)
        staged.wait()


@pytest.mark.parametrize("device", DEVICES)
def test_training_goes_on_while_a_copy_is_under_way(device: int) -> None:
    weights = weights_on(device)
    with stager_with_arena() as stager:
        toy.allow(SIZE // 2, device=device)
        staged, plan = begin(stager, weights)
        toy.settle(copies=1, device=device)
        assert computes(device)
        assert not staged.done()
        expect(stager, plan, {1, UNTOUCHED})
        assert (weights + 1).sum() == 2 * SIZE
        toy.allow(toy.ALL, device=device)
        staged.wait()
        weights.fill_(9)
        expect(stager, plan, {1})


def test_two_devices_copy_at_the_same_time() -> None:
    weights = [weights_on(device, device + 1) for device in DEVICES]
    with stager_with_arena() as stager:
        for device in DEVICES:
            toy.allow(SIZE // 2, device=device)
        staged, plan = begin(stager, *weights)
        for device in DEVICES:
            toy.settle(copies=1, device=device)
        assert all(map(computes, DEVICES))
        expect(stager, plan, {1, UNTOUCHED}, {2, UNTOUCHED})
        for device in DEVICES:
            toy.allow(toy.ALL, device=device)
        staged.wait()
        expect(stager, plan, {1}, {2})


@pytest.mark.parametrize("device", DEVICES)
def test_device_that_fails_during_a_copy_is_noticed_before_the_next_step(device: int) -> None:
    with stager_with_arena() as stager:
        toy.allow(SIZE // 2, device=device)
        staged, plan = begin(stager, weights_on(device))
        toy.settle(copies=1, device=device)
        assert not staged.done()
        toy.fail(device)
        with pytest.raises(RuntimeError, match=f"toy:{device} has failed"):
            staged.wait()
        expect(stager, plan, {1, UNTOUCHED})


@pytest.mark.parametrize("device", DEVICES)
def test_device_that_fails_while_training_waits_for_a_copy_is_noticed(device: int) -> None:
    plan = planned(weights_on(device))
    with stager_with_arena() as stager, ThreadPoolExecutor(1) as trainer:
        toy.allow(SIZE // 2, device=device)
        staging_it = trainer.submit(stager.stage, plan)
        toy.settle(copies=1, device=device)
        assert not done(staging_it)
        toy.fail(device)
        with pytest.raises(RuntimeError, match=f"toy:{device} has failed"):
            staging_it.result()


def done(future: Future[Any]) -> bool:
    return future.done()


def test_failed_work_leaves_no_copy_under_way() -> None:
    """Its arena may get another image next."""
    weights = weights_on(0)
    with stager_with_arena() as stager:
        plan = planned(weights)

        def fails() -> None:
            snapshot.write_pieces(plan.pieces, stager._arenas[0], wait=False)
            raise ValueError("the work failed")

        toy.allow(SIZE // 2)
        task = stager.aside(fails, [weights])
        task.begin()
        toy.settle(copies=1)
        toy.fail()
        with pytest.raises(RuntimeError, match="toy:0 has failed"):
            task.result()


def test_finiteness_check_sees_the_work_that_was_queued_before() -> None:
    weights, written = torch.zeros(SIZE // 4, device="toy"), torch.full((SIZE // 4,), float("nan"), pin_memory=True)
    with stager_with_arena() as stager:
        toy.allow(0, toy.UPLOAD)
        weights.copy_(written, non_blocking=True)
        task = stager.aside(partial(tensors.are_finite, None, [weights]), [weights])
        task.begin()
        toy.settle()
        assert not task.done()
        toy.allow(toy.ALL, toy.UPLOAD)
        assert not task.result()


def test_probe_sees_a_write_on_a_device() -> None:
    weights = weights_on(1)
    with stager_with_arena() as stager:
        plan = planned(weights)
        staged = stager.stage(plan, plan.pieces, overlapped=False)
        expect(stager, plan, {1})
        assert not staged.changed()
        weights.data[5] = 7
        assert staged.changed()


# --- pins


def test_every_copy_goes_into_pinned_memory() -> None:
    small, large = weights_on(0, size=100), weights_on(1)

    def copies(*, asynchronous: bool) -> list[int]:
        return [toy.copies(device=device, asynchronous=asynchronous) for device in DEVICES]

    with stager_with_arena() as stager:
        blocking = copies(asynchronous=False)
        plan = planned(small, large)
        stager.stage(plan, plan.pieces[1:]).wait()
        assert copies(asynchronous=True) == [1, 1]
        assert copies(asynchronous=False) == blocking


def test_replaced_arenas_are_unpinned_after_the_copies_into_them() -> None:
    weights = weights_on(0)
    with stager_with_arena() as stager:
        replaced = stager._memory
        assert replaced is not None
        assert replaced.is_pinned()
        toy.allow(SIZE // 2)
        staged, _ = begin(stager, weights)
        toy.settle(copies=1)
        arena = adopt(stager, 1)
        assert replaced.is_pinned()
        toy.allow(toy.ALL)
        staged.wait()
        stager.aside(lambda: None).result()
        assert not replaced.is_pinned()
        assert arena.is_pinned()
        assert not toy.faults()


def test_memory_that_cannot_be_pinned_is_reported_once_and_filled_correctly() -> None:
    toy.refuse_to_register(2)
    with contextlib.redirect_stderr(io.StringIO()) as said, stager_with_arena() as stager:
        weights = weights_on(0)
        _, plan = begin(stager, weights)
        for number in (1, 2):
            adopt(stager, number)
            staged, plan = begin(stager, weights)
            staged.wait()
            expect(stager, plan, {1}, arena=number)
    assert said.getvalue() == (
        "spotrun: toy could not pin 0.0 GB of memory for snapshots (error 2): copies from the device take longer\n"
    )


def test_accelerator_that_pins_no_memory_of_others_is_reported_once() -> None:
    del toy.host_register
    with contextlib.redirect_stderr(io.StringIO()) as said, stager_with_arena() as stager:
        for number in (1, 2):
            adopt(stager, number)
            staged, plan = begin(stager, weights_on(1))
            staged.wait()
            expect(stager, plan, {1}, arena=number)
    assert said.getvalue() == ("spotrun: toy cannot pin memory for snapshots: copies from the device take longer\n")


# --- devices, and what they lack


def test_without_streams_training_waits_for_copies_and_that_is_reported_once() -> None:
    toy.take_streams()
    weights = weights_on(0)
    with contextlib.redirect_stderr(io.StringIO()) as said, stager_with_arena() as stager:
        toy.allow(0)
        plan = planned(weights, weights_on(1))
        stager.stage(plan)
        expect(stager, plan, {1}, {1})
        assert not accelerator.copies_aside(weights)
        assert stager.aside(partial(tensors.are_finite, None, [weights.float()]), [weights]).result()
    assert said.getvalue() == (
        "spotrun: toy has no streams (toy: it makes no streams): training waits while a snapshot is copied\n"
    )


def test_memory_that_runs_out_during_a_check_is_noticed_and_the_next_snapshot_is_complete() -> None:
    weights = torch.ones(SIZE // 4, device="toy")
    with stager_with_arena() as stager:
        toy.set_capacity(toy.used_bytes())
        task = stager.aside(partial(tensors.are_finite, None, [weights]), [weights])
        with pytest.raises(torch.OutOfMemoryError):
            task.result()
        toy.set_capacity(1 << 30)
        staged, plan = begin(stager, weights)
        staged.wait()
        assert staged.done()
        assert torch.equal(stager._arenas[0][plan.pieces[0].start :][:SIZE].view(torch.float32), weights.cpu())


def test_state_on_two_devices_comes_back_with_the_same_bits_and_layouts() -> None:
    torch.manual_seed(1)
    of_any_kind = {
        "plain": torch.randn(7, 5, device="toy:1"),
        "channels last": torch.randn(2, 3, 4, 5, device="toy:0").to(memory_format=torch.channels_last),
        "transposed": torch.randn(6, 4, device="toy:1").t(),
        "strided": torch.randn(8, 8, device="toy:0")[::2, 1::3],
        "conjugated": torch.randn(3, dtype=torch.complex64, device="toy:1").conj(),
        "bf16": torch.randn(9, device="toy:0").bfloat16(),
        "scalar": torch.tensor(3, device="toy:1"),
        "empty": torch.empty(0, 3, device="toy:0"),
        "on the CPU": torch.randn(4),
    }
    with stager_with_arena() as stager:
        plan = snapshot.plan_image({**of_any_kind, "device": torch.device("toy:1")}, {})
        stager.stage(plan)
        image = bytearray(stager._arenas[0].numpy().tobytes())
    state, _ = snapshot.read_image(image)
    assert state.pop("device") == torch.device("toy:1")
    for name, saved in of_any_kind.items():
        target = torch.empty_like(saved.resolve_conj())
        target.copy_(state[name])
        assert target.device == saved.device
        assert torch.equal(target.cpu(), saved.cpu().resolve_conj()), name
        assert state[name].stride() == saved.stride() or name in ("strided", "empty")


def test_restored_tensors_are_complete_before_their_image_is_overwritten() -> None:
    module = nn.Linear(64, 64, device="toy:1")
    before = [value.cpu() for value in module.parameters()]
    with stager_with_arena() as stager:
        plan = snapshot.plan_image(dict(module.state_dict()), {})
        stager.stage(plan)
        image = bytearray(stager._arenas[0].numpy().tobytes())
    nn.init.zeros_(module.weight)
    toy.allow(0, toy.UPLOAD, device=1)
    module.load_state_dict(snapshot.read_image(image)[0])
    image[:] = bytes(len(image))
    toy.allow(toy.ALL, toy.UPLOAD, device=1)
    assert all(map(torch.equal, (value.cpu() for value in module.parameters()), before))


def test_checkpoint_names_a_device_that_this_torch_does_not_know() -> None:
    plan = snapshot.plan_image({"device": torch.device("toy:1")}, {})
    with pytest.raises(snapshot.CheckpointDamaged, match="does not know the checkpoint's device npu:1"):
        snapshot.read_image(bytearray(plan.header.replace(b"toy:1", b"npu:1") + bytes(64)))


@pytest.mark.parametrize("device", DEVICES)
def test_generator_of_each_device_is_in_a_trace(device: int) -> None:
    before = digests.digests(digests.generators())
    torch.rand(1, device=f"toy:{device}")
    after = digests.digests(digests.generators())
    assert {name for name, digest in after.items() if before[name] != digest} == {f"toy:{device}"}


def test_generator_of_a_device_is_carried_by_an_image() -> None:
    generator = torch.Generator("toy:1").manual_seed(7)
    torch.rand(5, generator=generator, device="toy:1")
    with stager_with_arena() as stager:
        stager.stage(snapshot.plan_image({"state": generator.get_state()}, {}))
        image = bytearray(stager._arenas[0].numpy().tobytes())
    expected = torch.rand(5, generator=generator, device="toy:1")
    resumed = torch.Generator("toy:1")
    resumed.set_state(snapshot.read_image(image)[0]["state"])
    assert torch.equal(torch.rand(5, generator=resumed, device="toy:1"), expected)


# --- faults


REASONS = ("AssertionError", "DID NOT RAISE", "ValueError")
"""How a test fails that has found a fault. (A mutant that is no Python, for example, has proven nothing.)"""


class Mutant(NamedTuple):
    """A line of a module, what it is changed to, and the test that must fail then."""

    fault: str
    module: ModuleType
    line: str
    changed: str
    test: Callable[[], object]


QUEUED = partial(test_copy_waits_for_work_that_was_queued_before, 0)
UNDER_WAY = partial(test_training_goes_on_while_a_copy_is_under_way, 0)
FAILS = partial(test_device_that_fails_during_a_copy_is_noticed_before_the_next_step, 0)
FAILS_MEANWHILE = partial(test_device_that_fails_while_training_waits_for_a_copy_is_noticed, 0)
FAILS_MEANWHILE_ELSEWHERE = partial(test_device_that_fails_while_training_waits_for_a_copy_is_noticed, 1)
RECORD = "event.record(torch.accelerator.current_stream(device))"
NEW_STREAM = "self._streams[device] = torch.Stream(device)"
WAIT = "torch.accelerator.current_stream(device).synchronize()"
WAITING = "copy = partial(write_pieces, waiting, arena, wait=False)"

MUTANTS = [
    Mutant("no event", accelerator, RECORD, "pass", QUEUED),
    Mutant(
        "event of another stream",
        accelerator,
        RECORD,
        "event.record(torch.Stream(device))",
        QUEUED,
    ),
    Mutant(
        "event of the thread that copies",
        staging,
        "        moment = Moment(tensors, self._lanes)\n\n        def beside() -> T:\n",
        "        def beside() -> T:\n            moment = Moment(tensors, self._lanes)\n",
        test_copy_waits_for_work_on_a_stream_of_the_script,
    ),
    Mutant(
        "event too late",
        staging,
        "        moment = Moment(tensors, self._lanes)\n\n        def beside() -> T:\n",
        "        def beside() -> T:\n            moment = Moment(tensors, self._lanes)\n",
        test_copy_does_not_wait_for_work_that_is_queued_later,
    ),
    Mutant(
        "no events",
        accelerator,
        "{device: lanes.mark(device) for device in lanes.devices(tensors)}",
        "{}",
        FAILS,
    ),
    Mutant("copy waits for no event", accelerator, "stream.wait_event(mark)", "pass", QUEUED),
    Mutant(
        "first copy alone waits for its event",
        accelerator,
        f"{NEW_STREAM}\n        stream = self._streams[device]\n        stream.wait_event(mark)\n",
        f"{NEW_STREAM}\n            self._streams[device].wait_event(mark)\n        stream = self._streams[device]\n",
        QUEUED,
    ),
    Mutant(
        "stream of the training",
        accelerator,
        NEW_STREAM,
        "self._streams[device] = torch.accelerator.current_stream(device)",
        UNDER_WAY,
    ),
    Mutant(
        "stream of another device",
        accelerator,
        NEW_STREAM,
        "self._streams[device] = torch.Stream('toy:0')",
        test_two_devices_copy_at_the_same_time,
    ),
    Mutant("copy on no stream", accelerator, "with stream:", "with contextlib.nullcontext():", UNDER_WAY),
    Mutant(
        "copy is not waited for", accelerator, "stream.synchronize()\n\n    def wait", "pass\n\n    def wait", FAILS
    ),
    Mutant(
        "copy of failed work is not waited for",
        accelerator,
        "        finally:\n            stream.synchronize()",
        "        except ZeroDivisionError:\n            pass\n        else:\n            stream.synchronize()",
        test_failed_work_leaves_no_copy_under_way,
    ),
    Mutant("copy at the boundary is not waited for", accelerator, WAIT, "pass", FAILS_MEANWHILE),
    Mutant(
        "current device alone is waited for",
        accelerator,
        WAIT,
        "torch.accelerator.current_stream().synchronize()",
        FAILS_MEANWHILE_ELSEWHERE,
    ),
    Mutant("no device is waited for", staging, "self._lanes.wait(device)", "pass", FAILS_MEANWHILE),
    Mutant("wrong tensors are waited for", staging, "self.aside(copy, _tensors(waiting))", "self.aside(copy)", FAILS),
    Mutant("step does not wait for the copy", staging, "self._copying.result()", "pass", FAILS),
    Mutant("unfinished copy counts as done", staging, "self._copying.done()", "True", FAILS),
    Mutant(
        "blocking copies", staging, WAITING, WAITING.replace("False", "True"), test_every_copy_goes_into_pinned_memory
    ),
    Mutant(
        "blocking copies at the boundary",
        staging,
        "write_pieces(at_once, arena, wait=False)",
        "write_pieces(at_once, arena)",
        test_every_copy_goes_into_pinned_memory,
    ),
    Mutant("no pin", staging, "        pin(memory)\n", "", test_every_copy_goes_into_pinned_memory),
    Mutant(
        "no registration",
        accelerator,
        "registry.register(memory.data_ptr(), memory.numel())",
        "0",
        test_every_copy_goes_into_pinned_memory,
    ),
    Mutant(
        "no end of a registration",
        accelerator,
        "registry.unregister(memory.data_ptr())",
        "pass",
        test_replaced_arenas_are_unpinned_after_the_copies_into_them,
    ),
    Mutant(
        "no unpin",
        staging,
        "self._copier.submit(unpin, replaced)",
        "pass",
        test_replaced_arenas_are_unpinned_after_the_copies_into_them,
    ),
    Mutant(
        "unpin of what was never pinned",
        accelerator,
        "registry is not None and memory.is_pinned()",
        "registry is not None",
        test_memory_that_cannot_be_pinned_is_reported_once_and_filled_correctly,
    ),
    Mutant(
        "unpin during a copy",
        staging,
        "self._copier.submit(unpin, replaced)",
        "unpin(replaced)",
        test_replaced_arenas_are_unpinned_after_the_copies_into_them,
    ),
    Mutant(
        "asynchronous copies without streams",
        snapshot,
        "non_blocking=not wait and copies_aside(tensor)",
        "non_blocking=not wait",
        test_without_streams_training_waits_for_copies_and_that_is_reported_once,
    ),
    Mutant(
        "generator of the current device alone",
        accelerator,
        'module.get_rng_state_all() if hasattr(module, "get_rng_state_all") else [module.get_rng_state()]',
        "[module.get_rng_state()]",
        partial(test_generator_of_each_device_is_in_a_trace, 1),
    ),
]


MUTATED = {
    *("record", "mark", "Moment", "Stream", "wait_event", "synchronize", "wait", "aside"),
    *("pin", "register", "unregister", "copy_", "write_pieces"),
}
"""Each call of such a name has a mutant. What `_has_streams` calls is a trial."""


def calls_in(source: str) -> Iterator[ast.Call]:
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef) and node.name == "_has_streams":
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in MUTATED:
            yield node


def rows() -> list[str]:
    """Return the table of docs/design/promises.md, below its head."""
    found = []
    for mutant in MUTANTS:
        test = getattr(mutant.test, "func", mutant.test)
        found.append(f"| {mutant.fault} | {mutant.module.__name__.rpartition('.')[2]} | {test.__name__} |")
    return found


def test_page_of_promises_has_the_mutants() -> None:
    """Print `rows()` to mend it."""
    page = (ROOT / "docs/design/promises.md").read_text().splitlines()
    begins = page.index("| fault | in | test that finds it |") + 2
    assert page[begins : begins + len(MUTANTS) + 1] == [*rows(), ""]


@pytest.mark.parametrize("name", [module.__name__ for module in (accelerator, snapshot, staging)])
def test_each_wait_pin_event_and_stream_has_a_mutant(name: str) -> None:
    module = sys.modules[name]
    source = source_of(module)
    changed = set()
    for mutant in MUTANTS:
        if mutant.module is module:
            first = source[: source.index(mutant.line)].count("\n") + 1
            changed |= {*range(first, first + mutant.line.rstrip("\n").count("\n") + 1)}
    missing = [ast.unparse(call) for call in calls_in(source) if call.lineno not in changed]
    assert missing == []


def source_of(module: ModuleType) -> str:
    assert module.__file__
    return Path(module.__file__).read_text()


def mutated(mutant: Mutant) -> None:
    """Change the line, and load the module and those that import it again."""
    for module in (accelerator, snapshot, staging, digests):
        source = source_of(module)
        if module is mutant.module:
            assert source.count(mutant.line) == 1, f"{module.__name__} has no such line, or several"
            source = source.replace(mutant.line, mutant.changed)
        exec(compile(source, str(module.__file__), "exec"), module.__dict__)


@pytest.mark.parametrize("fault", [mutant.fault for mutant in MUTANTS])
def test_fault_is_found(fault: str) -> None:
    (mutant,) = (mutant for mutant in MUTANTS if mutant.fault == fault)
    mutated(mutant)
    found = fault_in_fork(mutant.test)
    assert any(reason in found for reason in REASONS), found or "the test passes all the same"
