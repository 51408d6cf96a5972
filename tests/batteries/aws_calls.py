"""
Battery: how often an hour of a run makes its runner call AWS, by API.

    make calls

It prints the table of docs/aws.md, and fails if that page has another one. The runner, its driver, guards and roles are
the real ones. The account, the store and the agent are objects in this process and the clock is simulated, so three
hours take some seconds.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable

import pytest

from tests.support.plain_aws import refusal
from tests.support.plain_aws_run import PlainAwsRun
from tests.support.repository import ROOT

PAGE = ROOT / "docs" / "aws.md"
HOUR_S = 3600.0
LOOKS_MAX = 240
OF_STORE = {"get": "S3 GET", "list": "S3 LIST", **dict.fromkeys(("put", "put_if_absent", "put_status"), "S3 PUT")}
OF_EC2 = ("describe_", "run_", "terminate_")


def quiet(run: PlainAwsRun) -> None:
    """One instance trains; nothing else happens."""
    trains(run)


def full(run: PlainAwsRun) -> None:
    """No pool has anything, on demand neither, from the launch on."""

    def refuse(operation: str) -> None:
        if operation == "run_instances":
            raise refusal("InsufficientInstanceCapacity", 500)

    run.aws.fault = refuse


def throttled(run: PlainAwsRun) -> None:
    """One instance trains, and EC2 refuses each call."""
    trains(run)

    def refuse(operation: str) -> None:
        if operation.startswith(OF_EC2):
            raise refusal("RequestLimitExceeded", 503)

    run.aws.fault = refuse


def trains(run: PlainAwsRun) -> None:
    assert run.trains_within(60)
    run.is_attended(60)


KINDS: dict[str, Callable[[PlainAwsRun], None]] = {
    "quiet": quiet,
    "all pools full": full,
    "throttled": throttled,
}


def calls(begin: Callable[[PlainAwsRun], None]) -> Counter[str]:
    """The calls of one hour, by API."""
    random.seed(0)  # the pauses between two tries have jitter
    with pytest.MonkeyPatch.context() as patch:
        run = PlainAwsRun(patch)
        begin(run)
        run.stored.clear()
        run.aws.calls.clear()
        run.is_attended(HOUR_S)
    found = Counter(_api(operation) for operation, _ in run.aws.calls)
    for call, number in run.stored.items():
        found[OF_STORE[call]] += number
    return found


def _api(operation: str) -> str:
    return "".join(word.capitalize() for word in operation.split("_"))


def table(hours: dict[str, Counter[str]]) -> str:
    apis = sorted({api for hour in hours.values() for api in hour}, key=lambda api: (api.startswith("S3"), api))
    rows = [["calls an hour", *hours], ["---", *("---:" for _ in hours)]]
    rows += [[api, *(f"{hour[api]:,}" if hour[api] else "–" for hour in hours.values())] for api in apis]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    hours = {kind: calls(begin) for kind, begin in KINDS.items()}
    print(table(hours))
    if table(hours) not in PAGE.read_text():
        sys.exit(f"{PAGE.relative_to(ROOT)} has another table")
    if hours["quiet"]["DescribeInstances"] > LOOKS_MAX:
        sys.exit(f"a quiet run asks more than {LOOKS_MAX} times an hour for its instances")


if __name__ == "__main__":
    main()
