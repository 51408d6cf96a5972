"""Finds out when an instance ended, if EC2's description of the instance does not say so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.description import end_told
from spotrun.errors import CloudError

OVER = "instance-terminated-"
"""
Prefix of a spot request's status after its instance has ended:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-request-status.html
"""


class TerminationTimes:
    """
    The times at which instances ended. An interrupted spot instance ended when its spot request last changed. For any
    other instance, the time at which spotrun first saw it terminated counts as its end. Once known, a time never
    changes, because bills depend on it.
    """

    def __init__(self, region: Region) -> None:
        self._region = region
        self._known: dict[str, datetime] = {}

    def of(self, rows: Iterable[Mapping[str, Any]], now: datetime) -> Mapping[str, datetime]:
        """
        Find the end times of the terminated instances in `rows` that their rows do not state. Return all end times
        found so far, keyed by instance id.
        """
        new = [row for row in rows if _is_untimed(row) and row["InstanceId"] not in self._known]
        told = self._by_request(new)
        for row in new:
            self._known[row["InstanceId"]] = told.get(row.get("SpotInstanceRequestId", ""), now)
        return self._known

    def _by_request(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, datetime]:
        requests = [row["SpotInstanceRequestId"] for row in rows if row.get("SpotInstanceRequestId")]
        if not requests:
            return {}
        named = [{"Name": "spot-instance-request-id", "Values": requests}]
        try:
            found = self._region.pages(
                self._region.ec2, "describe_spot_instance_requests", "SpotInstanceRequests", Filters=named
            )
        except CloudError:
            return {}  # then the end is when it was first seen: a little late, so a bill can only be higher
        return {
            each["SpotInstanceRequestId"]: each["Status"]["UpdateTime"].astimezone(UTC)
            for each in found
            if each["Status"]["Code"].startswith(OVER)
        }


def _is_untimed(row: Mapping[str, Any]) -> bool:
    return row["State"]["Name"] == "terminated" and end_told(dict(row)) is None
