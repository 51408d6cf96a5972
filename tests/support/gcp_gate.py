"""
IAM and Cloud Storage over HTTP, before a real object store: who asks is known by a token, and what they may do is what
the policies of a GoogleProject say.

Service accounts and managed folders are the project's own. Objects are fake-gcs-server's, which asks nobody for
anything: a call for one is handed on if each permission that it needs is granted. Google's own description checks every
call, and every answer of the project.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import pytest

from tests.support.gcp_permissions import OVERWRITING, needed
from tests.support.gcp_project import PROJECT, RUNNER, GoogleProject, Refusal
from tests.support.google_api import Called, GoogleApi, Unknown
from tests.support.object_stores import BUCKET

RUNNERS_TOKEN = "ya29.a0-of_the-runner"
_NO_LONGER = "2099-01-01T00:00:00Z"
_CARRIED = ("content-type", "content-encoding", "content-range", "range", "x-goog-hash", "accept", "accept-encoding")
_BROUGHT_BACK = ("content-type", "content-range", "location", "range", "x-goog-hash", "x-goog-generation", "etag")


class Asked(NamedTuple):
    """A call that has arrived, whatever became of it. `name` is that of the object that it is for."""

    method: str
    member: str
    name: str
    body: Any


class Reply(NamedTuple):
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}


class Gate:
    """
    `denied` has who was refused which permission, and `changed` who overwrote or deleted which object. `faults` is what
    Google's description has found, and stays empty in any test that passes.
    """

    def __init__(self, project: GoogleProject, objects: str) -> None:
        self.project = project
        self.asked: list[Asked] = []
        self.denied: list[tuple[str, str]] = []
        self.changed: set[tuple[str, str]] = set()
        self.faults: list[str] = []
        self._objects = urlsplit(objects).netloc
        self._tokens = {RUNNERS_TOKEN: (RUNNER, "")}
        self._lost: set[str] = set()
        self._instead: dict[str, list[Reply]] = {}
        self._before: dict[str, Callable[[], None]] = {}
        self._api = _api()
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.gate = self
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        project.objects_below = self._has_objects

    # -- what tests do -------------------------------------------------------------------------------------------

    def reach(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        """The runner of this process is logged in, and its calls arrive here."""
        path = folder / "application_default_credentials.json"
        write_login(path, RUNNERS_TOKEN)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", PROJECT)
        for name in ("IAM", "SECRETMANAGER"):
            monkeypatch.setenv(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}", f"{self.endpoint}/")
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", f"{self.endpoint}/storage/v1/")

    def token_of(self, email: str) -> str:
        """What the metadata of an instance gives that has this account."""
        token = f"ya29.c.{len(self._tokens)}-of_{email.partition('@')[0]}"
        self._tokens[token] = (f"serviceAccount:{email}", self.project.accounts[email]["uniqueId"])
        return token

    def lose_answer(self, method: str) -> None:
        """Of the next call: it is carried out, and its caller hears nothing."""
        self._lost.add(method)

    def refuse(self, method: str, status: int, body: Mapping[str, Any], times: int = 1) -> None:
        """The next calls are answered with this, and not carried out."""
        self._instead.setdefault(method, []).extend([Reply(status, json.dumps(body).encode())] * times)

    def before(self, method: str, happens: Callable[[], None]) -> None:
        """Something that happens right before the next call is carried out."""
        self._before[method] = happens

    def count(self, method: str) -> int:
        return sum(each.method == method for each in self.asked)

    # -- what is answered ----------------------------------------------------------------------------------------

    def answer(self, verb: str, target: str, headers: Mapping[str, str], body: bytes) -> Reply | None:
        """None is no answer."""
        if verb == "PUT" and "upload_id=" in target:
            return self._hand_on(verb, target, headers, body)  # an upload that was begun needs no more than that
        try:
            called = self._api.called(verb, target.removeprefix("/download"))
        except Unknown as error:
            self.faults.append(str(error))
            return Reply(404)
        self._before.pop(called.method.id, lambda: None)()
        with self._lock:
            reply = self._answer(called, verb, target, headers, body)
            if called.method.id in self._lost:
                self._lost.remove(called.method.id)
                return None
            return reply

    def _answer(self, called: Called, verb: str, target: str, headers: Mapping[str, str], body: bytes) -> Reply:
        method, told = called.method.id, _told(called, headers, body)
        self.faults += [*called.faults, *self._api.request_faults(called, told)]
        member = self._member(headers.get("authorization", ""))
        name = _name_of(called, told or {})
        self.asked.append(Asked(method, member, name, told))
        if self._instead.get(method):
            return self._instead[method].pop(0)
        service = called.method.service.partition(".")[0]
        try:
            self._check(member, called, told or {}, name)
            if method.startswith("storage.objects."):
                return self._hand_on(verb, target, headers, body)
            found = self.project.answer(called, told or {})
        except Refusal as refusal:
            return _as_json(refusal.status, refusal.body(service))
        self.faults += self._api.answer_faults(called, found)
        return Reply(204) if found is None else _as_json(200, found)

    def _member(self, authorization: str) -> str:
        """Whose token it is; a token of an account that was deleted is nobody's."""
        member, unique_id = self._tokens.get(authorization.removeprefix("Bearer "), ("", ""))
        account = self.project.accounts.get(member.removeprefix("serviceAccount:"), {})
        return member if account.get("uniqueId", "") == unique_id else ""

    def _check(self, member: str, called: Called, body: Mapping[str, Any], name: str) -> None:
        """
        Raises:
            Refusal: whoever asks may not.
        """
        if not member:
            raise Refusal(401, "Invalid Credentials", "authError")
        asks = needed(called.method.id, body, called.query)
        if OVERWRITING in asks and called.method.id == "storage.objects.insert" and not self._is_there(name):
            asks.discard(OVERWRITING)
        for permission in sorted(asks):
            if not self.project.may(member, permission, called, name):
                self.denied.append((member, permission))
                what = f"does not have {permission} access. Permission '{permission}' denied on resource"
                raise Refusal(403, f"{member.partition(':')[2]} {what} (or it may not exist).", "forbidden")
        if OVERWRITING in asks:
            self.changed.add((member, name))

    # -- the objects ---------------------------------------------------------------------------------------------

    def _hand_on(self, verb: str, target: str, headers: Mapping[str, str], body: bytes) -> Reply:
        carried = {name: headers[name] for name in _CARRIED if name in headers}
        found = self._asked_of_objects(verb, target, carried, body)
        brought = {name: found.headers[name] for name in _BROUGHT_BACK if name in found.headers}
        if "location" in brought:
            brought["location"] = brought["location"].replace(self._objects, urlsplit(self.endpoint).netloc)
        return Reply(found.status, found.body, brought)

    def _asked_of_objects(self, verb: str, target: str, headers: Mapping[str, str] = {}, body: bytes = b"") -> Reply:
        connection = http.client.HTTPConnection(self._objects, timeout=30)
        try:
            connection.request(verb, target, body or None, dict(headers))
            answer = connection.getresponse()
            told = {name.lower(): text for name, text in answer.getheaders()}
            return Reply(answer.status, answer.read(), told)
        finally:
            connection.close()

    def _is_there(self, name: str) -> bool:
        return self._asked_of_objects("GET", f"/storage/v1/b/{BUCKET}/o/{quote(name, safe='')}").status == 200

    def _has_objects(self, folder: str) -> bool:
        target = f"/storage/v1/b/{BUCKET}/o?maxResults=1&prefix={quote(folder, safe='')}"
        return bool(json.loads(self._asked_of_objects("GET", target).body).get("items"))

    # -- its life ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), name="gate", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def gate_before(objects: str) -> Iterator[Gate]:
    """A new project, its bucket's objects in the fake-gcs-server at `objects`."""
    gate = Gate(GoogleProject(), objects)
    gate.start()
    try:
        yield gate
    finally:
        gate.close()
    assert gate.faults == []


