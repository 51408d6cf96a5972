"""A registry of container images, as far as manifests go: open, or for one user by either kind of login."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from tests.support.http_server import HttpServer, Reply, Request, as_json

USER, WORD = "me", "a-word-that-nobody-knows"
INDEX = "application/vnd.oci.image.index.v1+json"
ONE = "application/vnd.oci.image.manifest.v1+json"


class RegistryServer(HttpServer):
    """`asked` has the path and the kind of login of each request. `fails` is what it answers in place of a manifest."""

    def __init__(self, login: Literal["", "basic", "bearer"] = "", user: str = USER, word: str = WORD) -> None:
        self._login = login
        self._known = "Basic " + base64.b64encode(f"{user}:{word}".encode()).decode()
        self._manifests: dict[str, tuple[str, bytes]] = {}
        self.asked: list[tuple[str, str]] = []
        self.fails: int | None = None
        super().__init__(self._answer)

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

    def _answer(self, request: Request) -> Reply:
        login = request.headers.get("authorization", "")
        self.asked.append((request.target, login.partition(" ")[0]))
        known = login == self._known
        if urlsplit(request.target).path == "/token":
            scope = parse_qs(urlsplit(request.target).query)["scope"][0]
            token = f"of {scope}" if known else "of nobody"
            return as_json({"token": token}, 200 if known or not login else 401)
        if self._login == "bearer":
            path = request.target.removeprefix("/v2/").partition("/manifests/")[0]
            scope = f"repository:{path}:pull"
            challenge = f'Bearer realm="{self.url}/token",service="here",scope="{scope}"'
            known = login == f"Bearer of {scope}"
        else:
            challenge = 'Basic realm="here"'
        if self._login and not known:
            return Reply(401, b"{}", {"WWW-Authenticate": challenge})
        if self.fails is not None:
            return Reply(self.fails, b"{}")
        kind, data = self._manifests.get(request.target, ("", b"{}"))
        return Reply(200, data, {"Content-Type": kind}) if kind else Reply(404, data)
