"""
Finds the cloud that a job names, and declares the rules that each cloud has for a job's specification.

A cloud is one object, described by `spotrun.clouds.cloud.Cloud`. For a built-in cloud, this object is `CLOUD` in
`spotrun.clouds.NAME.cloud`. Other packages can define more clouds, as entry points of the group `spotrun.clouds`.
Clouds are found by name, so a program that reads a job imports only that job's cloud.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from datetime import timedelta
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import PlainValidator, ValidationInfo

from spotrun.errors import SpecInvalid
from spotrun.offering import Offering
from spotrun.secrets.reference import Reference
from spotrun.spec.values import STORED, one_of
from spotrun.units import Unreadable, shown

GROUP = "spotrun.clouds"
BUILT_IN = ("local", "aws", "gcp", "slurm")
_Spec = TypeVar("_Spec", contravariant=True)


class CloudRules(Protocol[_Spec]):
    """
    The rules of a cloud for jobs: the values that a job may have on this cloud, and the delays to expect before the
    first instance of a job trains.
    """

    name: str
    here: bool
    """
    True if the instances are processes on this machine, which use its folders and the environment of the user who
    launches.
    """
    simulated: bool
    """True if the prices of this cloud are simulated, so that no user is ever billed for its instances."""
    shares_folders: bool = False
    """True if instances are other machines that can read and write the folders of this machine."""
    notice: timedelta
    """The time between a notice and the interruption that it announces."""
    members_max: int = 1
    """Maximum instances that train together."""
    instead_of_envs: str
    """Advice on where to put a secret that was found in `envs`."""

    @abstractmethod
    def refusals(self, spec: _Spec) -> Iterator[Unreadable]:
        """
        Yield a problem for each part of the job that this cloud does not allow. The `at` of a problem is the key of
        that part. If the job has mistakes, reading a value that has one raises Unsound. So pass one check for each part
        to `spotrun.spec.strict.judged`: then the checks of all other parts are still made.
        """

    @abstractmethod
    def secret(self, name: str) -> Reference:
        """Return the default place of a secret, for a job that gives only the secret's name."""

    @abstractmethod
    def boot(self, spec: _Spec) -> timedelta:
        """Return the usual boot time of an instance. It is used until a boot of this run has been measured."""

    @abstractmethod
    def interrupts(self, spec: _Spec) -> bool:
        """Return True if this cloud ever takes spot instances away."""

    def usual_region(self) -> str | None:
        """
        Return the region that the user's settings for this cloud name; None if they name none. A new job that names no
        region rents there.
        """
        return None

    def longest_life(self, spec: _Spec, offering: Offering) -> timedelta | None:
        """Return the maximum lifetime of an instance of this offering; None if the cloud sets no limit."""
        return None


@cache
def find_cloud(name: str) -> Any:
    """
    Return the cloud with this name.

    Raises:
        SpecInvalid: no cloud has this name, or the package that defines it is broken.
    """
    if name in BUILT_IN:
        return import_module(f"{GROUP}.{name}.cloud").CLOUD
    found = tuple(entry_points(group=GROUP, name=name))
    if len(found) > 1:
        packages = ", ".join(sorted(map(_package, found)))
        raise SpecInvalid(
            f"{len(found)} packages define a cloud called {name}: {packages}", hint="uninstall all but one"
        )
    if not found:
        known = ", ".join(known_clouds())
        raise SpecInvalid(
            f"no installed cloud is called {name}",
            hint=f"name one of {known}, or install the package that defines {name}",
        )
    return _brought(found[0])


def _brought(entry: EntryPoint) -> Any:
    """
    Load the cloud that an entry point of another package defines. Raise SpecInvalid if the object is not a usable
    cloud.
    """
    try:
        cloud = entry.load()
    except (Exception, SystemExit) as error:
        raise _unusable(entry, f"{type(error).__name__}: {error}") from error
    if CloudRules not in type(cloud).__mro__:
        raise _unusable(entry, f"{entry.value} is not an object of a class that inherits from Cloud")
    parts = (part for base in type(cloud).__mro__ for part in vars(base).get("__annotations__", ()))
    if missing := sorted({part for part in parts if not hasattr(cloud, part)}):
        raise _unusable(entry, f"{entry.value} lacks {', '.join(missing)}")
    if cloud.name != entry.name:
        raise _unusable(entry, f"{entry.value} has the name {cloud.name}")
    return cloud


def _unusable(entry: EntryPoint, reason: str) -> SpecInvalid:
    return SpecInvalid(
        f"the cloud {entry.name} cannot be loaded: {reason}", hint=f"repair or uninstall the package {_package(entry)}"
    )


def _package(entry: EntryPoint) -> str:
    return entry.module if entry.dist is None else entry.dist.name


def known_clouds() -> tuple[str, ...]:
    """Return the names of all installed clouds, the built-in ones first."""
    return (*BUILT_IN, *sorted({entry.name for entry in entry_points(group=GROUP)} - {*BUILT_IN}))


def _read(value: object, info: ValidationInfo) -> str:
    """
    Read the name of a cloud. A new job has to name an installed cloud.

    In the job of a stored run, any name is accepted: the run may have been created on a machine with more clouds
    installed, and its events can be read without its cloud.
    """
    if value in BUILT_IN or (info.context == STORED and isinstance(value, str)):
        return str(value)
    known = known_clouds()
    if isinstance(value, str) and value not in known and not get_close_matches(value.lower(), known, 1):
        raise Unreadable(
            f"{shown(value)} is not supported", f"spotrun rents on {', '.join(known[:-1])} and {known[-1]}"
        )
    name: str = one_of(*known)(value)
    try:
        find_cloud(name)
    except SpecInvalid as error:
        raise Unreadable(error.message, error.hint) from error
    return name


class _Schema:
    """The part of the JSON Schema that lets editors suggest the names of the installed clouds."""

    def __get_pydantic_json_schema__(self, *_: object) -> dict[str, Any]:
        return {"enum": list(known_clouds())}


KnownCloud = Annotated[str, PlainValidator(_read), _Schema()]
