"""The private names of other packages that spotrun uses: which of them do these releases not have?"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from spotrun.autoload.sitecustomize import INSTALLS
from spotrun.loop import prepared

PACKAGES = (
    "accelerate",
    "hydra-core",
    "jsonargparse",
    "lightning",
    "peft",
    "pytorch-lightning",
    "transformers",
)
TAKEN: Mapping[str, tuple[str, ...]] = {
    "accelerate.accelerator": ("Accelerator.prepare",),
    "hydra.core.utils": ("setup_globals", "OmegaConf.register_new_resolver"),
    "lightning.fabric.fabric": ("Fabric.setup",),
    "peft": ("PeftModel",),
}
"""Of modules that are watched or looked at: what is replaced or called there."""
WATCHED = tuple(name for name in INSTALLS if not name.startswith("lightning_fabric"))
"""lightning_fabric is a package of its own, and the same code."""


def moved() -> list[str]:
    """In the packages of this process."""
    return [name for look in LOOKS for name in look()]


def not_taken(taken: Mapping[str, tuple[str, ...]] = TAKEN) -> Iterator[str]:
    """Of modules, by their names."""
    for name in dict.fromkeys([*WATCHED, *taken]):
        try:
            module = importlib.import_module(name)
        except ImportError:
            yield name
            continue
        yield from (f"{name}.{each}" for each in taken.get(name, ()) if not has(module, each))


def has(owner: object, name: str) -> bool:
    try:
        operator.attrgetter(name)(owner)
    except AttributeError:
        return False
    return True


def in_lightning() -> Iterator[str]:
    from spotrun.lightning.connectors import names

    for package in ("pytorch_lightning", "lightning.pytorch"):
        trainer = importlib.import_module(package).Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
        yield from (f"{package}: {name}" for name in names.moved(trainer))


def in_transformers() -> Iterator[str]:
    from spotrun.transformers import names

    yield from (f"transformers: {name}" for name in names.moved(importlib.import_module("transformers.trainer")))


def in_fabric() -> Iterator[str]:
    fabric = importlib.import_module("lightning.fabric").Fabric(accelerator="cpu", devices=1)
    model = torch.nn.Linear(1, 1)
    theirs, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters()))
    yield from not_inside("Fabric", theirs, optimizer, fabric.setup_dataloaders(loader()), model)


def in_accelerate() -> Iterator[str]:
    accelerator = importlib.import_module("accelerate").Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    theirs, optimizer, reads = accelerator.prepare(model, torch.optim.SGD(model.parameters()), loader())
    yield from not_inside("accelerate", theirs, optimizer, reads, model)


def not_inside(name: str, model: Any, optimizer: Any, reads: Any, own: torch.nn.Module) -> Iterator[str]:
    """The script's own is found in each wrapper, by the attributes that spotrun knows."""
    if prepared.model_in(model) is not own:
        yield f"{name}: the model is in none of {', '.join(prepared.WRAPPERS)}"
    if type(prepared.optimizer_in(optimizer)) is not torch.optim.SGD:
        yield f"{name}: the optimizer is in neither _optimizer nor optimizer"
    if type(prepared.loader_in(reads)) is not DataLoader:
        yield f"{name}: the loader is in none of {', '.join(prepared.LOADERS)}"


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.zeros(2, 1)))


LOOKS: tuple[Callable[[], Iterator[str]], ...] = (not_taken, in_lightning, in_transformers, in_fabric, in_accelerate)
