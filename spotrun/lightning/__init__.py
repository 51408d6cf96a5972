"""
Exact resume for any Lightning script. This package implements the interface that spotrun/training/framework.py defines
for training frameworks.

Under a spotrun agent, Lightning finds the callback through an entry point (factory.py). A script may also add it:

    from spotrun.lightning import SpotrunCallback
    trainer = Trainer(callbacks=[SpotrunCallback()])

Without an agent the callback does nothing. If a Trainer has two such callbacks, one from the script and one from the
entry point, only the first does anything. Importing this package does not import Lightning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spotrun.lightning.callback import SpotrunCallback as SpotrunCallback

__all__ = ["SpotrunCallback"]


def __getattr__(name: str) -> object:
    if name != "SpotrunCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from spotrun.lightning.factory import callback_class

    globals()[name] = callback_class()
    return globals()[name]
