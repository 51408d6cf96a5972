"""
Checks whether the reservation that a job names exists, and fits the on-demand instances that the job wants. Google
refuses each on-demand launch that names a reservation of another zone or machine type:
https://cloud.google.com/compute/docs/instances/reservations-consume
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from spotrun.clouds.gcp.calls import COMPUTE, Call, Google
from spotrun.clouds.gcp.description import last_part
from spotrun.doctor.finding import Finding, Refusal, failed, ok, warned
from spotrun.errors import CloudError

NAME = "reservation"
UNREAD = Refusal("whether the reservation fits is unknown", "grant the current roles of infra/gcp to your account")


class Place(NamedTuple):
    """A machine type in a zone."""

    machine_type: str
    zone: str

    def __str__(self) -> str:
        return f"{self.machine_type} in {self.zone}"


class Reservation(NamedTuple):
    """A reservation of `machines` in one place, of which `free` are not in use. `status` is Google's."""

    place: Place
    machines: int
    free: int
    status: str


def reservation_findings(google: Google, project: str, name: str, wanted: Collection[Place]) -> Iterator[Finding]:
    """
    Check the reservations called `name`, of which each zone may have one. `wanted` are the places of the on-demand
    instances that suit the job.

    Raises:
        CloudError: there is no such reservation, or none that fits.
    """
    found = reservations(google, project, name)
    where = f"{name} --project={project}"
    if not found:
        place = min(wanted)
        make = f"--zone={place.zone} --machine-type={place.machine_type} --vm-count=1 --require-specific-reservation"
        hint = f"correct or leave out gcp.reservation, or: gcloud compute reservations create {where} {make}"
        raise CloudError(f"the project {project} has no reservation called {name}", hint=hint)
    fitting = [each for each in found if each.place in wanted]
    if not fitting:
        place = found[0].place
        what = f"{name} reserves {' and '.join(str(each.place) for each in found)}, which the job does not want"
        hint = f"set instance_type: {place.machine_type} and zone: {place.zone} under resources, or leave out"
        raise CloudError(what, hint=f"{hint} gcp.reservation")
    for each in fitting:
        yield _use(each, where)
    if others := {*wanted} - {each.place for each in fitting}:
        place = fitting[0].place
        what = f"{name} is only of {place}, so on-demand launches elsewhere are refused, as of {min(others)}"
        hint = f"set instance_type: {place.machine_type} and zone: {place.zone} under resources"
        yield warned(NAME, what, hint)


def _use(found: Reservation, where: str) -> Finding:
    if found.status != "READY":
        what = f"the reservation of {found.place} is {found.status}"
        hint = f"gcloud compute reservations describe {where} --zone={found.place.zone} shows when it is READY"
        return failed(NAME, CloudError(what, hint=hint))
    if found.free <= 0:
        more = f"--zone={found.place.zone} --vm-count={found.machines + 1}"
        hint = f"end one of these instances, or: gcloud compute reservations update {where} {more}"
        return warned(NAME, f"instances use all {found.machines} of the reserved {found.place}", hint)
    return ok(NAME, f"{found.free} of {found.machines} reserved {found.place} are free")


def reservations(google: Google, project: str, name: str) -> list[Reservation]:
    """
    Return the project's reservations called `name`. Each zone may have one.

    https://cloud.google.com/compute/docs/reference/rest/v1/reservations/aggregatedList
    """
    call = Call(COMPUTE, "GET", f"projects/{project}/aggregated/reservations", {"filter": f'name = "{name}"'})
    scopes = (part for page in google.pages("list reservations", call) for part in page.get("items", {}).values())
    return sorted(_read(row) for part in scopes for row in part.get("reservations", ()))


def _read(row: Mapping[str, Any]) -> Reservation:
    """Read a reservation. Its numbers are text. A reservation of other resources has no machine type."""
    machines = row.get("specificReservation", {})
    machine_type = str(machines.get("instanceProperties", {}).get("machineType", "other resources"))
    count = int(machines.get("count", 0))
    free = count - int(machines.get("inUseCount", 0))
    return Reservation(Place(machine_type, last_part(row["zone"])), count, free, str(row.get("status", "")))
