"""
Reads the latest versions of secrets from Google Cloud Secret Manager, with the service account of an instance.

https://cloud.google.com/secret-manager/docs/reference/rest/v1/projects.secrets.versions/access
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import google.auth
import google_crc32c
import requests
from google.auth import exceptions as auth
from google.auth.transport.requests import AuthorizedSession
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from spotrun.errors import StoreUnavailable
from spotrun.secrets.reference import SECRETS, SecretUnreadable, add_command, add_encoded_command, create_command

NAME = "secretmanager"
ROOT = f"https://{NAME}.googleapis.com/"
OVERRIDE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER"
"""Environment variable that names another server instead of Google's. gcloud reads it too."""
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
ASK_AGAIN_FOR_S, ASK_AGAIN_EVERY_S = 60.0, 2.0
"""
Maximum seconds of retries after Google has denied access, and seconds between two tries. The service account of a run
is created together with the run, and it takes a while until all Google servers know the rights of a new account.
"""
_PATIENT, _HASTY = (5.0, 10.0), (2.0, 2.0)
"""
Pairs of limits: the maximum seconds to connect, and the maximum seconds to wait for an answer. The first pair is for an
instance, the second pair for a command whose user is waiting.
"""
_OK, _SERVER = 200, 500
_PASSING = (408, 429)
_LOG_IN = "log in by `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a key file"
_ENABLE = f"turn it on: gcloud services enable {NAME}.googleapis.com"
_RIGHT = (
    f"ask for {NAME}.versions.access (roles/{NAME}.secretAccessor); in a project with infra/gcp, the service account "
    f"of a run is allowed to read secrets whose names begin with {SECRETS}"
)

Answer = Mapping[str, Any]


class _Denied(SecretUnreadable):
    pass


def read_secrets(names: Sequence[str], rights_are_new: bool = True) -> dict[str, str]:
    """
    Return the secrets' values, keyed by name. If `rights_are_new`, retry for a while after a denial; otherwise a denial
    is final.

    Raises:
        SecretUnreadable: a secret is missing, has lost its value, is not text, or Google denies reading it.
        StoreUnavailable: Google does not answer now; a later call may succeed.
    """
    again = Retrying(
        retry=retry_if_exception_type((_Denied, StoreUnavailable) if rights_are_new else StoreUnavailable),
        wait=wait_fixed(ASK_AGAIN_EVERY_S),
        stop=stop_after_delay(ASK_AGAIN_FOR_S),
        reraise=True,
    )
    return again(_read, names, None, _PATIENT)


def read_at_once(names: Sequence[str], project: str) -> dict[str, str]:
    """
    Read secrets with only a few retries, and with none after a denial. Do not use this on a new instance: there, a
    retry after a denial can help, because Google may not know the instance's rights everywhere yet.
    """
    return _read(names, project, _HASTY)


def _read(names: Sequence[str], named: str | None, within_s: tuple[float, float]) -> dict[str, str]:
    with _translated(f"read {', '.join(names)}"):
        session, project = _logged_in(named)
        found: dict[str, str] = {}
        failures: list[SecretUnreadable] = []
        for name in names:
            try:
                found[name] = _value(session, project, name, within_s)
            except SecretUnreadable as failure:
                failures.append(failure)
        if failures:
            raise _of_all(failures)
        return found


def _of_all(failures: Sequence[SecretUnreadable]) -> SecretUnreadable:
    """
    Combine all failures into one error, so that the user can correct all of these secrets before paying for another
    instance.
    """
    kind = _Denied if all(isinstance(each, _Denied) for each in failures) else SecretUnreadable
    hints = dict.fromkeys(each.hint for each in failures if each.hint)
    return kind("; ".join(each.message for each in failures), hint="; ".join(hints))


