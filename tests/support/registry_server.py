"""A registry of container images, as far as manifests go: open, or for one user by either kind of login."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

USER, WORD = "me", "a-word-that-nobody-knows"
INDEX = "application/vnd.oci.image.index.v1+json"
ONE = "application/vnd.oci.image.manifest.v1+json"


class RegistryServer(AbstractContextManager["RegistryServer"]):
    """`asked` has the path and the kind of login of each request. `fails` is what it answers in place of a manifest."""

    def __init__(self, login: Literal["", "basic", "bearer"] = "", user: str = USER, word: str = WORD) -> None:
        self._login = login
        self._known = "Basic " + base64.b64encode(f"{user}:{word}".encode()).decode()
        self._manifests: dict[str, tuple[str, bytes]] = {}
        self.asked: list[tuple[str, str]] = []
        self.fails: int | None = None
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry._answer(self)

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def put(self, name: str, content: Any, kind: str = ONE) -> str:
        """Its digest. `name` is `PATH:TAG`."""
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        path, _, tag = name.partition(":")
        self._manifests |= {f"/v2/{path}/manifests/{name}": (kind, data) for name in (tag, digest)}
        return digest

    def put_image(self, name: str, *sizes: int) -> str:
        return self.put(name, {"schemaVersion": 2, "layers": [{"size": size} for size in sizes]})

    def put_index(self, name: str, *machines: str) -> str:
        images = [{"platform": {"os": "linux", "architecture": machine}} for machine in machines]
        return self.put(name, {"schemaVersion": 2, "manifests": images}, INDEX)

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        login = request.headers.get("Authorization", "")
        self.asked.append((request.path, login.partition(" ")[0]))
        known = login == self._known
        if urlsplit(request.path).path == "/token":
            scope = parse_qs(urlsplit(request.path).query)["scope"][0]
            token = f"of {scope}" if known else "of nobody"
            _send(request, 200 if known or not login else 401, json.dumps({"token": token}).encode())
            return
        if self._login == "bearer":
            path = request.path.removeprefix("/v2/").partition("/manifests/")[0]
            scope = f"repository:{path}:pull"
            challenge = f'Bearer realm="http://{self.host}/token",service="here",scope="{scope}"'
            known = login == f"Bearer of {scope}"
        else:
            challenge = 'Basic realm="here"'
        if self._login and not known:
            _send(request, 401, b"{}", {"WWW-Authenticate": challenge})
        elif self.fails is not None:
            _send(request, self.fails, b"{}")
        elif (found := self._manifests.get(request.path)) is None:
            _send(request, 404, b"{}")
        else:
            _send(request, 200, found[1], {"Content-Type": found[0]})


def _send(request: BaseHTTPRequestHandler, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
    request.send_response(status)
    for name, value in (headers or {}).items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    request.wfile.write(data)
