"""Checks that the installed releases of other packages still have the private names that spotrun uses."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from spotrun.training.python_state.script import set_by


def missing(owner: object, names: Iterable[str]) -> list[str]:
    """
    Return those of `names` that `owner` does not have. A name may be a path such as `a.b`. If `owner` is a class,
    attributes that its methods set on `self` count as present.
    """
    return [name for name in names if not _has(owner, name)]


def _has(owner: object, name: str) -> bool:
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part, None)
    try:
        inspect.getattr_static(owner, last)  # reading a property could fail before training starts, so it is not read
    except AttributeError:
        return isinstance(owner, type) and last in set_by((owner,))
    return True
