"""
The notices of EC2's metadata service (IMDSv2).

If there is no notice, the service answers 404. Only an answer with status 200, a known action and a time is a notice
(failures.md N3 to N8): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from spotrun.clock import Clock
from spotrun.clouds.metadata import Answer, MetadataConnection
from spotrun.clouds.notices import Blind, Notice

ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
ENDPOINT = "http://169.254.169.254/"
TIMEOUT_S = 2.0
TOKEN_TTL_S = 21600
ACTION_PATH = "/latest/meta-data/spot/instance-action"
REBALANCE_PATH = "/latest/meta-data/events/recommendations/rebalance"
_ACTIONS = ("terminate", "stop", "hibernate")


def parse_action(body: bytes) -> datetime | None:
    """
    Return the time at which the instance will be interrupted, according to `body`, the text of `spot/instance-action`.
    Return None if the text has no known action or no time.
    """
    facts = _json_object(body)
    if facts.get("action") not in _ACTIONS:
        return None
    return _parse_time(facts.get("time"))


def parse_rebalance(body: bytes) -> datetime | None:
    return _parse_time(_json_object(body).get("noticeTime"))


def remaining_s(deadline: datetime, date_header: str | None, now: datetime) -> float:
    """
    Return the seconds until `deadline`. They are counted from the date in the header of the service's answer, because
    this machine's clock may be wrong (failures.md N15). Without such a date, they are counted from `now`.
    """
    try:
        told_at = parsedate_to_datetime(date_header or "")
    except (ValueError, TypeError, IndexError):
        told_at = now
    if told_at.tzinfo is None:
        told_at = told_at.replace(tzinfo=UTC)
    return (deadline - told_at).total_seconds()


def _json_object(body: bytes) -> dict[str, object]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _parse_time(text: object) -> datetime | None:
    try:
        return datetime.strptime(str(text), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None


class Metadata:
    """A client of the metadata service. It renews its session token when the service refuses the token."""

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        self._connection = MetadataConnection(parts.hostname or "169.254.169.254", parts.port)
        self._token: str | None = None

    def get(self, path: str) -> Answer | None:
        """
        Return the answer if its status is 200; None if it is 404. Raise Blind for any other status, or if there is no
        answer.
        """
        answer = self._ask(path)
        if answer.status == 401:
            self._token = None
            answer = self._ask(path)
        if answer.status not in (200, 404):
            raise Blind(f"{path}: HTTP {answer.status}")
        return answer if answer.status == 200 else None

    def _ask(self, path: str) -> Answer:
        if self._token is None:
            self._token = self._new_token()
        return self._request("GET", path, {"X-aws-ec2-metadata-token": self._token})

    def _new_token(self) -> str:
        answer = self._request("PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)})
        token = answer.body.decode("ascii", "replace").strip()
        if answer.status != 200 or not token or not (token.isascii() and token.isprintable()):
            raise Blind(f"no session token: HTTP {answer.status}")
        return token

    def _request(self, method: str, path: str, headers: dict[str, str]) -> Answer:
        return self._connection.ask(method, path, headers, TIMEOUT_S)


class Ec2Notices:
    """The notices from EC2's metadata service."""

    def __init__(self, endpoint: str, clock: Clock) -> None:
        self._metadata = Metadata(endpoint)
        self._clock = clock

    @classmethod
    def of(cls, environment: Mapping[str, str], clock: Clock) -> Ec2Notices:
        """Return a source that uses the endpoint in ENDPOINT_VARIABLE or, by default, EC2's own endpoint."""
        return cls(environment.get(ENDPOINT_VARIABLE, ENDPOINT), clock)

    def notices(self) -> Iterator[Notice]:
        asked_s = self._clock.monotonic()
        action = self._metadata.get(ACTION_PATH)
        if action is not None:
            if (deadline := parse_action(action.body)) is None:
                raise Blind(f"{ACTION_PATH} holds no action with a time: {action.body[:80]!r}")
            left_s = remaining_s(deadline, action.headers.get("Date"), self._clock.now())
            yield Notice("termination", deadline, asked_s + left_s)
        rebalance = self._metadata.get(REBALANCE_PATH)
        if rebalance is not None and parse_rebalance(rebalance.body) is not None:
            yield Notice("rebalance")
