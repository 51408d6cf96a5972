"""Checks whether this machine has the packages that training needs."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points, version
from importlib.util import find_spec

from spotrun.doctor.finding import Finding, ok, warned
from spotrun.errors import SpotrunError, command_for

LIGHTNINGS = {"pytorch_lightning": "pytorch-lightning", "lightning": "lightning"}
"""The two packages of Lightning, keyed by import name, with the names under which pip installs them."""


def lightning() -> Iterator[Finding]:
    hooks = [hook for hook in entry_points(group="pytorch_lightning.callbacks_factory") if hook.name == "spotrun"]
    if not hooks:
        raise SpotrunError("Lightning would not find spotrun's callback", hint="use pip to install spotrun")
    found = [distribution for package, distribution in LIGHTNINGS.items() if is_installed(package)]
    if found:
        yield ok("lightning", f"{found[0]} {version(found[0])} loads the callback automatically")
    else:
        reason = "not installed: training on this machine needs it; instances of other clouds install it themselves"
        yield warned("lightning", reason, command_for("lightning"))


def is_installed(package: str) -> bool:
    """Return whether this Python can import a package, without importing it."""
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False
