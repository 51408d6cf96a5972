"""Zones that Google leaves out of a list of instances: each of the ways in which it says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from spotrun.clouds.gcp.calls import Google
from spotrun.clouds.gcp.instances import UNNAMED, look, require_seen
from spotrun.errors import CloudUnavailable

A, B = "us-central1-a", "northamerica-northeast1-b"
GONE = {"code": "UNREACHABLE", "message": "Some zones did not answer."}


class Answers:
    """Google, which answers each list with these pages."""

    def __init__(self, *pages: dict[str, Any]) -> None:
        self._pages = pages

    def pages(self, action: str, call: object) -> Iterator[dict[str, Any]]:
        return iter(self._pages)


@pytest.mark.parametrize(
    ("page", "zones"),
    [
        ({"unreachables": [f"zones/{A}"], "warning": GONE}, {A}),
        ({"items": {f"zones/{A}": {"warning": GONE}}}, {A}),
        ({"warning": {**GONE, "data": [{"key": "scope", "value": f"zones/{A}"}, {"key": "s", "value": B}]}}, {A, B}),
        ({"warning": {**GONE, "data": [{"key": "resource", "value": "instances"}]}}, {UNNAMED}),
        ({"warning": GONE}, {UNNAMED}),
        ({"warning": {"code": "NO_RESULTS_ON_PAGE"}, "items": {f"zones/{A}": {"warning": {}}}}, set()),
    ],
)
def test_zones_that_did_not_answer_are_seen(page: dict[str, Any], zones: set[str]) -> None:
    seen = look(cast("Google", Answers({"items": {}}, page)), "acme", "0123456789")
    assert seen.unreachable == zones
    require_seen(seen, ())
    for must_see in ([A], ["us-central1"]):
        if zones & {A, UNNAMED}:
            with pytest.raises(CloudUnavailable, match="did not list"):
                require_seen(seen, must_see)
        else:
            require_seen(seen, must_see)
