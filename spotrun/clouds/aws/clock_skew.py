"""
AWS's own time, and how far this machine's clock is from it.

What AWS tells of instances is by its clocks. A bill or a decision that set this machine's beside them would be wrong by
the difference, so the clock of a run is put right by the answers to its calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from botocore.exceptions import ClientError

from spotrun.clock import Clock, system_clock
from spotrun.clouds.aws.error_codes import ClockWrong
from spotrun.clouds.clock_skew import SET_CLOCK, in_words, skew_of
from spotrun.errors import CloudError

SKEW_MAX = timedelta(minutes=5)
"""AWS accepts no signature beyond this: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-troubleshooting.html"""
_ASKED_AT = "spotrun_asked_at"


def told_at(answer: Mapping[str, Any]) -> datetime | None:
    """AWS's own time when it answered, to the second; None if the answer has no date that can be read."""
    text = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def keep_right(clock: Clock, client: Any) -> None:
    """Put `clock` right by each answer that `client` gets. What a refusal says may be a proxy's."""

    def asked(context: dict[str, Any], **_: Any) -> None:
        context[_ASKED_AT] = clock.now()

    def answered(http_response: Any, parsed: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
        told = told_at(parsed) if http_response.status_code < 300 else None
        if told is not None:
            clock.put_back(skew_of(context[_ASKED_AT], clock.now(), told))

    client.meta.events.register("before-call", asked)
    client.meta.events.register("after-call", answered)


def wrong_clock(error: CloudError) -> ClockWrong | None:
    """What to say instead of a refused signature, if the clock is the reason. The SDK signs by the system's clock."""
    cause = error.__cause__
    told, now = told_at(cause.response) if isinstance(cause, ClientError) else None, system_clock().now()
    if told is None or abs(skew := skew_of(now, now, told)) <= SKEW_MAX:
        return None
    return ClockWrong(f"{in_words(skew, 'AWS')}, so AWS refuses its signatures", hint=SET_CLOCK)
