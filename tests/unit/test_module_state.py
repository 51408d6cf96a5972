"""What a module's `state_dict()` leaves out: here the metrics of torchmetrics."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torchmetrics import MeanMetric
from torchmetrics.aggregation import RunningMean
from torchmetrics.wrappers import MinMaxMetric, Running

from spotrun.checkpoint.snapshot import ImagePlan, plan_image, read_image, write_header, write_pieces
from spotrun.training import module_state
from tests.support.script_process import carried


def module() -> nn.Module:
    return nn.ModuleDict(
        {
            "mean": MeanMetric(),
            "last": RunningMean(window=3),
            "wrapped": Running(MeanMetric(), window=2),
            "extremes": MinMaxMetric(MeanMetric()),
        }
    )


def feed(metrics: nn.ModuleDict, values: list[float]) -> list[float]:
    found = []
    for value in values:
        for metric in metrics.values():
            metric.update(torch.tensor(value))
            result = metric.compute()
            found += map(float, result.values()) if isinstance(result, dict) else [float(result)]
    return found


def test_metrics_go_on_with_their_counts_and_states() -> None:
    first, second = module(), module()
    feed(first, [1.0, 2.0, 4.0, 8.0])
    module_state.load(second, copy.deepcopy(module_state.dump(first)))
    assert feed(second, [16.0, 32.0]) == feed(first, [16.0, 32.0])


def test_sparse_gradients_that_are_left_over_are_carried_as_they_are() -> None:
    first, second = nn.Embedding(9, 2, sparse=True), nn.Embedding(9, 2, sparse=True)
    for _ in range(2):
        first(torch.tensor([3, 3, 1])).sum().backward()
    state = module_state.dump(first, gradients=True)
    read_back, _ = read_image(written(plan_image(state, {})))
    module_state.load_gradients(second, read_back)
    before, after = first.weight.grad, second.weight.grad
    assert before is not None
    assert after is not None
    assert before.is_coalesced() == after.is_coalesced()
    for part in ("_indices", "_values"):
        assert torch.equal(getattr(before, part)(), getattr(after, part)())


def written(plan: ImagePlan) -> bytearray:
    image = torch.zeros(plan.size_bytes, dtype=torch.uint8)
    write_header(plan, image)
    write_pieces(plan.pieces, image)
    return bytearray(image.numpy().tobytes())


def test_so_do_metrics_that_are_no_part_of_the_module() -> None:
    made = [module()]
    other = carried(lambda process: feed(process.net.metrics[0], [1.0, 2.0, 4.0, 8.0]), lambda: {"metrics": [module()]})
    feed(made[0], [1.0, 2.0, 4.0, 8.0])
    assert feed(other.net.metrics[0], [16.0, 32.0]) == feed(made[0], [16.0, 32.0])
