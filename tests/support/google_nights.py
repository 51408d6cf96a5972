"""
Cloud Run, Cloud Scheduler and IAM's tokens as far as nights need them, for a GoogleCloud: services and jobs in memory.

    https://cloud.google.com/run/docs/reference/rest/v2/projects.locations.services
    https://cloud.google.com/scheduler/docs/reference/rest/v1/projects.locations.jobs
    https://cloud.google.com/iam/docs/reference/credentials/rest/v1/projects.serviceAccounts/generateIdToken

A service is settled after it was looked at `looks` times. A job can be paused only while it is enabled, and resumed
only while it is paused.
"""

from __future__ import annotations

from typing import Any

from tests.support.gce_answers import Json, RpcRefusal, rpc_refusal
from tests.support.google_api import Asked
from tests.support.google_cloud import GoogleCloud

URI = "https://spotrun-night-resnet50-123456789012.us-central1.run.app"
REGIONS = ("us-central1", "us-east1", "europe-west1", "europe-west2", "africa-south1")
"""Of Cloud Scheduler: a few of them."""
ID_TOKEN = "an-id-token"
_OUTPUT_ONLY = {"state", "scheduleTime", "lastAttemptTime", "status", "userUpdateTime"}


def _not_found(name: str) -> RpcRefusal:
    return rpc_refusal(404, f"Resource '{name}' was not found")


class GoogleNights:
    """`services` and `jobs` are by their full names. `failure` is what Cloud Run says of the next service."""

    def __init__(self, google: GoogleCloud, uri: str = URI, looks: int = 2) -> None:
        self.services: dict[str, dict[str, Any]] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.failure = ""
        self._uri, self._looks = uri, looks
        self._left: dict[str, int] = {}
        google.handlers |= {
            **{f"run.projects.locations.services.{verb}": getattr(self, f"_{verb}_service") for verb in _OF_SERVICES},
            **{f"cloudscheduler.projects.locations.jobs.{verb}": getattr(self, f"_{verb}_job") for verb in _OF_JOBS},
            "cloudscheduler.projects.locations.list": lambda _: {
                "locations": [{"locationId": each} for each in REGIONS]
            },
            "iamcredentials.projects.serviceAccounts.generateIdToken": lambda _: {"token": ID_TOKEN},
        }

    def state_of(self, job: str) -> str:
        """Of the job whose name ends so."""
        (found,) = (each for name, each in self.jobs.items() if name.endswith(job))
        return str(found["state"])

    # -- Cloud Run ---------------------------------------------------------------------------------------------------

    def _patch_service(self, asked: Asked) -> Json:
        name = asked.arguments["name"]
        known = self.services.get(name)
        if known is None and asked.query.get("allowMissing") != "true":
            raise _not_found(name)
        generation = 1 if known is None else int(known["generation"]) + 1
        observed = "0" if known is None else known["observedGeneration"]
        there = {"name": name, "generation": str(generation), "observedGeneration": observed, "reconciling": True}
        self.services[name] = {**asked.body, **there}
        self._left[name] = self._looks
        return {"name": f"{name.rpartition('/services/')[0]}/operations/1", "done": False}

    def _get_service(self, asked: Asked) -> Json:
        name = asked.arguments["name"]
        if name not in self.services:
            raise _not_found(name)
        found = self.services[name]
        if self._left[name] > 0:
            self._left[name] -= 1
        elif "deleteTime" in found:
            del self.services[name]
            raise _not_found(name)
        else:
            state = {"type": "Ready", "state": "CONDITION_FAILED" if self.failure else "CONDITION_SUCCEEDED"}
            found |= {"reconciling": False, "observedGeneration": found["generation"], "uri": self._uri}
            found["terminalCondition"] = {**state, **({"message": self.failure} if self.failure else {})}
        return found

    def _delete_service(self, asked: Asked) -> Json:
        name = asked.arguments["name"]
        if name not in self.services:
            raise _not_found(name)
        self.services[name]["deleteTime"] = "2026-11-28T00:00:00Z"
        self._left[name] = self._looks
        return {"name": f"{name.rpartition('/services/')[0]}/operations/2", "done": False}

    # -- Cloud Scheduler ---------------------------------------------------------------------------------------------

    def _create_job(self, asked: Asked) -> Json:
        name = asked.body["name"]
        if name in self.jobs:
            raise rpc_refusal(409, f"Job {name} already exists.")
        self.jobs[name] = {**_settable(asked.body), "state": "ENABLED"}
        return self.jobs[name]

    def _patch_job(self, asked: Asked) -> Json:
        found = self._known(asked)
        found |= _settable(asked.body)
        return found

    def _get_job(self, asked: Asked) -> Json:
        return self._known(asked)

    def _delete_job(self, asked: Asked) -> Json:
        self._known(asked)
        del self.jobs[asked.arguments["name"]]
        return {}

    def _pause_job(self, asked: Asked) -> Json:
        return self._switched(asked, "ENABLED", "PAUSED")

    def _resume_job(self, asked: Asked) -> Json:
        return self._switched(asked, "PAUSED", "ENABLED")

    def _switched(self, asked: Asked, before: str, after: str) -> Json:
        found = self._known(asked)
        if found["state"] != before:
            raise RpcRefusal(400, "FAILED_PRECONDITION", f"Job is not {before}.")
        found["state"] = after
        return found

    def _known(self, asked: Asked) -> dict[str, Any]:
        name = asked.arguments["name"]
        if name not in self.jobs:
            raise _not_found(name)
        return self.jobs[name]


_OF_SERVICES = ("patch", "get", "delete")
_OF_JOBS = ("create", "patch", "get", "delete", "pause", "resume")


def _settable(job: Json) -> dict[str, Any]:
    return {name: value for name, value in job.items() if name not in _OUTPUT_ONLY}


NEEDED = {
    "spotrunNight": {
        "cloudscheduler.projects.locations.jobs.get": ("cloudscheduler.jobs.get",),
        "cloudscheduler.projects.locations.jobs.pause": ("cloudscheduler.jobs.pause",),
        "cloudscheduler.projects.locations.jobs.resume": ("cloudscheduler.jobs.enable",),
    },
    "spotrunNightInstall": {
        "cloudscheduler.projects.locations.jobs.create": ("cloudscheduler.jobs.create",),
        "cloudscheduler.projects.locations.jobs.delete": ("cloudscheduler.jobs.delete",),
        "cloudscheduler.projects.locations.jobs.get": ("cloudscheduler.jobs.get",),
        "cloudscheduler.projects.locations.jobs.patch": ("cloudscheduler.jobs.update",),
        "cloudscheduler.projects.locations.list": ("cloudscheduler.locations.list",),
        "run.projects.locations.services.delete": ("run.services.delete",),
        "run.projects.locations.services.get": ("run.services.get",),
        "run.projects.locations.services.patch": ("run.services.create", "run.services.update"),
    },
}
"""
Who calls which method, and what each needs: https://cloud.google.com/scheduler/docs/access-control and
https://cloud.google.com/run/docs/reference/iam/permissions. What is asked of accounts has predefined roles.
"""
