"""One region's API. spotrun retries the calls itself, and reads each list to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from botocore.config import Config
from botocore.loaders import Loader
from botocore.session import Session
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from spotrun.clock import Clock
from spotrun.clouds.aws.clock_skew import keep_right
from spotrun.clouds.aws.error_codes import CredentialsExpired, translated
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


_MODELS = Loader()
"""The description of each service's calls, read once for all clients: that takes ten times as long as the rest."""


def _session() -> Session:
    """A session with the settings and credentials of this moment."""
    session = Session()
    session.register_component("data_loader", _MODELS)
    return session


def default_region() -> str:
    """
    The region of the environment or of the AWS profile.

    Raises:
        CloudError: neither names one.
    """
    name = _session().get_config_variable("region")
    if not name:
        raise CloudError("no region is named", hint="give --region us-east-1, or set AWS_DEFAULT_REGION")
    return str(name)


def _passes(error: BaseException) -> bool:
    """Whether the trouble ends by itself, and soon. Expired credentials do not: somebody has to renew them."""
    return isinstance(error, CloudUnavailable) and not isinstance(error, CredentialsExpired)


class Region:
    """
    The calls of one region. After throttling, a 5xx or a network failure a call is repeated, with jitter. Each answer
    puts `clock` right.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self._clock = clock
        self._clients: dict[str, Any] = {}
        self._retrying = Retrying(
            retry=retry_if_exception(_passes),
            wait=wait_random_exponential(multiplier=PAUSE_FIRST_S, max=PAUSE_MAX_S),
            stop=stop_after_attempt(ATTEMPTS_MAX),
            sleep=clock.sleep,
            reraise=True,
        )

    @property
    def ec2(self) -> Any:
        return self._client("ec2", self.name)

    @property
    def ssm(self) -> Any:
        return self._client("ssm", self.name)

    @property
    def sts(self) -> Any:
        return self._client("sts", self.name)

    @property
    def quotas(self) -> Any:
        return self._client("service-quotas", self.name)

    @property
    def iam(self) -> Any:
        return self._client("iam", self.name)

    @property
    def scheduler(self) -> Any:
        return self._client("scheduler", self.name)

    @property
    def partition(self) -> str:
        """`aws`, or the partition of China's or of the government's regions. It is part of every ARN."""
        return str(_session().get_partition_for_region(self.name))

    @property
    def pricing(self) -> Any:
        return self._client("pricing", PRICING_REGION)

    def _client(self, service: str, region: str) -> Any:
        client = self._clients.get(service)
        if client is None:
            client = self._clients[service] = _session().create_client(service, region_name=region, config=CONFIG)
            keep_right(self._clock, client)
        return client

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
                # a client keeps the credentials that it was made with, although its user may have logged in anew
                self._clients.clear()
                raise

        return self._retrying(once)

    def pages(self, client: Any, operation: str, of: str, **parameters: Any) -> list[Any]:
        """All items under `of` on all pages of an operation."""

        def read() -> list[Any]:
            found = client.get_paginator(operation).paginate(**parameters)
            return [item for page in found for item in page[of]]

        return self.ask(f"answer {operation} in {self.name}", read)
