"""A real web server that answers one request after the other as a test says, and gives tokens to who logs in."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple

TOKENS = "/token"


class Answer(NamedTuple):
    """`body` is JSON unless it is text. A `Date` is sent if it is among `headers`."""

    status: int = 200
    body: Any = "{}"
    headers: Mapping[str, str] = {}


class Hang:
    """In place of an answer: none, until the server ends."""


class Cut:
    """In place of an answer: the end of the connection."""


How = Answer | type[Hang] | type[Cut]


class Asked(NamedTuple):
    method: str
    path: str
    token: str
    body: Any


class AnsweringServer(AbstractContextManager["AnsweringServer"]):
    """
    `answers` are those of the requests to come; the last one stays. `login` answers whoever wants a token; without it
    each gets another one: `token-1`, `token-2` and so on.
    """

    def __init__(self, *answers: How) -> None:
        self.answers: Sequence[How] = list(answers)
        self.login: How | None = None
        self.asked: list[Asked] = []
        self.tokens = 0
        self.over = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def answer(self) -> None:
                text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                how = server.answer(self.command, self.path, self.headers.get("Authorization", ""), text)
                if how is Hang:
                    server.over.wait()
                if isinstance(how, Answer):
                    self.send(how)
                else:
                    self.close_connection = True

            def send(self, answer: Answer) -> None:
                body = answer.body.encode() if isinstance(answer.body, str) else json.dumps(answer.body).encode()
                self.send_response_only(answer.status)
                for name, value in {"Content-Length": str(len(body)), **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_DELETE = do_CONNECT = answer

            def log_message(self, *_: object) -> None:
                """Tests read `asked`."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """Who asks may go at any time."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, method: str, path: str, authorization: str, text: bytes) -> How:
        if path == TOKENS:
            self.tokens += 1
            return self.login or Answer(body={"access_token": f"token-{self.tokens}", "expires_in": 3600})
        body = json.loads(text) if text.startswith(b"{") else text.decode() or None
        self.asked.append(Asked(method, path, authorization.removeprefix("Bearer "), body))
        return self.answers[min(len(self.asked), len(self.answers)) - 1]

    def __enter__(self) -> AnsweringServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
