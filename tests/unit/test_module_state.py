"""What a module's `state_dict()` leaves out: here the metrics of torchmetrics."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torchmetrics import MeanMetric
from torchmetrics.aggregation import RunningMean
from torchmetrics.wrappers import Running

from spotrun.training import module_state
from tests.support.script_process import carried


def module() -> nn.Module:
    return nn.ModuleDict(
        {"mean": MeanMetric(), "last": RunningMean(window=3), "wrapped": Running(MeanMetric(), window=2)}
    )


def feed(metrics: nn.ModuleDict, values: list[float]) -> list[float]:
    found = []
    for value in values:
        for metric in metrics.values():
            metric.update(torch.tensor(value))
            found.append(float(metric.compute()))
    return found


def test_metrics_go_on_with_their_counts_and_states() -> None:
    first, second = module(), module()
    feed(first, [1.0, 2.0, 4.0, 8.0])
    module_state.load(second, copy.deepcopy(module_state.dump(first)))
    assert feed(second, [16.0, 32.0]) == feed(first, [16.0, 32.0])


def test_so_do_metrics_that_are_no_part_of_the_module() -> None:
    made = [module()]
    other = carried(lambda process: feed(process.net.metrics[0], [1.0, 2.0, 4.0, 8.0]), lambda: {"metrics": [module()]})
    feed(made[0], [1.0, 2.0, 4.0, 8.0])
    assert feed(other.net.metrics[0], [16.0, 32.0]) == feed(made[0], [16.0, 32.0])
