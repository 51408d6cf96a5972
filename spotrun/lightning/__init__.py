"""
Exact resume for any Lightning script.

Under a spotrun agent the callback is there by itself (an entry point, see factory.py). Who wants to see it in the
script:

    from spotrun.lightning import SpotrunCallback
    trainer = Trainer(callbacks=[SpotrunCallback()])

It does nothing where no agent is, and is not doubled where the entry point adds one too. Importing this package is
free.
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
