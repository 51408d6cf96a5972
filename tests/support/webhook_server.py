"""A real web server for webhooks. The test says how it answers: properly, never, or a byte at a time."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import IO, Any


@dataclass(frozen=True)
class Posted:
    path: str
    headers: dict[str, str]
    body: bytes
    line: IO[bytes]
    """The connection to the client, for an answer that writes on it directly."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answer = Callable[["WebhookServer", Posted], int | None]
"""Returns the status to answer with, or None for no answer at all. It may wait on `over`, which is set at the end."""


def accepting(_: WebhookServer, __: Posted) -> int:
    return 200


def hanging(server: WebhookServer, _: Posted) -> None:
    server.over.wait()


def dripping(server: WebhookServer, posted: Posted) -> None:
    """Send a first line that never ends, a byte now and then, so that no socket ever times out."""
    while not server.over.wait(0.05):
        posted.line.write(b"a")


class WebhookServer(AbstractContextManager["WebhookServer"]):
    def __init__(self, answer: Answer = accepting) -> None:
        self.posted: list[Posted] = []
        self.over = threading.Event()
        self.answer = answer
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                posted = Posted(self.path, dict(self.headers.items()), body, self.wfile)
                server.posted.append(posted)
                status = server.answer(server, posted)
                if status is not None:
                    self.send_response(status)
                    self.send_header("Location", server.url)
                    self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # the client has gone

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/services/T00000000/path-that-is-secret"

    @property
    def events(self) -> list[str]:
        return [posted.json["event"] for posted in list(self.posted)]

    def __enter__(self) -> WebhookServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
