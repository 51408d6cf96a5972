"""
Battery: how often an hour of a run makes its runner call its cloud, by API.

    make battery NAME=calls

It prints the tables of docs/aws.md and docs/gcp.md, and fails if a page has another one. The runner, its driver, guards
and identities are the real ones. The account, the store and the agent are objects in this process and the clock is
simulated, so three hours take some seconds.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

import pytest

from tests.support.gce_answers import RATE_LIMIT
from tests.support.gce_launches import REGION
from tests.support.gce_project import GceProject
from tests.support.plain_aws import refusal
from tests.support.plain_aws_run import PlainAwsRun
from tests.support.plain_gcp_run import PlainGcpRun
from tests.support.plain_google import LISTS
from tests.support.plain_run import PlainRun
from tests.support.repository import ROOT

HOUR_S = 3600.0
LOOKS_MAX = 240
OF_STORE = {"get": "GET", "list": "LIST", **dict.fromkeys(("put", "put_if_absent", "put_status"), "PUT")}
OF_EC2 = ("describe_", "run_", "terminate_")


class CloudOfCalls(NamedTuple):
    """`look` is how a runner looks at its instances. `full` and `throttled` are how nothing is had there any more."""

    page: str
    store: str
    look: str
    new_run: Callable[[pytest.MonkeyPatch], PlainRun]
    full: Callable[[PlainRun], None]
    throttled: Callable[[PlainRun], None]
    api: Callable[[str], str]


# -- AWS -------------------------------------------------------------------------------------------------------------


def full_aws(run: PlainRun) -> None:
    run.fails(run.launch_call, lambda: refusal("InsufficientInstanceCapacity", 500), HOUR_S * 2)


def throttled_aws(run: PlainRun) -> None:
    assert isinstance(run, PlainAwsRun)

    def refuse(operation: str) -> None:
        if operation.startswith(OF_EC2):
            raise refusal("RequestLimitExceeded", 503)

    run.aws.fault = refuse


# -- Google ----------------------------------------------------------------------------------------------------------


def full_google(run: PlainRun) -> None:
    """What is said in operations."""
    project = _project(run)
    for zone in ("a", "b", "c"):
        project.stock_out(f"{REGION}-{zone}", "g2-standard-4")


def throttled_google(run: PlainRun) -> None:
    assert isinstance(run, PlainGcpRun)
    run.google.fault = lambda call: RATE_LIMIT if call.startswith("compute.") else None


def _project(run: PlainRun) -> GceProject:
    assert isinstance(run, PlainGcpRun)
    return run.google.project


CLOUDS = (
    CloudOfCalls(
        page="docs/aws.md",
        store="S3",
        look="DescribeInstances",
        new_run=PlainAwsRun,
        full=full_aws,
        throttled=throttled_aws,
        api=lambda operation: "".join(word.capitalize() for word in operation.split("_")),
    ),
    CloudOfCalls(
        page="docs/gcp.md",
        store="Cloud Storage",
        look=LISTS[0].removeprefix("compute."),
        new_run=PlainGcpRun,
        full=full_google,
        throttled=throttled_google,
        api=lambda method: method.removeprefix("compute."),
    ),
)


# -- all clouds ------------------------------------------------------------------------------------------------------


def hours_of(cloud: CloudOfCalls) -> dict[str, Counter[str]]:
    """*Quiet*: an instance trains. *All pools full*: every launch is refused. *Throttled*: an instance trains."""

    def throttled(run: PlainRun) -> None:
        trains(run)
        cloud.throttled(run)

    kinds = {"quiet": trains, "all pools full": cloud.full, "throttled": throttled}
    return {kind: calls(cloud, begin) for kind, begin in kinds.items()}


def trains(run: PlainRun) -> None:
    assert run.trains_within(60)
    run.is_attended(60)


def calls(cloud: CloudOfCalls, begin: Callable[[PlainRun], None]) -> Counter[str]:
    """The calls of one hour, by API."""
    random.seed(0)  # the pauses between two tries have jitter
    with pytest.MonkeyPatch.context() as patch:
        run = cloud.new_run(patch)
        begin(run)
        run.stored.clear()
        before = Counter(run.account.counts)
        run.is_attended(HOUR_S)
        asked = run.account.counts - before
    found = Counter({cloud.api(call): number for call, number in asked.items()})
    for call, number in run.stored.items():
        found[f"{cloud.store} {OF_STORE[call]}"] += number
    return found


def table(hours: Mapping[str, Counter[str]], store: str) -> str:
    apis = sorted({api for hour in hours.values() for api in hour}, key=lambda api: (api.startswith(store), api))
    rows = [["calls an hour", *hours], ["---", *("---:" for _ in hours)]]
    rows += [[api, *(f"{hour[api]:,}" if hour[api] else "–" for hour in hours.values())] for api in apis]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    wrong = [trouble for cloud in CLOUDS for trouble in troubles(cloud)]
    if wrong:
        sys.exit("\n".join(wrong))


def troubles(cloud: CloudOfCalls) -> list[str]:
    hours = hours_of(cloud)
    shown = table(hours, cloud.store)
    print(shown)
    found = []
    if shown not in (ROOT / cloud.page).read_text():
        found.append(f"{cloud.page} has another table")
    if hours["quiet"][cloud.look] > LOOKS_MAX:
        found.append(f"a quiet run asks more than {LOOKS_MAX} times an hour for its instances")
    return found


if __name__ == "__main__":
    main()
