"""Checks that a job's secrets are in Secret Manager, where its instances read them. No value is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from spotrun.clouds.gcp.calls import SECRET_MANAGER, Call, Google
from spotrun.clouds.gcp.error_codes import NotThere, ServiceOff
from spotrun.doctor.finding import Finding, failed, ok, unknown, warned
from spotrun.errors import AccessDenied, CloudError, SpotrunError
from spotrun.secrets.reference import SECRETS, Reference, add_command, create_command

ENABLED, DISABLED = "ENABLED", "DISABLED"
_ACCOUNTS = "principalSet://cloudresourcemanager.googleapis.com/projects/NUMBER/type/ServiceAccount"
"""Each service account of the project of that number."""
_DENIED = "allow secretmanager.versions.get, as the role spotrunRunner does (infra/gcp/README.md)"


def secret_findings(google: Google, project: str, secrets: Mapping[str, Reference]) -> Iterator[Finding]:
    for variable, place in secrets.items():
        yield _finding(google, project, f"secret {variable}", place.name)


def _finding(google: Google, project: str, title: str, name: str) -> Finding:
    """Check one secret. An instance reads the latest version, whatever state it is in."""
    path = f"v1/projects/{project}/secrets/{name}/versions/latest"
    try:
        found = google.ask(f"check the secret {name}", Call(SECRET_MANAGER, "GET", path))
    except NotThere:
        what = f"there is no secret {name} in {project}, or it has no version"
        return failed(title, SpotrunError(what, hint=create_command(name, project)))
    except ServiceOff as error:
        return failed(title, error)
    except AccessDenied as error:
        return unknown(title, error.message, _DENIED)
    except CloudError as error:
        return failed(title, error)
    state, version = str(found.get("state", "")), str(found.get("name", "")).rpartition("/")[2]
    if state != ENABLED:
        what = f"version {version} of {name} in {project}, the latest, is {state}"
        return failed(title, SpotrunError(what, hint=_mended(name, project, version, state)))
    if not name.startswith(SECRETS):
        what = f"the service accounts of infra/gcp read secrets whose names begin with {SECRETS} only"
        return warned(title, what, f"let the instances read {name}: {grant_command(name, project)}")
    return ok(title, f"{name}, version {version}")


def _mended(name: str, project: str, version: str, state: str) -> str:
    if state == DISABLED:
        return f"gcloud secrets versions enable {version} --secret={name} --project={project}"
    return f"give it a new version: {add_command(name, project)}"


def grant_command(name: str, project: str, member: str = _ACCOUNTS) -> str:
    """Return the command that lets accounts read a secret whose name infra/gcp does not cover."""
    role = "roles/secretmanager.secretAccessor"
    return f"gcloud secrets add-iam-policy-binding {name} --project={project} --role={role} --member={member}"
