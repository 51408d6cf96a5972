"""What a training needs on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, entry_points, version

from spotrun.doctor.finding import Finding, ok
from spotrun.errors import SpotrunError


def lightning() -> Iterator[Finding]:
    hooks = [hook for hook in entry_points(group="pytorch_lightning.callbacks_factory") if hook.name == "spotrun"]
    if not hooks:
        raise SpotrunError("Lightning would not find spotrun's callback", hint="install spotrun with pip, not by path")
    try:
        found = version("pytorch-lightning")
    except PackageNotFoundError:
        raise SpotrunError(
            "pytorch-lightning is not installed", hint="pip install 'pytorch-lightning>=2.6.6'"
        ) from None
    yield ok("lightning", f"pytorch-lightning {found} loads the callback by itself")
