"""
A project of Google Cloud on this machine, whichever front end asks it: Compute Engine, IAM, Cloud Storage, Secret
Manager and prices. Google's own description checks every request and every answer.

    google.project.stock_out("us-central1-a", "g2-standard-4", SPOT)
    google.fail("compute.instances.get", RATE_LIMIT, times=3)
    …
    assert google.faults == []

`faults` is what the description says is wrong with what was asked or answered: a test that uses the project fails of
it. google_server.py is the front end for clients by HTTP, plain_google.py the one within a process.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlsplit

from tests.support.gce_agenda import Now
from tests.support.gce_answers import UNAUTHENTICATED, Failure, Json, Refusal, forbidden, rpc_refusal
from tests.support.gce_methods import GceMethods
from tests.support.gce_project import GceProject
from tests.support.gcp_permissions import ALWAYS, BY_ACCOUNTS, OPTIONAL, OVERWRITING, needed
from tests.support.gcp_project import RUNNER, GoogleProject
from tests.support.google_api import Asked, Called, Unknown, described
from tests.support.google_login import TOKEN
from tests.support.google_skus import on_demand_skus
from tests.support.http_server import Reply, Request, as_json

COMPUTE = "/compute/v1/"
ANY = "*"
TOKEN_PATH = "/token"
_OBJECTS = "storage.objects."
_RPC = ("iam.", "secretmanager.")
_CARRIED = ("content-type", "content-encoding", "content-range", "range", "x-goog-hash", "accept", "accept-encoding")
_BROUGHT_BACK = ("content-type", "content-range", "location", "range", "x-goog-hash", "x-goog-generation", "etag")


class Lost(ConnectionError):
    """In place of an answer: what was asked is done, and the connection ends."""


class Hang(Exception):
    """In place of an answer: none, and nothing is done, until the front end ends the waiting."""


How = Refusal | Failure | Reply | type[Lost] | type[Hang]
Hook = Callable[[str, int], How | None]
Permits = Callable[[Asked, str], bool]
"""Whether a call may use this permission."""


@dataclass(eq=False)
class InvalidGrant(Refusal):
    """As the login says it, in a form of its own."""

    @property
    def body(self) -> Json:
        return {"error": self.reason, "error_description": self.message}


class Logins:
    """`tokens` are members by token; those in `expired` are told so. Members in `refused` get none."""

    def __init__(self) -> None:
        self.tokens = {TOKEN: RUNNER}
        self.expired: set[str] = set()
        self.refused: set[str] = set()

    def refreshed(self) -> Json:
        """
        For the refresh token of a user, of whom there is one.

        Raises:
            InvalidGrant: this user is not let in.
        """
        if RUNNER in self.refused:
            raise InvalidGrant(400, "invalid_grant", "Token has been expired or revoked.")
        return {"access_token": TOKEN, "expires_in": 3599, "token_type": "Bearer"}


@dataclass
class _Planned:
    """`times` and `until` bound it; without both it holds for ever."""

    method: str
    how: How
    times: int | None
    until: datetime | None

    def holds(self, method: str, now: datetime) -> bool:
        in_time = self.until is None or now < self.until
        return self.method in (method, ANY) and self.times != 0 and in_time


class GoogleCloud:
    """
    `project` is Compute Engine's part, `iam` that of all other services. `asked` are the calls in order, also those
    that were refused, and `counts` how often each was made; `denied` has who was refused which permission, and
    `changed` who overwrote or deleted which object. `handlers` answer methods by their ids. `hook` is asked first, with
    the method and how often it was called by now.

    `objects` is the address of a store with the objects of the bucket, which asks nobody for anything: a call for one
    is handed on if each permission that it needs is granted. With it, `permits` goes by the policies of `iam`; without,
    all is permitted unless a test says otherwise.
    """

    def __init__(self, clock: Now, objects: str = "") -> None:
        self.project = GceProject(clock)
        self.iam = GoogleProject(clock, self._has_objects if objects else lambda _: False)
        self.methods = GceMethods(self.project)
        self.handlers: dict[str, Callable[[Asked], Json | None]] = {
            **self.methods.handlers,
            **self.iam.handlers,
            "cloudbilling.services.skus.list": lambda _: {"skus": on_demand_skus()},
        }
        self.asked: list[Asked] = []
        self.denied: list[tuple[str, str]] = []
        self.changed: set[tuple[str, str]] = set()
        self.faults: list[str] = []
        self.logins = Logins()
        self.permits: Permits | None = self.iam.may if objects else None
        self.hook: Hook | None = None
        self.objects = urlsplit(objects).netloc
        self._unique_ids: dict[str, str] = {}
        self._before: dict[str, Callable[[], object]] = {}
        self._planned: list[_Planned] = []
        self.counts: Counter[str] = Counter()
        self._lock = threading.RLock()

    # -- what tests do -------------------------------------------------------------------------------------------

    def fail(self, method: str, how: How, times: int | None = 1, until: datetime | None = None) -> None:
        """
        Let calls of a method (or ANY) fail: `times` times, or all of them `until` a moment of the project's clock, or
        for ever if `times` is None. A Failure is that of an operation, and of instances.insert and delete alone.
        """
        self._planned.append(_Planned(method, how, None if until is not None else times, until))

    def recover(self) -> None:
        """Nothing more fails that was meant to."""
        self._planned.clear()

    def before(self, method: str, happens: Callable[[], object]) -> None:
        """Something that happens right before the next call is carried out."""
        self._before[method] = happens

    def calls(self, *methods: str) -> list[Asked]:
        """Those of these methods; of all if none is named."""
        return [each for each in self.asked if not methods or each.method in methods]

    def token_of(self, email: str) -> str:
        """What the metadata of an instance gives that has this account."""
        token = f"ya29.c.{len(self.logins.tokens)}-of_{email.partition('@')[0]}"
        self.logins.tokens[token] = f"serviceAccount:{email}"
        self._unique_ids[token] = self.iam.accounts[email]["uniqueId"]
        return token

    # -- what is answered ----------------------------------------------------------------------------------------

    def answer(self, request: Request) -> Reply:
        """
        Raises:
            Lost, Hang: there is no answer.
        """
        try:
            return self._answer(request)
        except Refusal as refusal:
            return as_json(refusal.body, refusal.status)

    def _answer(self, request: Request) -> Reply:
        if request.target == TOKEN_PATH:
            return as_json(self.logins.refreshed())
        if request.verb == "PUT" and "upload_id=" in request.target:
            return self._hand_on(request)  # an upload that was begun needs no more than that
        called = self._called(request)
        method = called.method.id
        self._before.pop(method, lambda: None)()
        asked = self._record(called, request)
        if asked.who == "" or request.bearer in self.logins.expired:
            raise _unauthenticated(asked)
        self._check(asked, [*called.faults, *described().request_faults(called, asked.body)])
        how = self._how(method, asked.nth)
        if isinstance(how, Reply):
            return how
        if isinstance(how, Refusal):
            raise replace(how)
        if how is Hang:
            raise Hang(method)
        with nullcontext() if asked.is_of_compute else self._lock:
            self._permit(asked)
            reply = self._carried_out(called, asked, request, how if isinstance(how, Failure) else None)
        if how is Lost:
            raise Lost(method)
        return reply

    def _called(self, request: Request) -> Called:
        try:
            return described().called(request.verb, request.target.removeprefix("/download"))
        except Unknown as error:
            self.faults.append(f"unknown: {error}")
            raise Refusal(404, "notFound", str(error)) from error

    def _body(self, called: Called, request: Request) -> Any:
        """Of an upload what it says of its object; None if there is none."""
        text, kind = request.body, request.headers.get("content-type", "")
        if called.query.get("uploadType") == "media":
            return None
        if called.method.uploads and kind.startswith("multipart/"):
            boundary = kind.split("boundary=", 1)[1].strip("\"'")
            text = text.split(f"--{boundary}".encode())[1].split(b"\r\n\r\n", 1)[1]
        try:
            return json.loads(text) if text.strip() else None
        except ValueError:
            self.faults.append(f"{called.method.id}: the body is no JSON")
            raise Refusal(400, "parseError", "Parse Error") from None

    def _record(self, called: Called, request: Request) -> Asked:
        method, body = called.method.id, self._body(called, request)
        path, at = request.target.partition("?")[0].removeprefix(COMPUTE), self._now(method)
        with self._lock:  # the project's lock is never waited for in here
            self.counts[method] += 1
            nth, who = self.counts[method], self._who(request.bearer)
            asked = Asked(who, method, called.arguments, called.query, body, at, path, nth)
            self.asked.append(asked)
        return asked

    def _now(self, method: str) -> datetime:
        """
        By the clock alone if it is no call of Compute Engine: machines use the bucket while the project is locked.
        """
        return self.project.now if method.startswith("compute.") else self.project.clock.now()

    def _who(self, token: str) -> str:
        """Whose token it is; a token of an account that was deleted is nobody's."""
        who = self.logins.tokens.get(token, "")
        lives = self.iam.accounts.get(who.removeprefix("serviceAccount:"), {}).get("uniqueId")
        return who if self._unique_ids.get(token, lives) == lives else ""

    def _check(self, asked: Asked, faults: Iterable[str]) -> None:
        """As Google refuses it; and a test that sends it fails."""
        found = [f"{asked.method}: {fault}" for fault in faults]
        self.faults += found
        if found:
            raise Refusal(400, "invalid", "; ".join(found))

    def _how(self, method: str, nth: int) -> How | None:
        if self.hook is not None and (how := self.hook(method, nth)) is not None:
            return how
        now = self._now(method)
        with self._lock:
            for each in self._planned:
                if each.holds(method, now):
                    each.times = None if each.times is None else each.times - 1
                    return each.how
        return None

    def _permit(self, asked: Asked) -> None:
        if self.permits is None:
            return
        known = asked.method in {*ALWAYS, *OPTIONAL, *BY_ACCOUNTS}
        asks = needed(asked.method, asked.body, asked.query) if known else {asked.method}
        if OVERWRITING in asks and asked.method == f"{_OBJECTS}insert" and not self._is_there(asked.name):
            asks.discard(OVERWRITING)
        for permission in sorted(asks):
            if not self.permits(asked, permission):
                self.denied.append((asked.who, permission))
                raise _denied(asked, permission)
        if OVERWRITING in asks:
            self.changed.add((asked.who, asked.name))

    def _carried_out(self, called: Called, asked: Asked, request: Request, failure: Failure | None) -> Reply:
        if self.objects and asked.method.startswith(_OBJECTS):
            return self._hand_on(request)
        answer = self._handled(asked, failure)
        self.faults += [f"{asked.method}: {fault}" for fault in described().answer_faults(called, answer)]
        return Reply(204) if answer is None else as_json(answer)

    def _handled(self, asked: Asked, failure: Failure | None) -> Json | None:
        """`failure` is what becomes of the operation that is begun, if one is."""
        if asked.method == "compute.zoneOperations.wait":
            return self.methods.wait(asked)
        handler = self.handlers.get(asked.method)
        if handler is None:
            self.faults.append(f"{asked.method} is not served")
            raise Refusal(501, "notImplemented", asked.method)
        if not asked.is_of_compute:
            return handler(asked)
        with self.project.lock, self.project.failing(failure):
            self.project.settle()
            return handler(asked)

    # -- the objects ---------------------------------------------------------------------------------------------

    def _hand_on(self, request: Request) -> Reply:
        carried = {name: request.headers[name] for name in _CARRIED if name in request.headers}
        found = self._asked_of_objects(request.verb, request.target, carried, request.body)
        brought = {name: found.headers[name] for name in _BROUGHT_BACK if name in found.headers}
        if "location" in brought:
            brought["location"] = brought["location"].replace(self.objects, request.headers["host"])
        return found._replace(headers=brought)

    def _asked_of_objects(self, verb: str, target: str, headers: Mapping[str, str] = {}, body: bytes = b"") -> Reply:
        connection = http.client.HTTPConnection(self.objects, timeout=30)
        try:
            connection.request(verb, target, body or None, dict(headers))
            answer = connection.getresponse()
            told = {name.lower(): text for name, text in answer.getheaders()}
            return Reply(answer.status, answer.read(), told)
        finally:
            connection.close()

    def _is_there(self, name: str) -> bool:
        return (
            self._asked_of_objects("GET", f"/storage/v1/b/{self.iam.bucket_name}/o/{quote(name, safe='')}").status
            == 200
        )

    def _has_objects(self, folder: str) -> bool:
        target = f"/storage/v1/b/{self.iam.bucket_name}/o?maxResults=1&prefix={quote(folder, safe='')}"
        return bool(json.loads(self._asked_of_objects("GET", target).body).get("items"))


def _unauthenticated(asked: Asked) -> Refusal:
    is_rpc = asked.method.startswith(_RPC)
    return rpc_refusal(401, UNAUTHENTICATED.message) if is_rpc else replace(UNAUTHENTICATED)


def _denied(asked: Asked, permission: str) -> Refusal:
    if asked.method.startswith(_RPC):
        return rpc_refusal(403, f"Permission '{permission}' denied on resource (or it may not exist).")
    return forbidden(permission, asked.resource)
