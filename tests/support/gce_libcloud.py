"""apache-libcloud, a client that is not ours, on the fake of Compute Engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from libcloud.compute.drivers.gce import GCEConnection, GCENodeDriver

from tests.support.gce_calls import ZONE
from tests.support.google_login import TOKEN
from tests.support.google_server import GoogleServer


def libcloud_on(gce: GoogleServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    token = folder / "token"
    token.write_text(json.dumps({"access_token": TOKEN, "expire_time": "2100-01-01T00:00:00Z"}))
    monkeypatch.setattr(GCEConnection, "base_url", gce.url, raising=False)
    monkeypatch.setattr(GCEConnection, "poll_interval", 0.01)
    return GCENodeDriver(
        "runner@example.com",
        "the key is not asked for",
        datacenter=ZONE,
        project=gce.project.name,
        auth_type="GCE",
        credential_file=str(token),
        secure=False,
    )
