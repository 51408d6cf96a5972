"""
Detects changes of process-wide state: environment variables, the working folder, and settings of libraries. A resume
does not restore this state: a resumed process has only the settings that the script makes at its start.
"""

from __future__ import annotations

import decimal
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from spotrun.training.python_state.encoding import UntrackedChange

SET_BY_LIBRARIES = (
    "SPOTRUN_", "PL_", "WANDB_", "MLFLOW_", "COMET_", "NEPTUNE_", "CUDA_", "NCCL_", "TORCH", "_TORCH", "PYTORCH_",
    "TRITON_", "KMP_", "OMP_", "MKL_", "OPENBLAS_", "TOKENIZERS_", "TRANSFORMERS_", "HF_", "TF_", "XLA_", "MASTER_",
    "PYTHON", "LD_",
)  # fmt: skip
"""
Prefixes of environment variables that libraries set, and that do not affect the result of a step. A change of such a
variable is not reported.
"""
VARIABLE = "an environment variable"
_SETTINGS: dict[str, Callable[[], Any]] = {
    "torch.get_default_dtype()": torch.get_default_dtype,
    "torch.get_num_threads()": torch.get_num_threads,
    "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled,
    "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision,
    "torch.backends.cudnn.benchmark": lambda: torch.backends.cudnn.benchmark,
    "torch.backends.cudnn.deterministic": lambda: torch.backends.cudnn.deterministic,
    "numpy.geterr()": np.geterr,
    "decimal.getcontext().prec": lambda: decimal.getcontext().prec,
}


class Surroundings:
    """
    The environment variables, working folder and library settings at one moment. The variables' values are never
    reported, because they may be secrets.
    """

    def __init__(self) -> None:
        self._raw, self._variables, self._settings = dict(_raw()), _variables(), _settings()

    def changed(self) -> Iterator[UntrackedChange]:
        """Yield everything that has changed since this object was made."""
        if self._raw != _raw():
            yield from self._changed_variables()
        settings = _settings()
        for name, before in self._settings.items():
            if settings[name] != before:
                yield UntrackedChange(name, f"it was {before}, and is {settings[name]}")

    def _changed_variables(self) -> Iterator[UntrackedChange]:
        variables = _variables()
        for name in sorted(self._variables.keys() | variables.keys()):
            if self._variables.get(name) != variables.get(name):
                yield UntrackedChange(f"os.environ[{name!r}]", VARIABLE)


def _raw() -> Mapping[Any, Any]:
    """
    Return all environment variables in the system's encoding. This is faster than reading os.environ, which decodes a
    variable at each access.
    """
    raw: Mapping[Any, Any] = vars(os.environ).get("_data", os.environ)
    return raw


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(SET_BY_LIBRARIES)}


def _settings() -> dict[str, Any]:
    return {"os.getcwd()": _folder(), **{name: get() for name, get in _SETTINGS.items()}}


def _folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None
