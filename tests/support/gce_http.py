"""HTTP for the fake of Compute Engine: what comes in is answered by one object, in a thread for each connection."""

from __future__ import annotations

import json
import traceback
from datetime import datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from tests.support.gce_answers import Json, Refusal


class Answers(Protocol):
    """`faults` get what goes wrong in there."""

    faults: list[str]

    def now(self) -> datetime:
        """As answers are dated."""

    def answer(self, verb: str, target: str, token: str, text: bytes) -> Json:
        """
        Raises:
            Refusal: the answer is this error.
            ConnectionError: there is no answer.
        """


class GceHttp(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answers: Answers) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = answers

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asks may go at any time."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else an answer of two packets waits 40 ms for the first to be acknowledged
    server: GceHttp

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def do_PATCH(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        answers = self.server.answers
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        try:
            self._send(200, answers.answer(self.command, self.path, token if kind == "Bearer" else "", text))
        except Refusal as refusal:
            self._send(refusal.status, refusal.body)
        except ConnectionError:
            self.close_connection = True
        except Exception:  # noqa: BLE001 - a fault of ours is to fail the test
            answers.faults.append(traceback.format_exc())
            self._send(500, {"error": {"code": 500, "message": "see faults", "errors": []}})

    def _send(self, status: int, body: Json) -> None:
        text = json.dumps(body).encode()
        self.send_response_only(status)
        self.send_header("Date", format_datetime(self.server.answers.now(), usegmt=True))
        self.send_header("Content-Type", "application/json; charset=UTF-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Tests read what was asked."""
