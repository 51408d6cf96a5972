"""Checks of flags that several verbs share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from spotrun.errors import SpecInvalid
from spotrun.units import Unreadable

Value = TypeVar("Value")


def read_flag(flag: str, read: Callable[[object], Value], text: str, hint: str | None = None) -> Value:
    """
    Raises:
        SpecInvalid: `read` cannot read the flag's value. The hint is its suggestion, unless another one is given.
    """
    try:
        return read(text)
    except Unreadable as error:
        raise SpecInvalid(f"{flag}: {error.message}", hint=hint or error.suggestion) from error


def only_one(**given: bool) -> None:
    """
    Raises:
        SpecInvalid: several of these flags are given, and they exclude one another.
    """
    flags = [f"--{name.replace('_', '-')}" for name, is_given in given.items() if is_given]
    if len(flags) > 1:
        raise SpecInvalid(f"{' and '.join(flags)} exclude each other", hint="give one of them")


def known_word(flag: str, word: str, words: Collection[str]) -> str:
    """
    Raises:
        SpecInvalid: the flag's value is none of `words`.
    """
    if word not in words:
        raise SpecInvalid(f"{flag} {word!r} is not known", hint=f"one of {', '.join(words)}")
    return word