def write_login(path: Path, token: str) -> None:
    """A file as gcloud writes it, whole or not at all."""
    login = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    new = path.with_suffix(".new")
    new.write_text(json.dumps({**login, "token": token, "expiry": _NO_LONGER}))
    new.rename(path)


def _name_of(called: Called, body: Mapping[str, Any]) -> str:
    if called.method.uploads:
        return str(called.query.get("name", body.get("name", "")))
    return called.arguments.get("object", "")


@cache
def _api() -> GoogleApi:
    """Reading what Google describes takes longer than most tests."""
    return GoogleApi()


def _told(called: Called, headers: Mapping[str, str], body: bytes) -> Any:
    """The body, or of an upload what it says of its object; None if there is none."""
    if called.query.get("uploadType") == "media":
        return None
    kind = headers.get("content-type", "")
    if called.method.uploads and kind.startswith("multipart/"):
        (_, boundary) = kind.split("boundary=", 1)
        body = body.split(f"--{boundary.strip(chr(34) + chr(39))}".encode())[1].split(b"\r\n\r\n", 1)[1]
    return json.loads(body) if body.strip() else None


def _as_json(status: int, body: Mapping[str, Any]) -> Reply:
    return Reply(status, json.dumps(body).encode(), {"content-type": "application/json; charset=UTF-8"})


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    gate: Gate

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asks may go at any time."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else an answer of two packets waits 40 ms for the first to be acknowledged
    server: _Server

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        headers = {name.lower(): text for name, text in self.headers.items()}
        reply = self.server.gate.answer(self.command, self.path, headers, body)
        if reply is None:
            self.close_connection = True
            return
        self.send_response_only(reply.status)  # without a date: the clock of a test is its own
        for name, text in reply.headers.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any

    def log_message(self, *_: object) -> None:
        """Tests read `asked`."""
