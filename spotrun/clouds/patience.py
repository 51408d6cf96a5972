"""
Limits how long a call to a cloud may take, how often a failed call is repeated, and how often a client reads the user's
credentials.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from math import inf
from typing import NamedTuple, NoReturn, TypeVar

from tenacity import Retrying, retry_if_exception, wait_random_exponential

from spotrun.clock import Clock
from spotrun.clouds.error_kinds import CredentialsExpired, CredentialsRefused, Unexplained, passes
from spotrun.errors import CloudError

T = TypeVar("T")

ATTEMPTS_MAX = 4
CHECK_NETWORK = "check this machine's network, its DNS and HTTPS_PROXY, then try again"
"""Advice if the cloud did not answer at all."""
PAUSE_FIRST_S, PAUSE_MAX_S = 0.5, 4.0
RENEWED_EVERY_S = 60.0
"""
Minimum seconds between two readings of the user's credentials, because each reading may start a program or call a
server.
"""


class Patience(NamedTuple):
    """
    The time limits of one call, in seconds: for connecting, for reading the answer, and for retries. A failed call is
    repeated only within `tries_for_s` of its first try.
    """

    connect_s: float
    read_s: float
    tries_for_s: float


PATIENT = Patience(connect_s=5.0, read_s=30.0, tries_for_s=20.0)
ASIDE = Patience(connect_s=2.0, read_s=5.0, tries_for_s=2.0)
"""
For calls that are less important than the training. Such a call may be made after a notice, when little time is left.
If the called service hangs, it must not use up that time.
"""


class PatientClient(ABC):
    """
    A client of a cloud. If a call fails because of a temporary fault, the client repeats the call after a random pause.
    It also counts the errors whose cause is unknown, separately for each kind of error, and adds the count to the
    error's message.
    """

    def __init__(self, clock: Clock, patience: Patience) -> None:
        self._clock = clock
        self._patience = patience
        self._renewed_s = -inf
        self._unexplained: Counter[str] = Counter()

    def _patiently(self, call: Callable[[], T]) -> T:
        """
        Return the result of `call`. Repeat the call after temporary faults. `call` must raise only the errors that
        CloudDriver describes.
        """

        def once() -> T:
            try:
                return call()
            except (CredentialsExpired, CredentialsRefused) as error:
                self._renew()
                raise self._reason_of(error) from error.__cause__
            except Unexplained as error:
                self._count(error)

        ends_s = self._clock.monotonic() + self._patience.tries_for_s
        retrying = Retrying(
            retry=retry_if_exception(passes),
            wait=wait_random_exponential(multiplier=PAUSE_FIRST_S, max=PAUSE_MAX_S),
            stop=lambda state: state.attempt_number >= ATTEMPTS_MAX or self._clock.monotonic() >= ends_s,
            sleep=self._clock.sleep,
            reraise=True,
        )
        return retrying(once)

    def _renew(self) -> None:
        now_s = self._clock.monotonic()
        if now_s - self._renewed_s >= RENEWED_EVERY_S:
            self._renewed_s = now_s
            self._drop_login()

    @abstractmethod
    def _drop_login(self) -> None:
        """
        Forget the credentials that this client has read. The next call reads them again, because the user may have
        logged in again.
        """

    def _reason_of(self, error: CloudError) -> CloudError:
        """
        Explain `error`, which says only that credentials were refused or have expired. If the reason is known, return
        an error that names it; otherwise return `error` itself.
        """
        return error

    def _count(self, error: Unexplained) -> NoReturn:
        kind = type(error.__cause__).__name__
        self._unexplained[kind] += 1
        raise Unexplained(f"{error.message} (number {self._unexplained[kind]:,} of its kind)") from error.__cause__
