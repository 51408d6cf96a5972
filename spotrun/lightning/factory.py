"""
Adds spotrun's callbacks to every new Lightning Trainer. pyproject.toml registers the functions as `callbacks_factory`
entry points. Lightning calls them and adds the callbacks that they return.

If no agent runs the script, these functions only read one environment variable.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotrun.lightning.callback import SpotrunCallback

AGENT, TRACE = "SPOTRUN_AGENT", "SPOTRUN_TRACE"
"""
Names of environment variables. They are also defined in trainer_link.py and exactness/trace_file.py, but importing
these modules here would be slow.
"""
PACKAGES = ("pytorch_lightning", "lightning.pytorch")


def for_pytorch_lightning() -> list[Any]:
    return _callbacks("pytorch_lightning")


def for_lightning() -> list[Any]:
    return _callbacks("lightning.pytorch")


def _callbacks(package: str) -> list[Any]:
    if AGENT not in os.environ:
        return []
    from spotrun.lightning import launched

    launched.watch(package)
    traced = [_trace_class(package)()] if TRACE in os.environ else []
    return [_class_for((package,))(), *traced]


def callback_class() -> type[SpotrunCallback]:
    """
    Return the public class `SpotrunCallback`.

    Its bases include the Callback class of each Lightning package that the script has imported. If the script has
    imported none, the Callback class of one installed package is used.
    """
    imported = tuple(package for package in PACKAGES if package in sys.modules)
    return _class_for(imported or (_installed(),))


def _installed() -> str:
    return next(package for package in PACKAGES if importlib.util.find_spec(package.partition(".")[0]))


@cache
def _class_for(packages: tuple[str, ...]) -> type[SpotrunCallback]:
    from spotrun.lightning.callback import SpotrunCallback

    bases = [importlib.import_module(f"{package}.callbacks").Callback for package in packages]
    return type("SpotrunCallback", (SpotrunCallback, *bases), {"__module__": "spotrun.lightning"})


@cache
def _trace_class(package: str) -> type[Any]:
    from spotrun.lightning.trace import TraceCallback

    base = importlib.import_module(f"{package}.callbacks").Callback
    return type("TraceCallback", (TraceCallback, base), {"__module__": "spotrun.lightning.trace"})
