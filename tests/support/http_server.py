"""An HTTP server on this machine: a function answers each request, on a thread for each connection."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import socket
from typing import Any, NamedTuple, Self


class Request(NamedTuple):
    """`target` is a path with its query. Names of headers are in lower case."""

    verb: str
    target: str
    headers: Mapping[str, str] = {}
    body: bytes = b""
    connection: socket | None = None
    """For an answer that is no HTTP, and for whether the client is still there."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def bearer(self) -> str:
        """The caller's token; "" if there is none."""
        kind, _, token = self.headers.get("authorization", "").partition(" ")
        return token if kind == "Bearer" else ""


class Reply(NamedTuple):
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = {}


def as_json(body: object, status: int = 200) -> Reply:
    return Reply(status, json.dumps(body).encode(), {"Content-Type": "application/json; charset=UTF-8"})


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A client may go at any time."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else an answer of two packets waits 40 ms for the first to be acknowledged

    def log_message(self, *_: object) -> None:
        """Tests read what was asked."""


class HttpServer:
    """It serves until `close`. Where `answer` returns None the connection ends without an answer."""

    def __init__(self, answer: Callable[[Request], Reply | None]) -> None:
        class Answering(Handler):
            def answer(self) -> None:
                text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                reply = answer(Request(self.command, self.path, headers, text, self.connection))
                if reply is None:
                    self.close_connection = True
                    return
                self.send_response_only(reply.status)
                for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_CONNECT = answer

        self._server = Server(("127.0.0.1", 0), Answering)
        self.host = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.host}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
