"""What moto lacks of spot requests: an instance names its own, whose status says when it was taken back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from werkzeug.wrappers import Response

XML = '<?xml version="1.0" encoding="UTF-8"?>'


def answered(action: str, content: str) -> Response:
    """As EC2 answers."""
    return Response(f"{XML}<{action}Response>{content}</{action}Response>", 200, content_type="text/xml")


class SpotRequests:
    """The requests behind instances, by instance id."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def tell(self, instance_id: str, code: str, at: datetime) -> None:
        """The status of its request, and since when."""
        self._known[instance_id] = (
            f"<item><spotInstanceRequestId>{_id_of(instance_id)}</spotInstanceRequestId>"
            f"<status><code>{code}</code><updateTime>{at:%Y-%m-%dT%H:%M:%S.000Z}</updateTime></status></item>"
        )

    def named_in(self, described: bytes) -> bytes:
        """The answer to DescribeInstances with the requests' ids in it."""
        for instance_id in self._known:
            field = f"<instanceId>{instance_id}</instanceId>".encode()
            request = f"<spotInstanceRequestId>{_id_of(instance_id)}</spotInstanceRequestId>".encode()
            described = described.replace(field, field + request)
        return described

    def described(self, asked: Mapping[str, str]) -> Response:
        wanted = {text for name, text in asked.items() if name.startswith("Filter.1.Value.")}
        items = "".join(item for instance_id, item in self._known.items() if _id_of(instance_id) in wanted)
        return answered("DescribeSpotInstanceRequests", f"<spotInstanceRequestSet>{items}</spotInstanceRequestSet>")


def _id_of(instance_id: str) -> str:
    return instance_id.replace("i-", "sir-")
