"""
The Runtime API of AWS Lambda on this machine, and its own Python client, which runs the function of an archive as AWS
does: https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html

    with LambdaRuntime(archive, folder, environment) as function:
        answer = function.call({"kind": "tick"})
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from tests.support.http_server import HttpServer, Reply, Request, as_json

HANDLER = "spotrun.night.function.handler"
CLIENT = ("awslambdaric", "simplejson", "snapshot-restore-py")
WITHIN_S = 400.0
_PREFIX = "/2018-06-01/runtime/"
_BEGIN = """
import sys
sys.path[:0] = sys.argv[1:3]
sys.argv = ["awslambdaric", sys.argv[3]]
from awslambdaric.__main__ import main
main(sys.argv)
"""
"""Without the packages of this environment: those of the archive, and the client's own, are all that there are."""


class Failed(Exception):
    """The function ended with an error, or the process did."""


class LambdaRuntime(HttpServer):
    """One execution environment. Its process is killed at the end, or by `kill`; the next call then starts another."""

    def __init__(self, archive: Path, folder: Path, environment: Mapping[str, str]) -> None:
        super().__init__(self._answer)
        self._root, self._client = folder / "task", folder / "client"
        if not self._root.exists():
            with zipfile.ZipFile(archive) as zipped:
                zipped.extractall(self._root)
            _copy_client(self._client)
        (folder / "tmp").mkdir(exist_ok=True)
        self._folder, self._environment = folder, environment
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._answers: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._process: subprocess.Popen[bytes] | None = None
        self._number = 0
        self.begins: Callable[[int], None] = lambda pid: None
        """Told of each process that is started."""

    def close(self) -> None:
        self.kill()
        super().close()

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def call(self, event: Mapping[str, Any], within_s: float = WITHIN_S) -> Any:
        """
        What the function answers.

        Raises:
            Failed: it raised, with its error as the client reports it.
        """
        self.begin(event)
        try:
            kind, answer = self._answers.get(timeout=within_s)
        except queue.Empty:
            raise Failed(f"no answer within {within_s:g} s: {self.log}") from None
        if kind != "response":
            raise Failed(answer)
        return answer

    def begin(self, event: Mapping[str, Any]) -> None:
        """Call it, and wait for no answer."""
        if self._process is None:
            self._start()
        self._number += 1
        self._events.put({"id": f"request-{self._number}", "event": dict(event)})

    def _start(self) -> None:
        environment = {
            "PATH": os.defpath,
            "AWS_LAMBDA_RUNTIME_API": self.host,
            "AWS_LAMBDA_FUNCTION_NAME": "function",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "256",
            "LAMBDA_TASK_ROOT": str(self._root),
            "_HANDLER": HANDLER,
            "HOME": str(self._folder / "tmp"),
            "TMPDIR": str(self._folder / "tmp"),
            "PYTHONDONTWRITEBYTECODE": "1",
            **self._environment,
        }
        command = [sys.executable, "-S", "-E", "-c", _BEGIN, str(self._root), str(self._client), HANDLER]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, cwd=self._root, stdout=log, stderr=subprocess.STDOUT
            )
        self.begins(self._process.pid)

    # -- what the client asks ----------------------------------------------------------------------------------------

    def _answer(self, request: Request) -> Reply | None:
        if request.verb == "POST":
            self._answers.put((request.target.rpartition("/")[2], json.loads(request.body or b"null")))
            return as_json({"status": "OK"}, 202)
        assert request.target == f"{_PREFIX}invocation/next", request.target
        line = request.connection
        while (found := self._next_event()) is None:
            if line is None or line.fileno() < 0 or _is_closed(line):
                return None
        told = {
            "Lambda-Runtime-Aws-Request-Id": found["id"],
            "Lambda-Runtime-Deadline-Ms": "99999999999999",
            "Lambda-Runtime-Invoked-Function-Arn": "arn:aws:lambda:us-east-1:123456789012:function:function",
        }
        return Reply(200, json.dumps(found["event"]).encode(), {"Content-Type": "application/json", **told})

    def _next_event(self) -> dict[str, Any] | None:
        try:
            return self._events.get(timeout=0.2)
        except queue.Empty:
            return None


def _is_closed(connection: Any) -> bool:
    """Whether the client has gone: it sends nothing while it waits."""
    import select
    import socket

    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable) and not connection.recv(1, socket.MSG_PEEK)


def _copy_client(folder: Path) -> None:
    for name in CLIENT:
        for file in distribution(name).files or ():
            if ".." not in file.parts and file.suffix != ".pyc":
                target = folder / str(file)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(Path(str(file.locate())).read_bytes())
