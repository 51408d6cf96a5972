"""One region's API: every call is ours to retry, every list is read to its end."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import boto3
from botocore.config import Config
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from spotrun.clock import Clock
from spotrun.clouds.aws.refusals import CredentialsExpired, translated
from spotrun.errors import CloudError, CloudUnavailable

T = TypeVar("T")

ATTEMPTS_MAX = 4
PAUSE_FIRST_S, PAUSE_MAX_S = 0.5, 4.0
CONNECT_S, READ_S = 5.0, 30.0
PRICING_REGION = "us-east-1"
"""The price list is served from a few regions only; this one knows all the others' prices."""

CONFIG = Config(
    # botocore itself would retry 500 InsufficientInstanceCapacity and 503 RequestLimitExceeded, and hide them
    retries={"mode": "standard", "total_max_attempts": 1},
    connect_timeout=CONNECT_S,
    read_timeout=READ_S,
    user_agent_extra="spotrun",
)


def default_region() -> str:
    """
    The region of the environment or of the AWS profile.

    Raises:
        CloudError: neither names one.
    """
    name = boto3.Session().region_name
    if not name:
        raise CloudError("no region is named", hint="give --region us-east-1, or set AWS_DEFAULT_REGION")
    return str(name)


class Region:
    """The calls of one region. What passes (throttling, 5xx, the network) is tried a few times, with jitter."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self._retrying = Retrying(
            retry=retry_if_exception_type(CloudUnavailable),
            wait=wait_random_exponential(multiplier=PAUSE_FIRST_S, max=PAUSE_MAX_S),
            stop=stop_after_attempt(ATTEMPTS_MAX),
            sleep=clock.sleep,
            reraise=True,
        )

    @cached_property
    def ec2(self) -> Any:
        return boto3.Session().client("ec2", region_name=self.name, config=CONFIG)

    @cached_property
    def ssm(self) -> Any:
        return boto3.Session().client("ssm", region_name=self.name, config=CONFIG)

    @cached_property
    def sts(self) -> Any:
        return boto3.Session().client("sts", region_name=self.name, config=CONFIG)

    @cached_property
    def quotas(self) -> Any:
        return boto3.Session().client("service-quotas", region_name=self.name, config=CONFIG)

    @cached_property
    def scheduler(self) -> Any:
        return boto3.Session().client("scheduler", region_name=self.name, config=CONFIG)

    @property
    def partition(self) -> str:
        """`aws`, or that of China's or of the government's regions; part of every ARN."""
        return str(boto3.Session().get_partition_for_region(self.name))

    @cached_property
    def pricing(self) -> Any:
        return boto3.Session().client("pricing", region_name=PRICING_REGION, config=CONFIG)

    def ask(self, action: str, call: Callable[[], T]) -> T:
        """
        What `call` answers. It is repeated, so it must be harmless to repeat.

        Raises:
            CloudError: see CloudDriver.
        """

        def once() -> T:
            try:
                with translated(action):
                    return call()
            except CredentialsExpired:
                self._forget_clients()
                raise

        return self._retrying(once)

    def _forget_clients(self) -> None:
        """A client goes on with the credentials that it was made with, whatever its user has logged in with since."""
        for name in ("ec2", "ssm", "quotas", "pricing"):
            self.__dict__.pop(name, None)

    def pages(self, client: Any, operation: str, of: str, **parameters: Any) -> list[Any]:
        """All items under `of` on all pages of an operation."""

        def read() -> list[Any]:
            found = client.get_paginator(operation).paginate(**parameters)
            return [item for page in found for item in page[of]]

        return self.ask(f"answer {operation} in {self.name}", read)
