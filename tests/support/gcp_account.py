"""
A whole project of Google Cloud, for what looks at all of it: what its caller may do is what some permissions say, and
IAM and Cloud Storage tell who asks which of them that is.
"""

from __future__ import annotations

from datetime import datetime

from tests.support.answering_server import Answer, AnsweringServer
from tests.support.cel import Resource, holds
from tests.support.gce_agenda import Now
from tests.support.gce_answers import Json
from tests.support.gcp_permissions import ALWAYS, OPTIONAL
from tests.support.gcp_templates import conditions, permissions
from tests.support.google_api import Asked
from tests.support.google_cloud import How
from tests.support.google_server import GoogleServer
from tests.support.object_stores import BUCKET

RUNNER_ROLES = ("spotrunRunner", "spotrunEnd", "spotrunBucket", "spotrunFolder", "spotrunChange")
UNDER_CONDITION = permissions("spotrunEnd")
"""Granted for some names only, so that a question of the whole project denies them."""
ADA = "ada@example.com"
STORE = f"gs://{BUCKET}/runs"


class GcpAccount(GoogleServer):
    """
    `allowed` are the permissions of the caller, by infra/gcp those of a runner, and `allowed_on_accounts` those that
    the policies of service accounts add. `grants` are those of the project's policy.
    """

    def __init__(self, clock: Now, objects: str = "") -> None:
        super().__init__(clock, objects)
        self.allowed = {*permissions(*RUNNER_ROLES)}
        self.allowed_on_accounts = set[str]()
        self.grants: list[Json] = []
        if not objects:
            self.permits = lambda _, permission: permission in self.allowed
        self.handlers |= {
            "compute.instances.testIamPermissions": self._granted_on_instance,
            "cloudresourcemanager.projects.getIamPolicy": lambda _: {"version": 3, "bindings": self.grants},
            "cloudresourcemanager.projects.testIamPermissions": self._granted,
            "iam.projects.serviceAccounts.testIamPermissions": self._granted_on_account,
            "storage.buckets.testIamPermissions": self._granted_in_bucket,
        }
        self.login = AnsweringServer(Answer(body={"email": ADA, "expires_in": 3599}))

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        self.login.__exit__()
        super().__exit__(kind)

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "CLOUDSDK_API_ENDPOINT_OVERRIDES_OAUTH2": f"{self.login.url}/"}

    def fail(self, method: str, how: How, times: int | None = None, until: datetime | None = None) -> None:
        super().fail(method, how, times, until)

    # -- what is answered ----------------------------------------------------------------------------------------

    def _granted(self, asked: Asked) -> Json:
        return _answered({*asked.body["permissions"]} & (self.allowed - UNDER_CONDITION))

    def _granted_on_instance(self, asked: Asked) -> Json:
        """The condition is that of infra/gcp."""
        instance = Resource(asked.path.rpartition("/")[0], "compute.googleapis.com/Instance")
        holds_here = holds(conditions()["spotrunEnd"]["expression"], instance)
        granted = self.allowed if holds_here else self.allowed - UNDER_CONDITION
        return _answered({*asked.body["permissions"]} & granted)

    def _granted_on_account(self, asked: Asked) -> Json:
        return _answered({*asked.body["permissions"]} & (self.allowed | self.allowed_on_accounts))

    def _granted_in_bucket(self, asked: Asked) -> Json:
        self.handlers["storage.buckets.get"](asked)
        return {"kind": "storage#testIamPermissionsResponse", **_answered({*_all(asked)} & self.allowed)}


def _answered(granted: set[str]) -> Json:
    return {"permissions": sorted(granted)} if granted else {}


def _all(asked: Asked) -> list[str]:
    """A question repeats its parameter, of which the server keeps the last: all that anybody may ask for."""
    return sorted({each for found in (*ALWAYS.values(), *OPTIONAL.values()) for each in found})
