"""
Finds spotrun's disks that no instance uses.

A disk is deleted with its instance, unless a user has detached it or told Google to keep it. spotrun recognizes its
disks by their names, because a boot disk has the same name as its instance:
https://cloud.google.com/compute/docs/reference/rest/v1/instances/insert (initializeParams.diskName).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spotrun.clouds.error_kinds import NotThere
from spotrun.clouds.gcp.calls import COMPUTE, Call, Google
from spotrun.clouds.gcp.delete_ids import delete_id
from spotrun.clouds.gcp.description import last_part, run_of
from spotrun.clouds.gcp.instances import of_runs
from spotrun.clouds.orphaned_resources import Leftover


class Disks:
    """The disks that instances have left behind. If `project` is None, the login determines the project."""

    def __init__(self, google: Google, project: str | None = None) -> None:
        self._google = google
        self._named = project

    def found(self) -> list[Leftover]:
        query = {"filter": of_runs(None), "maxResults": "500", "returnPartialSuccess": "true"}
        call = Call(COMPUTE, "GET", f"projects/{self._project}/aggregated/disks", query)
        rows = [
            row
            for page in self._google.pages("list disks", call)
            for scope in page.get("items", {}).values()
            for row in scope.get("disks", ())
        ]
        return [_leftover(row) for row in rows if run_of(row) and not row.get("users")]

    def remove(self, leftover: Leftover) -> None:
        zone, _, name = leftover.handle.partition("/")
        place = f"projects/{self._project}/zones/{zone}/disks/{name}"
        try:
            self._google.ask(f"delete the disk {name}", Call(COMPUTE, "DELETE", place, {"requestId": delete_id()}))
        except NotThere:
            return

    @property
    def _project(self) -> str:
        return self._google.project(self._named)


def _leftover(row: Mapping[str, Any]) -> Leftover:
    zone, name = last_part(row["zone"]), row["name"]
    what = f"the disk {name} of {row.get('sizeGb')} GB in {zone}"
    return Leftover(run_uid=run_of(row), what=what, handle=f"{zone}/{name}")
