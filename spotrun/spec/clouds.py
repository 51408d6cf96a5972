"""
The clouds that a job can name, and what a specification asks of one.

A cloud is one object, described by `spotrun.clouds.cloud.Cloud`. It is found by its name: ours is `CLOUD` in
`spotrun.clouds.NAME.cloud`, and others are entry points of the group `spotrun.clouds`. So whoever reads a job imports
the cloud that it names, and no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import PlainValidator

from spotrun.errors import SpecInvalid
from spotrun.secrets.reference import Reference
from spotrun.spec.values import one_of
from spotrun.units import Unreadable

GROUP = "spotrun.clouds"
BUILT_IN = ("local", "aws")
PLANNED = ("gcp",)
_Spec = TypeVar("_Spec", contravariant=True)


class CloudRules(Protocol[_Spec]):
    """What a job may say on a cloud, and what is expected there before anything was rented."""

    name: str
    here: bool
    """Instances are processes of this machine: they share its folders, and the variables of the user who launches."""
    notice: timedelta
    """How long before an interruption the cloud gives notice, when it gives one."""
    instead_of_envs: str
    """Where a secret belongs that stands among `envs`."""

    def refusals(self, spec: _Spec) -> Iterator[Unreadable]:
        """What a job on this cloud may not say; `at` is the key."""

    def secret(self, name: str) -> Reference:
        """Where a secret is looked up if the job says nothing but its name."""

    def boot(self, spec: _Spec) -> timedelta:
        """How long a launched instance usually takes to boot, until one was measured."""

    def interrupts(self, spec: _Spec) -> bool:
        """Whether spot instances may be taken at all."""


@cache
def find_cloud(name: str) -> Any:
    """
    Raises:
        SpecInvalid: there is none of that name.
    """
    if name in BUILT_IN:
        return import_module(f"{GROUP}.{name}.cloud").CLOUD
    for entry in entry_points(group=GROUP, name=name):
        return entry.load()
    raise SpecInvalid(f"no cloud is called {name}", hint=f"those that are known: {', '.join(known_clouds())}")


def known_clouds() -> tuple[str, ...]:
    """The names of all clouds that are installed, ours first."""
    return (*BUILT_IN, *sorted({entry.name for entry in entry_points(group=GROUP)} - {*BUILT_IN}))


def _read(value: object) -> str:
    return value if value in BUILT_IN else one_of(*known_clouds(), unbuilt=PLANNED)(value)


class _Schema:
    """For editors: the clouds that are installed here."""

    def __get_pydantic_json_schema__(self, *_: object) -> dict[str, Any]:
        return {"enum": list(known_clouds())}


KnownCloud = Annotated[str, PlainValidator(_read), _Schema()]