def _logged_in(named: str | None) -> tuple[requests.Session, str]:
    """
    Return a session with the default credentials, and the project in which the secrets are: `named` or, if that is
    None, the project of the credentials.

    Raises:
        SecretUnreadable: `named` is None, and the credentials belong to no project.
    """
    credentials, of_login = google.auth.default(scopes=[SCOPE])
    project = named or of_login
    if not project:
        raise SecretUnreadable("no Google Cloud project is named", hint="set GOOGLE_CLOUD_PROJECT")
    return AuthorizedSession(credentials), project  # type: ignore[no-untyped-call]


def _value(session: requests.Session, project: str, name: str, within_s: tuple[float, float]) -> str:
    root = os.environ.get(OVERRIDE) or ROOT
    url = f"{root.rstrip('/')}/v1/projects/{project}/secrets/{name}/versions/latest:access"
    answer = session.get(url, timeout=within_s, allow_redirects=False)
    told = _json(answer)
    if answer.status_code != _OK:
        raise _refused(project, name, answer.status_code, told)
    return _text(project, name, told)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except auth.GoogleAuthError as error:
        said = f"cannot {what} in Secret Manager: {str(error)[:400]}"
        if isinstance(error, auth.TransportError) or error.retryable:
            raise StoreUnavailable(said) from error
        raise SecretUnreadable(said, hint=_LOG_IN) from error
    except requests.exceptions.RequestException as error:
        raise StoreUnavailable(f"cannot {what}: Secret Manager does not answer: {str(error)[:400]}") from error


def _refused(project: str, name: str, status: int, told: Answer) -> SecretUnreadable | StoreUnavailable:
    fault = told.get("error")
    fault = fault if isinstance(fault, dict) else {}
    what = f"Secret Manager did not give {name} in {project}: {fault.get('message') or f'HTTP {status}'}"
    if status >= _SERVER or status in _PASSING or not fault:
        return StoreUnavailable(what)  # an answer without a Google error comes from a proxy, not from Google
    match status:
        case 404:
            what = f"there is no secret {name} in {project}, or it has no version"
            return SecretUnreadable(what, hint=create_command(name, project))
        case 400 if fault.get("status") == "FAILED_PRECONDITION":  # Google's message says: disabled or destroyed
            return SecretUnreadable(what, hint=f"add a new version of it: {add_command(name, project)}")
        case 403 if "SERVICE_DISABLED" in str(fault.get("details")):
            return SecretUnreadable(what, hint=_ENABLE)
        case 403:
            return _Denied(what, hint=_RIGHT)
        case 401:  # Google may give this answer for a new account
            return _Denied(what, hint=_LOG_IN)
    return SecretUnreadable(what)


def _text(project: str, name: str, told: Answer) -> str:
    """
    Return the secret's value from Secret Manager's answer, decoded to text.

    Raises:
        StoreUnavailable: the answer was damaged in transit.
        SecretUnreadable: the value cannot be an environment variable.
    """
    payload = told.get("payload")
    payload = payload if isinstance(payload, dict) else {}
    try:
        data = base64.b64decode(str(payload["data"]), validate=True)
        sent = int(payload.get("dataCrc32c", _crc32c(data)))
    except (KeyError, ValueError, binascii.Error):
        raise StoreUnavailable(f"Secret Manager's answer for {name} is damaged") from None  # the cause may quote it
    if sent != _crc32c(data):
        raise StoreUnavailable(f"the value of {name} was damaged in transit: it does not match its checksum")
    if b"\0" in data:
        raise _no_text(project, name)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _no_text(project, name) from None


def _no_text(project: str, name: str) -> SecretUnreadable:
    what = f"the latest version of {name} in {project} is not text, so it cannot be a variable"
    return SecretUnreadable(
        what, hint=f"store it in base64, and decode it in the script: {add_encoded_command(name, project)}"
    )


def _crc32c(data: bytes) -> int:
    found: int = google_crc32c.value(data)
    return found


def _json(answer: requests.Response) -> Answer:
    try:
        found = answer.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
