"""The front end of a GoogleCloud for clients by HTTP: gcloud, libcloud, Google's libraries, and our own driver."""

from __future__ import annotations

import threading
import traceback
from email.utils import format_datetime
from pathlib import Path
from typing import Self

import pytest

from tests.support.gce_agenda import Now
from tests.support.gce_lives import NoMachines
from tests.support.google_cloud import COMPUTE, TOKEN_PATH, GoogleCloud, Hang, Lost
from tests.support.google_login import TOKEN, log_in
from tests.support.http_server import HttpServer, Reply, Request, as_json

_ROOTS = {
    "COMPUTE": COMPUTE.removeprefix("/"),
    "STORAGE": "storage/v1/",
    **dict.fromkeys(("CLOUDBILLING", "CLOUDRESOURCEMANAGER", "CLOUDSCHEDULER", "IAM", "IAMCREDENTIALS"), ""),
    **dict.fromkeys(("RUN", "SECRETMANAGER"), ""),
}
"""How the addresses of each API begin, as gcloud's overrides name them."""


class GoogleServer(GoogleCloud):
    """
    What hangs ends with the server, or by `release`. A test that leaves it fails if Google's description has found a
    fault.
    """

    def __init__(self, clock: Now, objects: str = "") -> None:
        super().__init__(clock, objects)
        self._released = threading.Event()
        self._over = threading.Event()
        self._server = HttpServer(self._served)
        self.url = self._server.url

    def __enter__(self) -> Self:
        if not isinstance(self.project.machines, NoMachines):
            threading.Thread(target=self._keep_time, name="google's clock", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        self._over.set()
        self._released.set()
        self._server.close()
        assert kind is not None or self.faults == []

    @property
    def compute_url(self) -> str:
        return f"{self.url}{COMPUTE}"

    @property
    def environment(self) -> dict[str, str]:
        """With which gcloud finds it, and whoever reads the same variables."""
        overrides = {f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}": f"{self.url}/{root}" for name, root in _ROOTS.items()}
        objects = {"API_ENDPOINT_OVERRIDE": self.url} if self.objects else {}
        return {**overrides, **objects, "CLOUDSDK_CORE_PROJECT": self.project.name}

    def reach(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        """Let clients of this test find it by themselves, and log in as the runner, by a file that is put there."""
        for name, text in self.environment.items():
            monkeypatch.setenv(name, text)
        log_in(monkeypatch, folder / "login.json", f"{self.url}{TOKEN_PATH}", TOKEN)

    def release(self) -> None:
        """Whoever hangs gets a connection that ends."""
        released, self._released = self._released, threading.Event()
        released.set()

    def _served(self, request: Request) -> Reply | None:
        try:
            reply = self.answer(request)
        except Lost:
            return None
        except Hang:
            self._released.wait()
            return None
        except Exception:  # noqa: BLE001 - a fault of ours is to fail the test
            self.faults.append(traceback.format_exc())
            reply = as_json({"error": {"code": 500, "message": "see faults", "errors": []}}, 500)
        date = format_datetime(self.project.clock.now(), usegmt=True)
        return reply._replace(headers={"Date": date, **reply.headers})

    def _keep_time(self) -> None:
        """Machines are told what happens to them, also while nobody asks."""
        while not self._over.wait(0.02):
            self.project.settle()
