"""
A whole project of Google Cloud, for what looks at all of it: Compute Engine's fake, with IAM, the bucket of runs, the
policy of the project and the price list beside it. The caller may do what some permissions say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from spotrun.clock import Clock
from tests.support import gcp_project
from tests.support.answering_server import Answer, AnsweringServer
from tests.support.cel import Resource, holds
from tests.support.gce_answers import Json, Refusal
from tests.support.gce_catalog import PROJECT
from tests.support.gce_logins import TOKEN
from tests.support.gce_methods import Asked
from tests.support.gce_server import GceServer
from tests.support.gcp_permissions import ALWAYS, OPTIONAL
from tests.support.gcp_project import GoogleProject
from tests.support.gcp_templates import conditions, permissions
from tests.support.google_login import log_in
from tests.support.google_nights import RpcRefusal
from tests.support.google_secrets import METHODS as OF_SECRETS
from tests.support.google_skus import on_demand_skus
from tests.support.object_stores import BUCKET

RUNNER_ROLES = ("spotrunRunner", "spotrunEnd", "spotrunBucket", "spotrunChange")
UNDER_CONDITION = permissions("spotrunEnd")
"""Granted for some names only, so that a question of the whole project denies them."""
ADA = "ada@example.com"
STORE = f"gs://{BUCKET}/runs"
_APIS = {
    "COMPUTE": "compute/v1/",
    "IAM": "",
    "STORAGE": "storage/v1/",
    "CLOUDRESOURCEMANAGER": "",
    "CLOUDBILLING": "",
    "SECRETMANAGER": "",
}
_FAKED_BY_PROJECT = (
    *(f"iam.projects.serviceAccounts.{verb}" for verb in ("create", "delete", "get", "list")),
    *(f"storage.managedFolders.{verb}" for verb in ("delete", "getIamPolicy", "insert", "setIamPolicy")),
)


class GcpAccount:
    """
    `allowed` are the permissions of the caller, by infra/gcp those of a runner. `bucket` is put over what the bucket
    says of itself; `grants` are those of the project's policy. `off` are APIs that are not turned on.
    """

    def __init__(self, clock: Clock) -> None:
        self.gce = GceServer(clock)
        self.google = GoogleProject()
        self.allowed = {*permissions(*RUNNER_ROLES)}
        self.bucket: dict[str, Any] = {"location": "US-CENTRAL1", "locationType": "region"}
        self.grants: list[dict[str, Any]] = []
        self.gce.permits = self._permits
        self.gce.handlers |= {
            **iam_handlers(self.google),
            "compute.instances.testIamPermissions": self._granted_on_instance,
            "cloudbilling.services.skus.list": lambda _: {"skus": on_demand_skus()},
            "cloudresourcemanager.projects.getIamPolicy": lambda _: {"version": 3, "bindings": self.grants},
            "cloudresourcemanager.projects.testIamPermissions": self._granted,
            "storage.buckets.get": self._bucket_facts,
            "storage.buckets.testIamPermissions": self._granted_in_bucket,
        }
        self.login = AnsweringServer(Answer(body={"email": ADA, "expires_in": 3599}))

    def __enter__(self) -> Self:
        self.gce.__enter__()
        self.login.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.login.__exit__(None, None, None)
        self.gce.__exit__()

    def reach(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log_in(monkeypatch, folder / "login.json", token=TOKEN)
        for name, path in _APIS.items():
            monkeypatch.setenv(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}", f"{self.gce.url}/{path}")
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_OAUTH2", f"{self.login.url}/")

    def fail(self, method: str, refusal: Refusal, times: int | None = None) -> None:
        self.gce.fail(method, refusal, times)

    # -- what is answered ----------------------------------------------------------------------------------------

    def _permits(self, _who: str, permission: str, _path: str) -> bool:
        return permission in self.allowed

    def _bucket_facts(self, asked: Asked) -> Json:
        return {**_of_project(self.google, asked._replace(method="storage.buckets.get")), **self.bucket}

    def _granted(self, asked: Asked) -> Json:
        return _answered({*asked.body["permissions"]} & (self.allowed - UNDER_CONDITION))

    def _granted_on_instance(self, asked: Asked) -> Json:
        """The condition is that of infra/gcp."""
        place = "/".join(
            ("projects", PROJECT, "zones", asked.arguments["zone"], "instances", asked.arguments["resource"])
        )
        holds_here = holds(conditions()["spotrunEnd"]["expression"], Resource(place, "compute.googleapis.com/Instance"))
        granted = self.allowed if holds_here else self.allowed - UNDER_CONDITION
        return _answered({*asked.body["permissions"]} & granted)

    def _granted_in_bucket(self, asked: Asked) -> Json:
        _of_project(self.google, asked._replace(method="storage.buckets.get"))
        return {"kind": "storage#testIamPermissionsResponse", **_answered({*_all(asked)} & self.allowed)}


def iam_handlers(project: GoogleProject) -> Mapping[str, Callable[[Asked], Json]]:
    """What the project answers of IAM, of Cloud Storage and of Secret Manager, for a GceServer."""
    return dict.fromkeys((*_FAKED_BY_PROJECT, *OF_SECRETS, "storage.buckets.get"), partial(_of_project, project))


def _of_project(project: GoogleProject, asked: Asked) -> Json:
    called = SimpleNamespace(method=SimpleNamespace(id=asked.method), arguments=asked.arguments, query=asked.query)
    try:
        return project.answer(called, asked.body or {}) or {}  # type: ignore[arg-type]
    except gcp_project.Refusal as refusal:
        kind = RpcRefusal if asked.method in OF_SECRETS else Refusal
        raise kind(refusal.status, refusal.reason, refusal.message) from refusal


def _answered(granted: set[str]) -> Mapping[str, Any]:
    return {"permissions": sorted(granted)} if granted else {}


def _all(asked: Asked) -> list[str]:
    """A question repeats its parameter, of which the server keeps the last: all that anybody may ask for."""
    return sorted({each for found in (*ALWAYS.values(), *OPTIONAL.values()) for each in found})
