"""
A user's login to Google Cloud, as gcloud leaves it in a file:
https://cloud.google.com/docs/authentication/application-default-credentials
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.auth import iam
from google.oauth2 import credentials

from tests.support.gce_catalog import PROJECT

TOKEN = "ya29.c.a-token_of.tests"
"""Of the runner, and what the metadata server of tests gives to whoever asks."""
LASTING = "2100-01-01T00:00:00Z"


def log_in(
    monkeypatch: pytest.MonkeyPatch, path: Path, tokens_from: str = "", token: str = "", project: str = PROJECT
) -> None:
    """
    With a file at `path`, and nothing else that is on this machine. With a `token` that lasts, or with one that is
    asked for at `tokens_from`; Google's library names that address in no file.
    """
    log_out(monkeypatch, path.parent)
    write_login(path, token)
    monkeypatch.setattr(credentials, "_GOOGLE_OAUTH2_TOKEN_ENDPOINT", tokens_from or "http://127.0.0.1:9/token")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    if project:
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", project)


def write_login(path: Path, token: str) -> None:
    """The file, whole or not at all."""
    login = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    new = path.with_suffix(".new")
    new.write_text(json.dumps({**login, **({"token": token, "expiry": LASTING} if token else {})}))
    new.rename(path)


def federate(path: Path, server: str, token_file: Path) -> None:
    """A login of a workload identity pool at `path`, whose tokens are exchanged at `server`."""
    pool = "locations/global/workloadIdentityPools/ci/providers/github"
    login = {
        "type": "external_account",
        "audience": f"//iam.googleapis.com/projects/123/{pool}",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{server}/token",
        "credential_source": {"file": str(token_file)},
    }
    path.write_text(json.dumps(login))


def impersonate(monkeypatch: pytest.MonkeyPatch, path: Path, server: str, email: str) -> None:
    """A user's login at `path` that impersonates a service account, of which `server` gives tokens."""
    monkeypatch.setattr(iam, "_IAM_ENDPOINT", f"{server}/v1/projects/-/serviceAccounts/{{}}:generateAccessToken")
    source = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    login = {
        "type": "impersonated_service_account",
        "service_account_impersonation_url": iam._IAM_ENDPOINT.format(email),
        "source_credentials": source,
    }
    path.write_text(json.dumps(login))


def log_out(monkeypatch: pytest.MonkeyPatch, empty: Path) -> None:
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(empty / "no-gcloud"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
