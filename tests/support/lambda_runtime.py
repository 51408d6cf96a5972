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
import threading
import zipfile
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import distribution
from pathlib import Path
from types import TracebackType
from typing import Any, Self

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


class LambdaRuntime:
    """One execution environment. Its process is killed at the end, or by `kill`; the next call then starts another."""

    def __init__(self, archive: Path, folder: Path, environment: Mapping[str, str]) -> None:
        self._root, self._client = folder / "task", folder / "client"
        if not self._root.exists():
            with zipfile.ZipFile(archive) as zipped:
                zipped.extractall(self._root)
            _copy_client(self._client)
        (folder / "tmp").mkdir(exist_ok=True)
        self._folder, self._environment = folder, environment
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._answers: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._process: subprocess.Popen[bytes] | None = None
        self._number = 0
        self.begins: Callable[[int], None] = lambda pid: None
        """Told of each process that is started."""

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        self._server.shutdown()
        self._server.server_close()

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text()

    @property
    def resident_mb(self) -> float:
        """What the process has of memory."""
        assert self._process is not None
        text = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(text.partition("VmHWM:")[2].split()[0]) / 1024

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
        api = f"127.0.0.1:{self._server.server_port}"
        environment = {
            "PATH": os.defpath,
            "AWS_LAMBDA_RUNTIME_API": api,
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

    def next_event(self) -> dict[str, Any] | None:
        try:
            return self._events.get(timeout=0.2)
        except queue.Empty:
            return None

    def told(self, kind: str, answer: Any) -> None:
        self._answers.put((kind, answer))


def _handler_of(runtime: LambdaRuntime) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            assert self.path == f"{_PREFIX}invocation/next", self.path
            while (found := runtime.next_event()) is None:
                if self.connection.fileno() < 0 or _is_closed(self.connection):
                    return
            self._answer(
                200,
                json.dumps(found["event"]).encode(),
                {
                    "Lambda-Runtime-Aws-Request-Id": found["id"],
                    "Lambda-Runtime-Deadline-Ms": "99999999999999",
                    "Lambda-Runtime-Invoked-Function-Arn": "arn:aws:lambda:us-east-1:123456789012:function:function",
                },
            )

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"null")
            runtime.told(self.path.rpartition("/")[2], body)
            self._answer(202, b'{"status":"OK"}', {})

        def _answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for name, text in {**headers, "Content-Length": str(len(body)), "Content-Type": "application/json"}.items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


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
