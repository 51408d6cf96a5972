"""The base class of all sections of a job file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationInfo, model_validator

from spotrun.errors import Unsound
from spotrun.spec.problems import Disagreements, Key
from spotrun.spec.values import FIELDS_ONLY, STORED
from spotrun.units import Unreadable

Job = TypeVar("Job")
Checks = tuple[Callable[[Any], Iterator[Unreadable]], ...]


def judged(job: Job, *checks: Callable[[Job], Iterator[Unreadable]]) -> Iterator[Unreadable]:
    """Yield the errors that the checks find. A check ends early if it reads a value that is missing (see `without`)."""
    for check in checks:
        with suppress(Unsound):
            yield from check(job)


class Model(BaseModel):
    """
    A section of a job file. It is immutable, and refuses unknown keys. Fields can have types such as timedelta.

    `checks` compare values of the section with each other. A stored job was checked when its run was created, so
    `checks_if_new` are left out for it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)
    checks: ClassVar[Checks] = ()
    checks_if_new: ClassVar[Checks] = ()

    @model_validator(mode="after")
    def _values_agree(self, info: ValidationInfo) -> Self:
        if info.context != FIELDS_ONLY and (found := [*self.disagreements(new=info.context != STORED)]):
            raise Disagreements(found)
        return self

    def disagreements(self, *, new: bool = True) -> Iterator[Unreadable]:
        """Yield an error for each value that contradicts another one. Sections inside this one are not checked."""
        return judged(self, *self.checks, *(self.checks_if_new if new else ()))

    def without(self, key: Key) -> Self:
        """Return a copy in which nothing can read the value at `key`, because that value has a mistake of its own."""
        others = self.model_copy()
        _leave_out(key, vars(others))
        return others

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in type(self).model_fields:
                raise Unsound(name)
            return super().__getattr__(name)


def _leave_out(key: Key, values: dict[str, Any]) -> None:
    name, *rest = key
    inner = values.pop(str(name), None)
    if rest and isinstance(inner, Model):
        values[str(name)] = inner.without(tuple(rest))
    elif rest and isinstance(inner, Mapping):
        values[str(name)] = entries = _SoundEntries(inner)
        _leave_out(tuple(rest), entries)


class _SoundEntries(dict[str, Any]):
    """The entries of a mapping that have no mistakes. Any other key may be one of those with a mistake."""

    def __missing__(self, key: str) -> Any:
        raise Unsound(key)

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or self.__missing__(str(key))

    def get(self, key: str, default: object = None) -> Any:
        return self[key]
