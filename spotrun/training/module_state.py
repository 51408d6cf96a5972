"""Saves the parts of a module's state that `state_dict()` leaves out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from spotrun.training import weights

State = dict[str, Any]


def dump(module: torch.nn.Module, *, gradients: bool = False) -> State:
    """
    Return the non-persistent buffers, and the accumulated states of torchmetrics' metrics. If `gradients` is True, also
    return the gradients that no optimizer has used yet.
    """
    parts = list(module.named_modules())
    return {
        "buffers": dict(_hidden_buffers(parts)),
        "metrics": {
            name: {
                "states": {state: _flat(getattr(metric, state)) for state in metric._defaults},
                "updates": metric._update_count,
                "counts": values_of(metric),
            }
            for name, metric in _metrics(parts)
        },
        "gradients": {
            name: _saved(parameter.grad) for name, parameter in module.named_parameters() if parameter.grad is not None
        }
        if gradients
        else {},
    }


def load_buffers(module: torch.nn.Module, state: State) -> None:
    buffers = dict(module.named_buffers())
    with torch.no_grad():
        for name, value in state.items():
            buffers[name].copy_(value)


def _flat(state: Any) -> Any:
    return list(state) if isinstance(state, list) else state


def load(module: torch.nn.Module, state: State) -> None:
    parts = list(module.named_modules())
    for name, value in state["buffers"].items():
        whole = name.removeprefix(".")  # a buffer of `module` itself is called ".name"
        weights.put_buffer(module, whole, value, persistent=False)
    metrics = dict(_metrics(parts))
    for name, saved in state["metrics"].items():
        metric: Any = metrics[name]
        for field, value in saved["states"].items():
            setattr(metric, field, _to(value, metric.device))
        counts = saved.get("counts", {})  # checkpoints of earlier versions lack this entry
        vars(metric).update({name: _to(value, metric.device) for name, value in counts.items()})
        metric._update_count = saved["updates"]
        metric._computed = None


def load_gradients(module: torch.nn.Module, state: State) -> None:
    parameters = dict(module.named_parameters())
    for name, gradient in state["gradients"].items():
        parameters[name].grad = _restored(gradient).to(parameters[name].device)


def _saved(gradient: torch.Tensor) -> Any:
    """Return a gradient as a checkpoint holds it: a sparse one, as of an `nn.Embedding(sparse=True)`, in its parts."""
    if gradient.layout is not torch.sparse_coo:
        return gradient
    return {
        "indices": gradient._indices(),
        "values": gradient._values(),
        "shape": gradient.shape,
        "coalesced": gradient.is_coalesced(),
    }


def _restored(saved: Any) -> torch.Tensor:
    if isinstance(saved, torch.Tensor):
        return saved
    return torch.sparse_coo_tensor(
        saved["indices"], saved["values"], saved["shape"], is_coalesced=saved["coalesced"], check_invariants=True
    )


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, list):
        return [item.to(device) for item in value]
    return value.to(device) if isinstance(value, torch.Tensor) else value


Parts = Iterable[tuple[str, torch.nn.Module]]
"""A module and all modules in it, by name."""


def _hidden_buffers(parts: Parts) -> list[tuple[str, torch.Tensor]]:
    return [
        (f"{prefix}.{name}", buffer)
        for prefix, part in parts
        if part._non_persistent_buffers_set
        for name in sorted(part._non_persistent_buffers_set)
        if (buffer := part._buffers.get(name)) is not None
    ]


def _metrics(parts: Parts) -> list[tuple[str, Any]]:
    return [(name, part) for name, part in parts if is_metric(type(part))]


def values_of(metric: Any) -> dict[str, int | float | torch.Tensor]:
    """
    Return the attributes of a metric that are plain numbers, and the public ones that are tensors but none of its
    states. A metric over a window of recent values, for example, keeps its position in the window in such an attribute,
    and torchmetrics' MinMaxMetric the extremes so far.
    """
    values, states = vars(metric), metric._defaults
    numbers = {name: value for name, value in values.items() if type(value) in (int, float, bool)}
    return numbers | {
        name: value
        for name, value in values.items()
        if type(value) is torch.Tensor and name[:1] != "_" and name not in states
    }


def is_metric(kind: type) -> bool:
    if kind not in _METRICS:  # kept, because this is called for each part of a model at each snapshot
        bases = kind.__mro__
        _METRICS[kind] = any(cls.__name__ == "Metric" and cls.__module__.startswith("torchmetrics") for cls in bases)
    return _METRICS[kind]


_METRICS: dict[type, bool] = {}
