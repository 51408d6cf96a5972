"""
Corrects a run's clock by AWS's clocks.

AWS dates the events of instances by its own clocks. If such a time were compared with the time on this machine's clock,
bills and decisions would be wrong by the difference between the clocks. So the run's clock is corrected by the time in
AWS's answers to the run's calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from botocore.exceptions import ClientError

from spotrun.clock import Clock, system_clock
from spotrun.clouds.clock_skew import SET_CLOCK, in_words, skew_of, told_at
from spotrun.clouds.error_kinds import ClockWrong
from spotrun.errors import CloudError

SKEW_MAX = timedelta(minutes=5)
"""
Maximum skew at which AWS accepts a signature:
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-troubleshooting.html
"""
_ASKED_AT = "spotrun_asked_at"


def answered_at(answer: Mapping[str, Any]) -> datetime | None:
    """Return the time on AWS's clock when AWS sent `answer`, to the second; None if the answer has no readable date."""
    return told_at(answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", ""))


def keep_right(clock: Clock, client: Any) -> None:
    """
    Correct `clock` by the time in each answer that `client` receives. Error answers are ignored, because they may come
    from a proxy.
    """

    def asked(context: dict[str, Any], **_: Any) -> None:
        context[_ASKED_AT] = clock.now()

    def answered(http_response: Any, parsed: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
        told = answered_at(parsed) if http_response.status_code < 300 else None
        if told is not None:
            clock.put_back(skew_of(context[_ASKED_AT], clock.now(), told))

    client.meta.events.register("before-call", asked)
    client.meta.events.register("after-call", answered)


def wrong_clock(error: CloudError) -> ClockWrong | None:
    """
    Return the error to raise instead of `error` if AWS refused a signature because this machine's clock is wrong. (The
    SDK dates signatures by this clock.) Return None if the clock is right, or if AWS's time is unknown.
    """
    cause = error.__cause__
    told, now = answered_at(cause.response) if isinstance(cause, ClientError) else None, system_clock().now()
    if told is None or abs(skew := skew_of(now, now, told)) <= SKEW_MAX:
        return None
    return ClockWrong(f"{in_words(skew, 'AWS')}, so AWS refuses its signatures", hint=SET_CLOCK)
