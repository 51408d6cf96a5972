"""Finds, before the first step, any reason why spotrun could not resume a transformers Trainer exactly."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch.utils.data import IterableDataset

from spotrun.folder import start_file
from spotrun.training.framework import Problem
from spotrun.transformers import names

ON_EACH_GPU = "start the script with torchrun --nproc_per_node, which trains by DDP"
PARALLEL = ("tp", "cp", "sp")


def _is_of_mode(*beginnings: str) -> Callable[[Any], object]:
    return lambda trainer: trainer.args.parallel_mode.name.startswith(beginnings)


def _is_split(trainer: Any) -> bool:
    config = getattr(trainer.accelerator, "parallelism_config", None)
    by_config = config is not None and any(getattr(config, f"{kind}_size", 1) > 1 for kind in PARALLEL)
    return by_config or bool(getattr(trainer, "is_distributed_loading_by_transformers", False))


def _steps_in_backward(trainer: Any) -> bool:
    name = str(getattr(trainer.args.optim, "value", trainer.args.optim))
    return "lomo" in name or "layerwise" in name


def _reads_a_stream_together(trainer: Any) -> bool:
    return trainer.args.world_size > 1 and isinstance(trainer.train_dataset, IterableDataset)


_RULES: tuple[tuple[Callable[[Any], object], Problem], ...] = (
    (
        lambda t: t.is_deepspeed_enabled,
        Problem("DeepSpeed spreads the state over processes", f"leave out deepspeed; {ON_EACH_GPU}"),
    ),
    (
        lambda t: t.is_fsdp_enabled or getattr(t, "is_fsdp_xla_enabled", False),
        Problem("FSDP spreads the state over processes", f"leave out fsdp; {ON_EACH_GPU}"),
    ),
    (
        _is_split,
        Problem("the model is split over several devices", f"load all of it on one device; {ON_EACH_GPU}"),
    ),
    (
        lambda t: t.args.device.type == "xla" or _is_of_mode("TPU")(t),
        Problem("the Trainer uses a TPU", "use a GPU"),
    ),
    (
        _is_of_mode("SAGEMAKER"),
        Problem("SageMaker's own library trains the model", f"leave it out; {ON_EACH_GPU}"),
    ),
    (
        lambda t: t.args.n_gpu > 1,
        Problem(
            "one process trains on several GPUs, by nn.DataParallel", f"{ON_EACH_GPU}, or set CUDA_VISIBLE_DEVICES=0"
        ),
    ),
    (
        lambda t: start_file.VARIABLE in os.environ,
        Problem(
            "the run begins from a Lightning checkpoint, which the Trainer of transformers cannot read",
            "leave out --init-from, and let the script load its initial weights",
        ),
    ),
    (
        lambda t: t.args.auto_find_batch_size,
        Problem(
            "auto_find_batch_size chooses a smaller batch size on a machine with less memory",
            "give per_device_train_batch_size, and leave out auto_find_batch_size",
        ),
    ),
    (
        lambda t: t.hp_search_backend is not None,
        Problem("hyperparameter_search runs many trainings in one process", "launch each trial as a run"),
    ),
    (
        _steps_in_backward,
        Problem("the optimizer steps inside the backward pass", "give another optim, such as adamw_torch"),
    ),
    (
        _reads_a_stream_together,
        Problem(
            "the first process reads an IterableDataset, and sends batches to the other processes",
            "train with a map-style dataset, or in one process",
        ),
    ),
)


def problems(trainer: Any, module: ModuleType, version: str) -> list[Problem]:
    """Return every reason why a resumed training with this Trainer would not be bit-identical."""
    known = f"install transformers {names.KNOWN}, or a newer spotrun"
    if names.is_too_old(version):
        return [Problem(f"transformers {version} is older than {'.'.join(map(str, names.FLOOR))}", known)]
    if moved := names.moved(module):
        return [Problem(f"transformers {version} has moved {', '.join(moved)}", known)]
    return [problem for applies, problem in _RULES if applies(trainer)]
