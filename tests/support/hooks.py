"""A real web server that news are posted to, with the manners that a test wants of it."""

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
    """To the client, for a server that answers in its own way."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Manners = Callable[["Hook", Posted], int | None]
"""The status to answer with; None: no answer at all, ever. It may wait on `hook.over`, which is set at the end."""


def polite(_: Hook, __: Posted) -> int:
    return 200


def hanging(hook: Hook, _: Posted) -> None:
    hook.over.wait()


def dripping(hook: Hook, posted: Posted) -> None:
    """A first line that never ends, a byte now and then: no time-out of a socket ever passes."""
    while not hook.over.wait(0.05):
        posted.line.write(b"a")


class Hook(AbstractContextManager["Hook"]):
    def __init__(self, manners: Manners = polite) -> None:
        self.posted: list[Posted] = []
        self.over = threading.Event()
        self.manners = manners
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                posted = Posted(self.path, dict(self.headers.items()), body, self.wfile)
                hook.posted.append(posted)
                status = hook.manners(hook, posted)
                if status is not None:
                    self.send_response(status)
                    self.send_header("Location", hook.url)
                    self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # the other side has left

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/services/T00000000/path-that-is-secret"

    @property
    def events(self) -> list[str]:
        return [posted.json["event"] for posted in list(self.posted)]

    def __enter__(self) -> Hook:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
