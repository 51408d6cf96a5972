"""spotrun: train on interruptible GPUs, exactly, and know what every epoch cost."""

from __future__ import annotations

from spotrun.version import __version__ as __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spotrun.loop.loop import Loop as Loop


def __getattr__(name: str) -> object:
    """Import `Loop` when it is first used: only `Loop` needs torch."""
    if name != "Loop":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from spotrun.loop.loop import Loop

    globals()[name] = Loop
    return Loop
