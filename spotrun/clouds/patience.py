"""Limits how long a call to a cloud may take, and how often it is tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from tenacity import Retrying, retry_if_exception, wait_random_exponential

from spotrun.clock import Clock

T = TypeVar("T")

ATTEMPTS_MAX = 4
CHECK_NETWORK = "check this machine's network, its DNS and HTTPS_PROXY, then ask again"
"""Advice if no answer came at all."""
PAUSE_FIRST_S, PAUSE_MAX_S = 0.5, 4.0


class Patience(NamedTuple):
    """Maximum seconds of one call (to connect, to read), and seconds after which it is not tried again."""

    connect_s: float
    read_s: float
    tries_for_s: float


PATIENT = Patience(connect_s=5.0, read_s=30.0, tries_for_s=20.0)
ASIDE = Patience(connect_s=2.0, read_s=5.0, tries_for_s=2.0)
"""For calls besides the main work: a notice leaves little time, and a service that hangs must not take it."""


def patiently(call: Callable[[], T], passes: Callable[[BaseException], bool], patience: Patience, clock: Clock) -> T:
    """Return the answer of `call`, which is tried again, with jitter, after an error that `passes`."""
    ends_s = clock.monotonic() + patience.tries_for_s
    retrying = Retrying(
        retry=retry_if_exception(passes),
        wait=wait_random_exponential(multiplier=PAUSE_FIRST_S, max=PAUSE_MAX_S),
        stop=lambda state: state.attempt_number >= ATTEMPTS_MAX or clock.monotonic() >= ends_s,
        sleep=clock.sleep,
        reraise=True,
    )
    return retrying(call)
