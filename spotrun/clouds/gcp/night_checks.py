"""
Describes what is wrong with the Cloud Run service of a night, and with the Cloud Scheduler jobs that call it.

https://cloud.google.com/run/docs/reference/rest/v2/projects.locations.services
https://cloud.google.com/scheduler/docs/reference/rest/v1/projects.locations.jobs
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from spotrun.clouds.gcp.moments import moment
from spotrun.clouds.gcp.night_alarm import ENABLED, PAUSED
from spotrun.clouds.nights import ANEW
from spotrun.errors import SpecInvalid

INGRESS = "INGRESS_TRAFFIC_ALL"
"""The setting in which a service takes calls from any address; callers still need the role run.invoker."""
_FAILED = "CONDITION_FAILED"
_CODES = {
    4: "DEADLINE_EXCEEDED",
    5: "NOT_FOUND",
    7: "PERMISSION_DENIED",
    8: "RESOURCE_EXHAUSTED",
    13: "INTERNAL",
    14: "UNAVAILABLE",
    16: "UNAUTHENTICATED",
}
"""
Names of the codes that a failed call may have: https://cloud.google.com/tasks/docs/reference/rest/Shared.Types/Code
"""
_REFUSED = (7, 16)
_NEAR_MAX = 3
_NEVER = datetime.min.replace(tzinfo=UTC)


class Places(NamedTuple):
    """The region and the project of a night, as gcloud's options name them, and the rights that its account needs."""

    region: str
    project: str
    rights: str

    @property
    def options(self) -> str:
        return f"--project={self.project} --location={self.region}"

    def logs(self, service: str) -> str:
        return f"gcloud run services logs read {service} --region {self.region} --project {self.project}"


def require_region(region: str, known: Iterable[str]) -> None:
    """
    Raises:
        SpecInvalid: Cloud Scheduler is not in this region. The hint names up to three similar regions that have it.
    """
    names = {*known}
    if region not in names:
        near = sorted(names, key=lambda name: SequenceMatcher(None, name, region).ratio(), reverse=True)[:_NEAR_MAX]
        raise SpecInvalid(
            f"{region} has no Cloud Scheduler, which calls a night at its time",
            hint=f"write another region first in gcp.regions, such as {', '.join(near)}",
        )


RUNTIMES = "-docker.pkg.dev/serverless-runtimes/"
"""The repositories of the images that run source code: https://cloud.google.com/docs/buildpacks/base-images"""


def service_trouble(service: Mapping[str, Any], name: str) -> str:
    """
    Return one sentence about why no call reaches the service, or not the newest one; "" if nothing is wrong. A change
    of the service that is still in progress is not wrong.
    """
    condition = service.get("terminalCondition", {})
    if service.get("defaultUriDisabled", False):
        return f"the address of the service {name} is disabled, so no job can call it: {ANEW}"
    if service.get("ingress", INGRESS) != INGRESS:
        return f"the service {name} no longer takes calls from all addresses ({service['ingress']}): {ANEW}"
    (container,) = service["template"]["containers"]
    if RUNTIMES not in container["image"]:
        return f"the service {name} runs the image {container['image']} instead of Google's Python: {ANEW}"
    if condition.get("state") == _FAILED:
        why = str(condition.get("message") or "Cloud Run does not say why")
        return f"the newest revision of the service {name} failed: {why}: {ANEW}"
    return ""


def job_trouble(job: Mapping[str, Any], wanted: Mapping[str, Any], is_switched: bool, places: Places) -> str:
    """
    Return one sentence about why a job does not call the service as `wanted`; "" if it does. `is_switched` says that
    the night's runner pauses and resumes the job.
    """
    title, state = str(wanted["name"]).rpartition("/")[2], str(job.get("state"))
    target, wanted_target = job.get("httpTarget", {}), wanted["httpTarget"]
    if any(job.get(key) != wanted[key] for key in ("schedule", "timeZone")):
        return f"the job {title} calls at other times than it should: {ANEW}"
    if target.get("uri") != wanted_target["uri"]:
        return f"the job {title} calls another address, {target.get('uri')}: {ANEW}"
    if any(target.get(key) != wanted_target[key] for key in ("httpMethod", "body", "oidcToken")):
        return f"the job {title} does not make the call that was installed: {ANEW}"
    if state == PAUSED and not is_switched:
        return f"the job {title} is paused: gcloud scheduler jobs resume {title} {places.options}"
    if state not in (ENABLED, PAUSED):
        return f"the job {title} is {state}: {ANEW}"
    return ""


def call_trouble(jobs: Iterable[Mapping[str, Any]], since: datetime, service: str, places: Places) -> str:
    """
    Return one sentence about the newest call of these jobs, if it was made after `since` and failed; otherwise "". An
    older failure does not count: a later call has succeeded.
    """
    newest = max(jobs, key=_called_at)
    at, code = _called_at(newest), int(newest.get("status", {}).get("code", 0))
    if not code or at < since:
        return ""
    title = str(newest["name"]).rpartition("/")[2]
    advice = places.rights if code in _REFUSED else places.logs(service)
    named = _CODES.get(code, f"code {code}")
    return f"the last call of the job {title}, at {at:%Y-%m-%d %H:%M} UTC, failed ({named}): {advice}"


def _called_at(job: Mapping[str, Any]) -> datetime:
    return moment(job.get("lastAttemptTime")) or _NEVER
