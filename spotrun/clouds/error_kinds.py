"""
Kinds of errors that only a cloud's driver has to distinguish. The rest of spotrun knows only their base classes, which
are in spotrun/errors.py.

Each cloud has a table that maps its error codes to these classes or to their base classes, with hints for the user.
Numbers such as P2 refer to the catalogue of failures, docs/design/failures.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spotrun.errors import (
    AccessDenied,
    CloudError,
    CloudUnavailable,
    InsufficientCapacity,
    LoginNeeded,
    SpotrunError,
)

OTHER_OFFERING = "add a zone or type under resources, or set spot_policy: auto"
Meaning = tuple[type[CloudError], str | None]
"""The class of an error, and a hint for the user."""


class Unsupported(InsufficientCapacity):
    """The zone does not have the type, so repeating the request soon will not help (P2)."""


class AlreadyThere(CloudError):
    """A resource of the same name already exists."""


class NotThere(CloudError):
    """No resource has this name."""


class BadImage(CloudError):
    """The image is gone, or this account is not allowed to use it. A newer image may have replaced it (P21)."""


class BadSurroundings(CloudError):
    """
    A launch names a network or a disk type that no longer exists or does not fit the instance. The next try looks up
    what exists now, so it may succeed (P3).
    """


class CredentialsExpired(LoginNeeded):
    """The credentials have expired. The user can renew them while the run continues (P26)."""


class CredentialsRefused(AccessDenied):
    """There are no credentials, or the cloud does not accept them. The user has to provide other ones."""


class ClockWrong(CloudUnavailable):
    """The cloud refuses all calls from this machine: their signatures have a wrong date, because its clock is wrong."""


class Unexplained(CloudUnavailable):
    """
    The cloud's SDK failed with an error that spotrun does not know. A run treats it like a temporary failure of the
    cloud, but counts how often it occurs.
    """


def passes(error: BaseException) -> bool:
    """
    Return True if the error goes away without action by the user. Most CloudUnavailable errors do, but not an expired
    login or a wrong clock.
    """
    return isinstance(error, CloudUnavailable) and not isinstance(error, CredentialsExpired | ClockWrong)


def by_code(*rows: tuple[type[CloudError], str | None, *tuple[str, ...]]) -> dict[str, Meaning]:
    """
    Return a table that maps error codes to errors. Each row has an error class, its hint, and strings that contain
    error codes separated by spaces.
    """
    return {code: (kind, hint) for kind, hint, *codes in rows for code in " ".join(codes).split()}


@contextmanager
def of_key(kind: type[CloudError], *key: str) -> Iterator[None]:
    """Add the job's key to an error of this kind that the `with` block raises, because the key names a bad resource."""
    try:
        yield
    except kind as error:
        error.key = key
        raise


@contextmanager
def translated(meaning_of: Callable[[str, Exception], CloudError], action: str) -> Iterator[None]:
    """
    Translate errors that an SDK raises in the `with` block into CloudDriver's errors. Each message names the failed
    `action`.
    """
    try:
        yield
    except SpotrunError:
        raise
    except Exception as error:
        raise meaning_of(action, error) from error
