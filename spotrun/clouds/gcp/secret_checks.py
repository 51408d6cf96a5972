"""Checks that a job's secrets are in Secret Manager, where its instances read them. No value is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from spotrun.clouds.error_kinds import NotThere
from spotrun.clouds.gcp.calls import SECRET_MANAGER, Call, Google
from spotrun.clouds.gcp.error_codes import PerimeterForbids, ServiceOff
from spotrun.doctor.finding import Finding, Refusal, Verdict, findings_of, ok, warned
from spotrun.errors import SpotrunError
from spotrun.secrets.reference import SECRETS, Reference, add_command, create_command

ENABLED, DISABLED = "ENABLED", "DISABLED"
_ACCOUNTS = "principalSet://cloudresourcemanager.googleapis.com/projects/NUMBER/type/ServiceAccount"
"""All service accounts of the project with the number NUMBER."""
_DENIED = "allow secretmanager.versions.get, as the role spotrunRunner does (infra/gcp/README.md)"
_REFUSALS = (
    *(Refusal(error=error, verdict=Verdict.FAILED) for error in (ServiceOff, PerimeterForbids)),
    Refusal(hint=_DENIED),
)


def secret_findings(google: Google, project: str, secrets: Mapping[str, Reference]) -> Iterator[Finding]:
    for variable, place in secrets.items():
        title = f"secret {variable}"
        yield from findings_of(title, partial(_judged, google, project, title, place.name), *_REFUSALS)


def _judged(google: Google, project: str, title: str, name: str) -> Iterator[Finding]:
    """
    Check one secret. An instance always reads the latest version, so if that version is disabled, the instance fails.

    Raises:
        SpotrunError: the secret has no version, or its latest version is not enabled.
    """
    try:
        path = f"v1/projects/{project}/secrets/{name}/versions/latest"
        found = google.ask(f"check the secret {name}", Call(SECRET_MANAGER, "GET", path))
    except NotThere as error:
        what = f"there is no secret {name} in {project}, or it has no version"
        raise SpotrunError(what, hint=create_command(name, project)) from error
    state, version = str(found.get("state", "")), str(found.get("name", "")).rpartition("/")[2]
    if state != ENABLED:
        what = f"version {version} of {name} in {project}, the latest version, is {state}"
        raise SpotrunError(what, hint=_mended(name, project, version, state))
    if name.startswith(SECRETS):
        yield ok(title, f"{name}, version {version}")
    else:
        what = f"infra/gcp lets runs read only secrets whose names begin with {SECRETS}"
        yield warned(title, what, f"let the instances read {name}: {grant_command(name, project)}")


def _mended(name: str, project: str, version: str, state: str) -> str:
    if state == DISABLED:
        return f"gcloud secrets versions enable {version} --secret={name} --project={project}"
    return f"add a new version of it: {add_command(name, project)}"


def grant_command(name: str, project: str, member: str = _ACCOUNTS) -> str:
    """
    Return the command that lets service accounts read a secret. In a project that was set up with infra/gcp, they can
    already read secrets whose names begin with SECRETS. Any other secret needs this command.
    """
    role = "roles/secretmanager.secretAccessor"
    return f"gcloud secrets add-iam-policy-binding {name} --project={project} --role={role} --member={member}"
