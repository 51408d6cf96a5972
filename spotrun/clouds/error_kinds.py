"""
The refusals of a cloud that its driver handles in different ways, below the errors that a run handles.

Each cloud has a table from its codes to these kinds and those of spotrun/errors.py, with its own hints. P2, P3, P21 and
P26 are rows of the failure catalogue.
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
"""The error that a run handles, and a hint for its user."""


class Unsupported(InsufficientCapacity):
    """This zone does not have this type: asking again soon cannot help (P2)."""


class AlreadyThere(CloudError):
    """A resource of that name exists."""


class NotThere(CloudError):
    """No resource of that name exists."""


class BadImage(CloudError):
    """The image is gone, or this account may not use it. A newer one may have taken its place (P21)."""


class BadSurroundings(CloudError):
    """A launch names a network or a disk that is gone or does not fit: others may have taken their place (P3)."""


class CredentialsExpired(LoginNeeded):
    """The credentials have expired. The user can renew them while the run goes on (P26)."""


class CredentialsRefused(AccessDenied):
    """There are no credentials, or the cloud does not know them. Others may take their place."""


class ClockWrong(CloudUnavailable):
    """The cloud accepts no signature of this machine until its clock is set."""


class Unexplained(CloudUnavailable):
    """The cloud's SDK failed in a way that has no name here. It is assumed to pass, and counted."""


def passes(error: BaseException) -> bool:
    """Return whether the trouble ends soon by itself. An expired login and a wrong clock wait for the user."""
    return isinstance(error, CloudUnavailable) and not isinstance(error, CredentialsExpired | ClockWrong)


def by_code(*rows: tuple[type[CloudError], str | None, *tuple[str, ...]]) -> dict[str, Meaning]:
    """Return a table by code. A row has an error, its hint, and strings of codes that blanks separate."""
    return {code: (kind, hint) for kind, hint, *codes in rows for code in " ".join(codes).split()}


@contextmanager
def translated(meaning_of: Callable[[str, Exception], CloudError], action: str) -> Iterator[None]:
    """Translate the errors of an SDK inside into errors of the CloudDriver port, which say what `action` failed."""
    try:
        yield
    except SpotrunError:
        raise
    except Exception as error:
        raise meaning_of(action, error) from error
