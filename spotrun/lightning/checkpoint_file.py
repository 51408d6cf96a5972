"""
Writes spotrun's checkpoints as files that Lightning and torch can read. Also checks a Lightning checkpoint file before
a run starts from it.

A written file holds plain values and tensors only, so that `torch.load(weights_only=True)` can read it. It omits what
Lightning never reads: the exact position in the data, and the metrics of the current epoch. So training that starts
from the file does not resume exactly, just as if it started from one of Lightning's own files.
"""

from __future__ import annotations

import mmap
import os
import pickle
import secrets
import zipfile
from argparse import Namespace
from collections import Counter, OrderedDict, deque
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from spotrun.checkpoint.layout import Buffer
from spotrun.checkpoint.objects import STANDS, SavedObject
from spotrun.checkpoint.plain_kinds import KINDS, Unnamed, filled_mapping, filled_set
from spotrun.checkpoint.snapshot import read_image
from spotrun.errors import CheckpointDamaged, SpecInvalid, SpotrunError

OURS = ("spotrun", "spotrun_optimizers", "spotrun_weights")
"""Entries of a snapshot's state that only spotrun reads. They are not written to the file."""
VERSION = "pytorch-lightning_version"
_NAME_ONE = "name a Lightning checkpoint file; `spotrun checkpoints export RUN FILE.ckpt` writes one for a run"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """
    Facts about a checkpoint file. `epoch` counts from 0. `lightning` is the version of Lightning that made the
    checkpoint; "" if the training did not use Lightning.
    """

    step: int
    epoch: int
    lightning: str
    has_optimizer: bool


def export(image: Buffer | mmap.mmap, path: Path) -> Facts:
    """
    Write a checkpoint to a Lightning checkpoint file. `image` holds the checkpoint's bytes.

    If the export fails, no incomplete file is left. If the training did not use Lightning, the file is a torch file
    with the same entries as a Lightning checkpoint.

    Raises:
        CheckpointDamaged: `image` does not hold a checkpoint.
        SpotrunError: the file cannot be written.
    """
    state, meta = read_image(image)
    if not isinstance(state, dict):
        raise CheckpointDamaged(f"the checkpoint holds a {type(state).__name__} instead of a training's state")
    state = {name: value for name, value in state.items() if name not in OURS}
    try:
        plain = _plain(state, {})
    except (Unnamed, ValueError) as error:
        raise CheckpointDamaged(f"the checkpoint holds a value that cannot be exported: {error}") from error
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:  # given a path, torch raises RuntimeError in place of OSError
            torch.save(plain, file)
        facts = read_facts(temporary) if VERSION in state else _facts_of_another(state, meta)
        os.replace(temporary, path)
    except OSError as error:
        raise SpotrunError(f"{path} cannot be written: {error.strerror}", hint="name another file") from error
    finally:
        temporary.unlink(missing_ok=True)
    return facts


def _facts_of_another(state: dict[str, Any], meta: dict[str, Any]) -> Facts:
    """Return the facts about a checkpoint that was made without Lightning."""
    optimizers = bool(state.get("optimizer_states"))
    return Facts(step=int(state["global_step"]), epoch=int(meta["epoch"]), lightning="", has_optimizer=optimizers)


def read_facts(path: Path) -> Facts:
    """
    Return facts about a Lightning checkpoint. No code in the file is executed, and no tensor is read.

    Raises:
        SpecInvalid: the file is not a Lightning checkpoint, or holds more than plain values and tensors.
    """
    state = _load(path)
    if not isinstance(state, dict) or "state_dict" not in state or VERSION not in state:
        raise SpecInvalid(
            f"{path} is not a Lightning checkpoint: it lacks state_dict or {VERSION}",
            hint="save one with trainer.save_checkpoint(FILE), or get one from `spotrun checkpoints export`",
        )
    return Facts(
        step=int(state.get("global_step", 0)),
        epoch=int(state.get("epoch", 0)),
        lightning=str(state[VERSION]),
        has_optimizer=bool(state.get("optimizer_states")),
    )


def _load(path: Path) -> Any:
    try:
        if path.exists() and not zipfile.is_zipfile(path):
            raise SpecInvalid(
                f"{path} was not written by torch.save, or was saved by a version of torch before 1.6",
                hint=f"{_NAME_ONE}; if your file is that old, load it with torch and save it again",
            )
        return torch.load(path, map_location="meta", weights_only=True, mmap=True)
    except OSError as error:
        raise SpecInvalid(f"{path} cannot be read: {error.strerror}", hint=_NAME_ONE) from error
    except pickle.UnpicklingError as error:
        reason = str(error).split("\n", 1)[0][:300]
        raise SpecInvalid(
            f"{path} holds more than tensors and plain values: {reason}",
            hint="save the file again without these objects: loading them would run code from the file",
        ) from error
    except (RuntimeError, ValueError, EOFError) as error:
        raise SpecInvalid(f"{path} was not written by torch.save: {error}", hint=_NAME_ONE) from error


def _plain(value: Any, copies: dict[int, Tensor]) -> Any:
    """
    Return a copy of `value` that holds only types which `torch.load(weights_only=True)` accepts. Tensors are copied
    too. A tensor that occurs several times is copied once; `copies` contains the copies, by the tensors' ids.

    Paths become strings, arrays become tensors, frozen sets become sets, enum members become their names, and any other
    object becomes a mapping of its attributes.
    """
    if isinstance(value, Tensor):
        if id(value) not in copies:
            copies[id(value)] = value.clone()
        return copies[id(value)]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, SavedObject):
        return value.name if value.kind == STANDS else _plain(value["content"], copies)
    if isinstance(value, deque):
        return [_plain(item, copies) for item in value]
    if isinstance(value, Namespace | SimpleNamespace):
        return _plain(vars(value), copies)
    if type(value) in KINDS and not isinstance(value, dict):
        return str(value)
    if isinstance(value, PurePath | np.dtype):
        return str(value)
    if isinstance(value, dict):
        made: dict[Any, Any] = type(value)() if isinstance(value, Counter | OrderedDict) else {}
        return filled_mapping(made, [(_plain(key, copies), _plain(item, copies)) for key, item in value.items()])
    if isinstance(value, frozenset | set):
        return filled_set([_plain(item, copies) for item in value])
    if type(value) in (list, tuple):
        return type(value)(_plain(item, copies) for item in value)
    return value
