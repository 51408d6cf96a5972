"""
A service of Cloud Run on this machine: the container of its newest revision as a process, which is started when it is
called first. Python is the one that runs here, without the packages that are installed here.

https://cloud.google.com/run/docs/container-contract
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from tests.support.eventually import eventually
from tests.support.http_server import HttpServer, Reply, Request
from tests.support.object_stores import free_ports

STARTS_WITHIN_S = 120.0
CALLED_WITHIN_S = 300.0


class CloudRun:
    """
    `service` tells what is deployed. Whoever calls needs the `token`. `surroundings` are variables by which the process
    finds a Google that is on this machine.
    """

    def __init__(
        self, folder: Path, token: str, service: Callable[[], Mapping[str, Any]], surroundings: Mapping[str, str]
    ) -> None:
        self._folder, self._token = folder, token
        self._service, self._surroundings = service, surroundings
        self._server = HttpServer(self._answer)
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._one_at_a_time = threading.Lock()
        self.uri = self._server.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_cold()
        self._server.close()

    @property
    def log(self) -> str:
        path = self._folder / "log"
        return path.read_text() if path.exists() else ""

    def is_cold(self) -> None:
        """Nobody has called it for a while."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def call(self, event: Mapping[str, Any], due_at: str | None = None) -> dict[str, Any]:
        """As Cloud Scheduler does. What it answers to that."""
        status, body = self.handed_on(json.dumps(event).encode(), f"Bearer {self._token}", due_at)
        assert status == 200, (status, body, self.log)
        found: dict[str, Any] = json.loads(body)
        return found

    def handed_on(self, body: bytes, authorization: str, due_at: str | None) -> tuple[int, bytes]:
        if authorization != f"Bearer {self._token}":
            return 403, b"<html>Your client does not have permission to get URL / from this server.</html>"
        with self._one_at_a_time:
            if self._process is None:
                self._start()
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=CALLED_WITHIN_S)
            headers = {} if due_at is None else {"X-CloudScheduler-ScheduleTime": due_at}
            connection.request("POST", "/", body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def _answer(self, request: Request) -> Reply:
        told = (request.headers.get("authorization", ""), request.headers.get("x-cloudscheduler-scheduletime"))
        return Reply(*self.handed_on(request.body, *told))

    def _start(self) -> None:
        (container,) = self._service()["template"]["containers"]
        (self._port,) = free_ports(1)
        assert container["command"] == ["python3"]
        told = {each["name"]: each["value"] for each in container["env"]}
        environment = {"PATH": os.defpath, "TMPDIR": str(self._folder), "PORT": str(self._port), **told}
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", "-B", *container["args"]],
                env={**environment, **self._surroundings},
                cwd=self._folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        eventually(self._listens, within_s=STARTS_WITHIN_S)

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log
        try:
            http.client.HTTPConnection("127.0.0.1", self._port, timeout=5).connect()
        except OSError:
            return False
        return True
