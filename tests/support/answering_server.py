"""A real web server that answers one request after the other as a test says, and gives tokens to who logs in."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from tests.support.http_server import HttpServer, Reply, Request

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


class AnsweringServer:
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
        self._server = HttpServer(self._reply)

    @property
    def url(self) -> str:
        return self._server.url

    def _reply(self, request: Request) -> Reply | None:
        how = self.answer(request.verb, request.target, request.headers.get("authorization", ""), request.body)
        if how is Hang:
            self.over.wait()
        if not isinstance(how, Answer):
            return None
        body = how.body if isinstance(how.body, str) else json.dumps(how.body)
        return Reply(how.status, body.encode(), how.headers)

    def answer(self, method: str, path: str, authorization: str, text: bytes) -> How:
        if path == TOKENS:
            self.tokens += 1
            return self.login or Answer(body={"access_token": f"token-{self.tokens}", "expires_in": 3600})
        body = json.loads(text) if text.startswith(b"{") else text.decode() or None
        self.asked.append(Asked(method, path, authorization.removeprefix("Bearer "), body))
        return self.answers[min(len(self.asked), len(self.answers)) - 1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._server.close()
