"""
A user's login to Google Cloud, as gcloud leaves it in a file:
https://cloud.google.com/docs/authentication/application-default-credentials
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
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


def log_out(monkeypatch: pytest.MonkeyPatch, empty: Path) -> None:
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(empty / "no-gcloud"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
