"""The tree along which an elastic training adds gradients, and what cannot be elastic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import distributed, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from spotrun import Loop
from spotrun.errors import SpecInvalid, SpotrunError
from spotrun.exactness.difference import Difference, DifferenceKind
from spotrun.loop import loop as loop_module
from spotrun.spec.file import load_spec
from spotrun.spec.model import RunSpec
from spotrun.trainer_link import VIRTUAL_RANKS
from spotrun.training.data.data_order import part_of, weights_of
from spotrun.training.elastic.partial_sums import PartialSums
from spotrun.training.elastic.virtual_ranks import Share, height, roots, stretches, sum_of
from spotrun.training.unsupported import TrainingUnsupported
from spotrun.verify.kills import KillPlan, require_worlds_fit
from spotrun.verify.verification import is_the_world

SIZES = [
    (total, processes) for total, processes in product((1, 2, 3, 5, 8, 12, 16, 24), range(1, 9)) if processes <= total
]


@pytest.mark.parametrize(("total", "processes"), SIZES)
def test_each_virtual_rank_belongs_to_one_process_and_none_has_more_than_its_part(total: int, processes: int) -> None:
    cut = stretches(total, processes)
    assert [virtual for stretch in cut for virtual in stretch] == list(range(total))
    assert max(map(len, cut)) == -(-total // processes)
    assert [Share(total, processes, rank).downwards for rank in range(processes)] == [each[::-1] for each in cut]


def test_virtual_ranks_are_divided_with_the_fewest_sums_to_send() -> None:
    assert list(map(len, stretches(16, 3))) == [4, 6, 6]
    assert [len(roots(16, stretch)) for stretch in stretches(16, 3)] == [1, 2, 2]


@pytest.mark.parametrize(("total", "processes"), SIZES)
def test_sum_has_the_same_bits_for_any_number_of_processes(total: int, processes: int) -> None:
    leaves = torch.randn(total, 5, generator=torch.Generator().manual_seed(total)) * 10.0 ** torch.arange(-2, 3)
    expected = sum_of(total, {(0, number): leaf for number, leaf in enumerate(leaves)}, torch.add)
    known = {}
    for stretch in stretches(total, processes):
        sums = PartialSums(total)
        for virtual in stretch[::-1]:
            sums.add(virtual, leaves[virtual].clone())
        known |= dict(zip(roots(total, stretch), sums.roots, strict=True))
    assert torch.equal(sum_of(total, known, torch.add), expected)


def test_tree_is_balanced() -> None:
    def depth(total: int) -> int:
        return int(sum_of(total, {(0, number): 0 for number in range(total)}, lambda a, b: max(a, b) + 1))

    assert [depth(total) for total in (1, 2, 3, 5, 8, 9)] == [height(total) for total in (1, 2, 3, 5, 8, 9)]


@pytest.mark.parametrize("samples", [1, 3, 4, 7, 8])
def test_each_sample_of_a_batch_counts_once(samples: int) -> None:
    weights, counted = weights_of(samples, 4), [0.0] * samples
    for virtual in range(4):
        part = part_of(range(samples), virtual, 4)
        for sample in part:
            counted[sample] += weights[virtual] / len(part) / 4
    assert counted == pytest.approx([1 / samples] * samples)


# -- what is refused


@pytest.fixture(autouse=True)
def _two_virtual_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(VIRTUAL_RANKS, "2")
    with torch.random.fork_rng():
        yield
    loop_module._running.clear()


class Training:
    """The parts of an elastic training on one process, which each of the wrong scripts puts together differently."""

    def __init__(self, **given: Any) -> None:
        self.model = given.pop("model", nn.Linear(3, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.data = TensorDataset(torch.rand(8, 3))
        self.loop = Loop(model=self.model, optimizer=self.optimizer, **given)

    def batches(self, **options: Any) -> Iterator[Any]:
        for _ in self.loop.epochs(1):
            yield from self.loop.batches(DataLoader(self.data, **({"batch_size": 4} | options)))

    def backward(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.model(x).mean()
        loss.backward()
        return loss


def reads_a_whole_batch() -> None:
    for (x,) in Training().batches():
        x.mean()


def divides_the_data_itself() -> None:
    training = Training()
    for _ in training.batches(sampler=DistributedSampler(training.data, 2, 0)):
        pass


def has_no_batches() -> None:
    for _ in Training().batches(batch_size=None):
        pass


def leaves_early() -> None:
    training = Training()
    for batch in training.batches():
        for (x,) in training.loop.micro_batches(batch):
            training.backward(x)
            break


def steps_early() -> None:
    training = Training()
    for batch in training.batches():
        for (x,) in training.loop.micro_batches(batch):
            training.backward(x)
            training.optimizer.step()


def steps_after_a_break() -> None:
    training = Training()
    for batch in training.batches():
        for (x,) in training.loop.micro_batches(batch):
            training.backward(x)
            break
        training.optimizer.step()


def zeroes_within() -> None:
    training = Training()
    for batch in training.batches():
        for (x,) in training.loop.micro_batches(batch):
            training.optimizer.zero_grad()
            training.backward(x)


def goes_backward_too_late() -> None:
    training = Training()
    for batch in training.batches():
        losses = [training.model(x).mean() for (x,) in training.loop.micro_batches(batch)]
        torch.stack(losses).mean().backward()
        training.optimizer.step()


def reduces_itself() -> None:
    training = Training()
    for batch in training.batches():
        for (x,) in training.loop.micro_batches(batch):
            distributed.all_reduce(training.backward(x).detach())


def takes_a_mean_sometimes() -> None:
    training = Training()
    for batch in training.batches():
        for number, (x,) in enumerate(training.loop.micro_batches(batch)):
            loss = training.backward(x)
            if number:
                training.loop.mean(loss)


def takes_a_mean_too_late() -> None:
    training = Training()
    for batch in training.batches():
        for (x,) in training.loop.micro_batches(batch):
            loss = training.backward(x)
        training.loop.mean(loss)


def gives_something_else() -> None:
    training = Training()
    for _ in training.batches():
        for _ in training.loop.micro_batches(torch.rand(2)):
            pass


def has_sparse_gradients() -> None:
    training = Training(model=nn.Embedding(4, 2, sparse=True))
    for batch in training.batches():
        for _ in training.loop.micro_batches(batch):
            training.backward(torch.tensor([1]))


def cycles() -> None:
    training = Training()
    training.loop.cycle(DataLoader(training.data))
    for _ in training.batches():
        pass


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("script", "reason", "hint"),
    [
        (reads_a_whole_batch, "the script reads a whole batch", "for x, y in loop.micro_batches(batch)"),
        (divides_the_data_itself, "its sampler already divides the data", "shuffle=True in place of the Distributed"),
        (has_no_batches, "its training data has no batches", "give the DataLoader a batch_size"),
        (leaves_early, "left the loop over its micro-batches early", "leave no `break`"),
        (steps_early, "an optimizer steps within a micro-batch", "call optimizer.step() after the loop"),
        (steps_after_a_break, "left the loop over its micro-batches early", "leave no `break`"),
        (zeroes_within, "a micro-batch calls zero_grad()", "call optimizer.zero_grad() after optimizer.step()"),
        (goes_backward_too_late, "calls backward() outside of the micro-batches", "call loss.backward() within"),
        (reduces_itself, "a micro-batch calls torch.distributed.all_reduce", "use loop.mean for figures"),
        (takes_a_mean_sometimes, "loop.mean was called for some micro-batches", "call it in each of them"),
        (takes_a_mean_too_late, "loop.mean was called outside of a micro-batch", "within `for … in loop.micro"),
        (gives_something_else, "loop.micro_batches got a Tensor", "give it a batch of loop.batches"),
        (has_sparse_gradients, "a gradient is sparse", "sparse=False"),
        (cycles, "loop.cycle does not divide its batches", "read all data with one DataLoader"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_script_whose_processes_would_differ_is_refused(script: Callable[[], None], reason: str, hint: str) -> None:
    reduce = distributed.all_reduce
    with pytest.raises(TrainingUnsupported) as refused:
        script()
    assert reason in refused.value.message
    assert hint in (refused.value.hint or "")
    assert distributed.all_reduce is reduce


@pytest.mark.exhaustive
def test_two_optimizers_step_after_one_loop_over_the_micro_batches() -> None:
    training, other, steps = Training(), nn.Linear(3, 1), 0
    second = torch.optim.SGD(other.parameters(), 0.1)
    training.loop = Loop(model=training.model, optimizer=training.optimizer, other=other, second=second)
    for number, batch in enumerate(training.batches()):
        for (x,) in training.loop.micro_batches(batch):
            training.backward(x)
            other(x).mean().backward()
        if number:  # the first batch only accumulates
            for optimizer in (training.optimizer, second):
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
    assert steps == 2


def test_variable_that_is_no_number_of_virtual_ranks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VIRTUAL_RANKS, "four")
    with pytest.raises(SpotrunError, match="SPOTRUN_VIRTUAL_RANKS is 'four', and has to be a number"):
        cycles()


@pytest.mark.parametrize(
    ("found", "worlds", "expected"),
    [(("4", "1"), (4, 2, 1), True), (("4", "1"), (), False), (("4", "2"), (4, 2, 1), False)],
)
def test_variable_with_the_number_of_processes_is_not_compared(
    found: tuple[str, str], worlds: tuple[int, ...], expected: bool
) -> None:
    one = Difference(kind=DifferenceKind.STATE, straight=found[0], interrupted=found[1], name="__main__.world")
    assert is_the_world(one, worlds) is expected
    assert not is_the_world(replace(one, kind=DifferenceKind.WEIGHTS), worlds)


def test_script_is_the_same_without_elastic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VIRTUAL_RANKS)
    training, means = Training(), []
    for batch in training.batches():
        for (x,) in training.loop.micro_batches(batch):
            mean = training.loop.mean(loss := training.backward(x))
        means.append(mean == loss.double())
        assert list(training.loop.micro_batches()) == [0]
    assert means == [True, True]


# -- the job, and --worlds


def spec_of(tmp_path: Any, **more: Any) -> RunSpec:
    (tmp_path / "train.py").write_text("")
    lines = [f"{name}: {value}" for name, value in {"train": "{script: train.py}", **more}.items()]
    (tmp_path / "job.yaml").write_text("\n".join(lines))
    return load_spec(str(tmp_path / "job.yaml"))


def test_command_with_a_state_is_not_elastic(tmp_path: Any) -> None:
    with pytest.raises(SpecInvalid, match="divides the batches of a Loop, and a command"):
        spec_of(tmp_path, train="{run: python train.py, state: [out/]}", elastic="{virtual_ranks: 4}")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"elastic": "{min_nodes: 3}", "num_nodes": 2}, "is more than num_nodes, which is 2"),
        ({"elastic": "{virtual_ranks: 3}", "num_nodes": 4}, "is too few for 4 instances of this job"),
        ({"elastic": "{min_nodes: 1}"}, "elastic.virtual_ranks: is missing"),
        ({"elastic": "{virtual_ranks: 2, promise: samples}"}, "elastic.promise"),
    ],
)
def test_elastic_that_does_not_fit_the_job_is_refused(tmp_path: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecInvalid, match=message):
        spec_of(tmp_path, **more)


def test_each_gpu_has_a_virtual_rank_unless_the_job_says_otherwise(tmp_path: Any) -> None:
    four = {"num_nodes": 2, "resources": "{accelerators: [A100:2, A100:1]}"}
    assert spec_of(tmp_path, elastic="{min_nodes: 1}", **four).virtual_ranks == 4
    assert spec_of(tmp_path, elastic="{virtual_ranks: 16}", **four).virtual_ranks == 16
    assert spec_of(tmp_path, **four).virtual_ranks is None


@pytest.mark.parametrize(
    ("worlds", "more", "message"),
    [
        ((2, 1), {}, "the job is not elastic"),
        ((2, 8), {"elastic": "{virtual_ranks: 4}"}, "8 processes cannot share 4 virtual ranks"),
        ((2,), {"elastic": "{virtual_ranks: 4}"}, "at least two numbers of processes"),
        ((2, 1), {"elastic": "{virtual_ranks: 4}", "num_nodes": 2}, "the job has several nodes"),
        ((4, 2, 1), {"elastic": "{virtual_ranks: 4}", "at": (3,)}, "--at has 1 steps"),
    ],
)
def test_worlds_that_do_not_fit_the_job_are_refused(
    tmp_path: Any, worlds: tuple[int, ...], more: dict[str, Any], message: str
) -> None:
    from datetime import timedelta

    plan = KillPlan(kills=1, at=more.pop("at", ()), seed=0, within=timedelta(minutes=1), worlds=worlds)
    with pytest.raises(SpecInvalid, match=message):
        require_worlds_fit(spec_of(tmp_path, **more), plan)
