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


def upload(store: Store, start: bytes, extras: str) -> None:
    """
    A machine runs the script `start` to become an instance. It installs spotrun with `extras`, separated by commas.

    Raises:
        StoreError: it cannot be written.
    """
    wheel = own_wheel()
    for name, data in (
        (wheel.name, wheel.data),
        ("constraints.txt", constraints(extras).encode()),
        ("start.sh", start),
    ):
        store.put(f"{FOLDER}/{name}", data)


def constraints(extras: str) -> str:
    """
    A pip constraints file: if instances install a package, they take the version that is installed here.

    A machine that only launches may have no Lightning. Of what it lacks, instances take the oldest version that spotrun
    takes, so that all instances of a run train with the same.
    """
    wanted = Requirement(f"spotrun[{extras}]")
    oldest = {canonicalize_name(each.name): _floor(each) for each in _requirements("spotrun", wanted.extras)}
    versions = oldest | {name: distribution(name).version for name in _needed(wanted)}
    pinned = (name for name in sorted(versions) if name != "spotrun" and not name.startswith(OF_THE_IMAGE))
    return "".join(f"{name}=={versions[name]}\n" for name in pinned)


def _floor(requirement: Requirement) -> str:
    """The oldest version that it takes. Each requirement of ours says one."""
    return next(part.version for part in requirement.specifier if part.operator == ">=")


def _needed(wanted: Requirement) -> set[str]:
    """The names of all packages that are installed here and that `wanted` needs, itself included."""
    found: dict[str, set[str]] = {}
    left = [wanted]
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
