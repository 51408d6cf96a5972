"""What goes into a run's folder before its first entry: a start script, this very spotrun, and what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from spotrun.boot.wheel import own_wheel
from spotrun.store.port import Store

FOLDER = "boot"
OF_THE_IMAGE = ("torch", "torchvision", "triton", "nvidia-", "cuda-")
"""These are not pinned: they are large, and an image has the versions that fit its driver."""


def upload(store: Store, start: bytes, extra: str) -> None:
    """
    A machine runs the script `start` to become an instance. It installs spotrun with `extra`.

    Raises:
        StoreError: it cannot be written.
    """
    wheel = own_wheel()
    for name, data in ((wheel.name, wheel.data), ("constraints.txt", constraints(extra).encode()), ("start.sh", start)):
        store.put(f"{FOLDER}/{name}", data)


def constraints(extra: str) -> str:
    """A pip constraints file: if instances install a package, they take the version that is installed here."""
    pinned = (name for name in sorted(_needed(f"spotrun[{extra}]")) if not name.startswith(OF_THE_IMAGE))
    return "".join(f"{name}=={distribution(name).version}\n" for name in pinned if name != "spotrun")


def _needed(wanted: str) -> set[str]:
    """The names of all packages that are installed here and that `wanted` needs, itself included."""
    found: dict[str, set[str]] = {}
    left = [Requirement(wanted)]
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        extras = {"", *requirement.extras}
        fresh = extras - found.get(name, set())
        if fresh and _is_installed(name):
            found.setdefault(name, set()).update(fresh)
            left += _requirements(name, fresh)
    return set(found)


def _requirements(name: str, extras: set[str]) -> Iterator[Requirement]:
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            yield requirement


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
