"""Calls the AWS API of one region. Repeats failed calls by spotrun's own rules. Reads all pages of a list."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import cache, cached_property
from typing import Any, TypeVar

from botocore.config import Config
from botocore.loaders import Loader

from spotrun.clock import Clock
from spotrun.clouds.aws.clock_skew import keep_right, wrong_clock
from spotrun.clouds.aws.error_codes import NoAnswer, translated
from spotrun.clouds.patience import ASIDE, PATIENT, Patience, PatientClient
from spotrun.errors import CloudError, SpecInvalid
from spotrun.store.s3_login import RoleSession
from spotrun.units import Unreadable, shown

T = TypeVar("T")

PRICING_REGION = "us-east-1"
"""
The region whose price-list API is called. Only a few regions have this API, and each of them lists the prices of all
regions.
"""


_MODELS = Loader()
"""
boto3's definitions of AWS's services. All clients share them: reading the definitions takes ten times as long as
everything else that making a client needs.
"""


def config_for(patience: Patience) -> Config:
    return Config(
        # Otherwise botocore would repeat InsufficientInstanceCapacity (500) and RequestLimitExceeded (503) itself.
        retries={"mode": "standard", "total_max_attempts": 1},
        connect_timeout=patience.connect_s,
        read_timeout=patience.read_s,
        user_agent_extra="spotrun",
    )


def _session() -> RoleSession:
    """Return a session with the current settings and credentials."""
    session = RoleSession()
    session.register_component("data_loader", _MODELS)
    return session


def usual_region() -> str | None:
    """
    Return the region that AWS_REGION, AWS_DEFAULT_REGION or the AWS profile names, in this order; None if none does.
    """
    named = os.environ.get("AWS_REGION")
    if not named:
        with contextlib.suppress(CloudError), translated("find a region"):
            named = _session().get_config_variable("region")
    return named or None


def require_regions(names: Iterable[str]) -> None:
    """
    Check that the SDK lists these regions. Without this check, a call to a region that does not exist would fail as if
    the network were down, and would be repeated.

    Raises:
        SpecInvalid: the SDK does not list one of the regions.
    """
    for unknown in filter(None, map(unknown_region, names)):
        raise SpecInvalid(unknown.message, hint=unknown.suggestion)


def unknown_region(name: str) -> Unreadable | None:
    """Return an error if the SDK does not list the region `name`. The suggestion names a similar region."""
    if name in (known := _regions()):
        return None
    meant = _like(name, known)
    hint = f"did you mean {meant}?" if meant else "`spotrun offers` lists types and their regions."
    newer = "If the region is new, update the SDK: pip install --upgrade boto3"
    return Unreadable(f"AWS has no region {shown(name)}", f"{hint} {newer}")


@cache
def _regions() -> frozenset[str]:
    session = _session()
    names = session.get_available_partitions()
    return frozenset(each for name in names for each in session.get_available_regions("ec2", name))


def _like(name: str, known: Iterable[str]) -> str | None:
    """
    Return the region that the user probably meant, or None if no name is similar. A name with the same letters in
    another order is preferred.
    """
    near = get_close_matches(name, sorted(known), 3)
    return next((each for each in near if sorted(each) == sorted(name)), near[0] if near else None)


def _refuse_no_answer(http_response: Any, parsed: dict[str, Any], model: Any, **_: Any) -> None:
    """
    Raise NoAnswer if an answer has status 200, but no field of AWS's answer to this call. Such an answer comes from a
    captive portal, not from AWS. (Other stores that speak S3 answer HeadBucket with the id of the request alone.)
    """
    shape = model.output_shape
    if model.name == "HeadBucket" and "x-amz-request-id" in http_response.headers:
        return
    if http_response.status_code < 300 and shape is not None and shape.members and not parsed.keys() & shape.members:
        raise NoAnswer(f"the answer to {model.name} lacks AWS's fields")


def _client_of(service: str) -> property:
    return property(lambda region: region._client(service, region.name))


class Region(PatientClient):
    """
    Calls AWS's services in one region. A call is repeated after a random wait if AWS throttles it, answers with a 5xx
    status, or cannot be reached. `patience` contains the timeout of a single call, and the time for which a call is
    repeated. `clock` is corrected by the time in AWS's answers.
    """

    ec2 = _client_of("ec2")
    s3 = _client_of("s3")
    ssm = _client_of("ssm")
    sts = _client_of("sts")
    quotas = _client_of("service-quotas")
    iam = _client_of("iam")
    kms = _client_of("kms")
    scheduler = _client_of("scheduler")
    events = _client_of("events")
    functions = _client_of("lambda")
    stacks = _client_of("cloudformation")

    def __init__(self, name: str, clock: Clock, patience: Patience = PATIENT) -> None:
        super().__init__(clock, patience)
        self.name = name
        self._clients: dict[str, Any] = {}

    @cached_property
    def aside(self) -> Region:
        """
        The same region, for calls that are not essential. Such a call fails after a few seconds without an answer,
        because its caller will repeat it later anyway.
        """
        return Region(self.name, self._clock, ASIDE)

    @cached_property
    def partition(self) -> str:
        """The region's partition, which every ARN names: `aws`, or for example `aws-cn` in China."""
        with translated(f"find the partition of {self.name}"):
            return str(_session().get_partition_for_region(self.name))

    @property
    def pricing(self) -> Any:
        return self._client("pricing", PRICING_REGION)

    def _client(self, service: str, region: str) -> Any:
        client = self._clients.get(service)
        if client is None:
            with translated(f"make a client of {service}"):
                client = _session().create_client(service, region_name=region, config=config_for(self._patience))
                client.meta.events.register("after-call", _refuse_no_answer)
                keep_right(self._clock, client)
            self._clients[service] = client
        return client

    def ask(self, action: str, call: Callable[[], T]) -> T:
        """Return the result of `call`, which must be harmless to repeat. Raises the errors that CloudDriver lists."""

        def once() -> T:
            with translated(action):
                return call()

        return self._patiently(once)

    def _drop_login(self) -> None:
        self._clients.clear()

    def _reason_of(self, error: CloudError) -> CloudError:
        return wrong_clock(error) or error

    def pages(self, client: Any, operation: str, of: str, **parameters: Any) -> list[Any]:
        """Return the items in the list `of` of an operation's answer, from all of its pages."""

        def read() -> list[Any]:
            found = client.get_paginator(operation).paginate(**parameters)
            return [item for page in found for item in page[of]]

        return self.ask(f"answer {operation} in {self.name}", read)
