"""
Serves the pages of `spotrun view` to browsers on this machine.

Other users of the machine can connect too, and so can a web page in the user's browser. But neither knows the random
word in the address, and every other address is refused.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from spotrun.errors import SpotrunError
from spotrun.view.pages import LIST, Pages

LOOPBACK = "127.0.0.1"
_OWN_HOST = re.compile(r"(localhost|127\.0\.0\.1)(:\d{1,5})?", re.ASCII | re.IGNORECASE)
"""
The Host headers that are accepted. A web page whose name suddenly leads to this machine (DNS rebinding) sends another
one. Any port is accepted, because ssh may forward another port to this one.
"""


def serve(pages: Pages, port: int, name: str = LIST) -> None:
    """
    Print the address of the page `name`, and serve all pages until a signal ends the command.

    Raises:
        SpotrunError: the command cannot listen at the port.
    """
    try:
        server = ViewServer(pages, port)
    except OSError as error:
        raise SpotrunError(
            f"cannot listen at {LOOPBACK}:{port}: {error.strerror}", hint="name another port, or leave out --port"
        ) from error
    print(f"serving {server.address}{name}; Ctrl-C ends it", flush=True)
    with server:
        server.serve_forever()


class ViewServer(ThreadingHTTPServer):
    def __init__(self, pages: Pages, port: int) -> None:
        self.pages = pages
        self.word = secrets.token_urlsafe(16)
        super().__init__((LOOPBACK, port), _Handler)

    @property
    def address(self) -> str:
        """The address of the list of runs. With a run's id at its end, it is the address of this run's page."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.word}/"


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer

    def do_GET(self) -> None:
        if not _OWN_HOST.fullmatch(self.headers.get("Host", "")):
            self._answer(HTTPStatus.FORBIDDEN, "use the address that spotrun view has printed")
            return
        _, *words = self.path.split("/", 2)
        known = len(words) == 2 and secrets.compare_digest(words[0].encode(), self.server.word.encode())
        made = self.server.pages.page(words[1]) if known else None
        if made is None:
            self._answer(HTTPStatus.NOT_FOUND, "there is no page at this address")
        elif made.failed:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, made.text)
        else:
            self._answer(HTTPStatus.OK, made.text, "html")

    def _answer(self, status: HTTPStatus, text: str, kind: str = "plain") -> None:
        body = text.encode(errors="replace")
        with contextlib.suppress(ConnectionError):  # the tab was closed meanwhile
            self.send_response(status)
            self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""
