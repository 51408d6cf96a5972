"""A web server for webhooks. The test says how it answers: properly, never, or a byte at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.support.http_server import HttpServer, Reply, Request

Answer = Callable[["WebhookServer", Request], int | None]
"""Returns the status to answer with, or None for no answer at all. It may wait on `over`, which is set at the end."""


def accepting(_: WebhookServer, __: Request) -> int:
    return 200


def hanging(server: WebhookServer, _: Request) -> None:
    server.over.wait()


def dripping(server: WebhookServer, posted: Request) -> None:
    """Send a first line that never ends, a byte now and then, so that no socket ever times out."""
    while not server.over.wait(0.05):
        assert posted.connection is not None
        posted.connection.sendall(b"a")


class WebhookServer(HttpServer):
    def __init__(self, answer: Answer = accepting) -> None:
        super().__init__(self._reply)
        self.url += "/services/T00000000/path-that-is-secret"
        self.posted: list[Request] = []
        self.over = threading.Event()
        self.answer = answer

    def close(self) -> None:
        self.over.set()
        super().close()

    def _reply(self, posted: Request) -> Reply | None:
        self.posted.append(posted)
        status = self.answer(self, posted)
        return None if status is None else Reply(status, headers={"Location": self.url})

    @property
    def events(self) -> list[str]:
        return [posted.json["event"] for posted in list(self.posted)]
