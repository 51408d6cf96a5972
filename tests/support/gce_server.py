"""
Compute Engine on this machine: a project behind HTTP, whose every request and answer Google's own description checks.

    with GceServer(clock) as gce:
        gce.project.stock_out("us-central1-a", "g2-standard-4", SPOT)
        gce.fail("compute.instances.get", RATE_LIMIT, times=3)
        …
        assert gce.faults == []

`faults` is what the description says is wrong with what was asked or answered: a test that uses the server fails of it.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.gce_agenda import Now
from tests.support.gce_answers import UNAUTHENTICATED, Failure, Json, Refusal, forbidden
from tests.support.gce_http import GceHttp
from tests.support.gce_lives import Machines, NoMachines
from tests.support.gce_logins import RUNNER, TOKEN_PATH, Logins
from tests.support.gce_methods import Asked, GceMethods
from tests.support.gce_project import GceProject
from tests.support.gcp_permissions import ALWAYS, BY_ACCOUNTS, OPTIONAL, needed
from tests.support.google_api import Called, GoogleApi, Unknown

COMPUTE = "/compute/v1/"
ANY = "*"
_API = GoogleApi()


class Lost:
    """In place of an answer: what was asked is done, and the connection ends."""


class Hang:
    """In place of an answer: none, and nothing is done, until the server ends or `release` is called."""


How = Refusal | Failure | type[Lost] | type[Hang]
Hook = Callable[[str, int], How | None]
Permits = Callable[[str, str, str], bool]
"""Whether this principal has this permission on this resource, by its path from `projects/`."""


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


class GceServer:
    """
    `asked` are the calls in order, also those that were refused. `permits` decides what each principal may do, where it
    is set. `handlers` answer further methods that Google's description has, by their ids. `hook` is asked first, with
    the method and how often it was called by now.
    """

    def __init__(self, clock: Now, machines: Machines | None = None) -> None:
        self.project = GceProject(clock, machines=machines or NoMachines())
        self.methods = GceMethods(self.project)
        self.handlers = dict(self.methods.handlers)
        self.asked: list[Asked] = []
        self.faults: list[str] = []
        self.logins = Logins()
        self.permits: Permits | None = None
        self.hook: Hook | None = None
        self._planned: list[_Planned] = []
        self._counts: Counter[str] = Counter()
        self._released = threading.Event()
        self._over = threading.Event()
        self._server = GceHttp(self)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), name="gce", daemon=True).start()
        if not isinstance(self.project.machines, NoMachines):
            threading.Thread(target=self._keep_time, name="gce clock", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._released.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def compute_url(self) -> str:
        return f"{self.url}{COMPUTE}"

    @property
    def environment(self) -> dict[str, str]:
        """With which gcloud finds it, and whoever reads the same variable."""
        return {"CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": self.compute_url, "CLOUDSDK_CORE_PROJECT": self.project.name}

    def reach(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        """Let clients of this test find it by themselves, and log in as the runner, with a key that is put there."""
        for name, text in self.environment.items():
            monkeypatch.setenv(name, text)
        key = self.logins.key(folder / "key.json", RUNNER, self.url)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", self.project.name)
        # google-auth asks Google itself, on a thread, where a service account may be used from
        bounds = "google.auth.credentials.CredentialsWithRegionalAccessBoundary"
        monkeypatch.setattr(f"{bounds}._is_regional_access_boundary_lookup_required", lambda _: False)

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

    def release(self) -> None:
        """Whoever hangs gets a connection that ends."""
        released, self._released = self._released, threading.Event()
        released.set()

    def calls(self, *methods: str) -> list[Asked]:
        """Those of these methods; of all if none is named."""
        return [each for each in self.asked if not methods or each.method in methods]

    # -- what is answered ----------------------------------------------------------------------------------------

    def now(self) -> datetime:
        """As answers are dated."""
        return self.project.clock.now()

    def answer(self, verb: str, target: str, token: str, text: bytes) -> Json:
        """
        Raises:
            Refusal: the answer is this error.
            ConnectionError: there is no answer.
        """
        if target == TOKEN_PATH:
            return self.logins.token(text)
        self.project.settle()
        called = self._called(verb, target)
        method = called.method.id
        body = self._read(method, text)
        asked = self._record(called, body, token)
        if asked.who == "" or token in self.logins.expired:
            raise replace(UNAUTHENTICATED)
        self._check(asked, [*called.faults, *_API.request_faults(called, body)])
        how = self._how(method, asked.nth)
        if isinstance(how, Refusal):
            raise replace(how)
        if how is Hang:
            self._released.wait()
            raise ConnectionError(method)
        self._permit(asked, target)
        answer = self._handled(asked, how if isinstance(how, Failure) else None)
        self.faults += [f"{method}: {fault}" for fault in _API.answer_faults(called, answer)]
        if how is Lost:
            raise ConnectionError(method)
        return answer

    def _called(self, verb: str, target: str) -> Called:
        try:
            return _API.called(verb, target)
        except Unknown as error:
            self.faults.append(f"unknown: {error}")
            raise Refusal(404, "notFound", str(error)) from error

    def _read(self, method: str, text: bytes) -> Any:
        try:
            return json.loads(text) if text.strip() else None
        except ValueError:
            self.faults.append(f"{method}: the body is no JSON")
            raise Refusal(400, "parseError", "Parse Error") from None

    def _record(self, called: Called, body: Any, token: str) -> Asked:
        method = called.method.id
        with self.project.lock:
            self._counts[method] += 1
            who = self.logins.tokens.get(token, "")
            asked = Asked(who, method, called.arguments, called.query, body, self.project.now, self._counts[method])
            self.asked.append(asked)
        return asked

    def _check(self, asked: Asked, faults: Iterable[str]) -> None:
        """As Google refuses it; and a test that sends it fails."""
        found = [f"{asked.method}: {fault}" for fault in faults]
        self.faults += found
        if found:
            raise Refusal(400, "invalid", "; ".join(found))

    def _how(self, method: str, nth: int) -> How | None:
        if self.hook is not None and (how := self.hook(method, nth)) is not None:
            return how
        with self.project.lock:
            for each in self._planned:
                if each.holds(method, self.project.now):
                    each.times = None if each.times is None else each.times - 1
                    return each.how
        return None

    def _permit(self, asked: Asked, target: str) -> None:
        if self.permits is None:
            return
        path = target.partition("?")[0].removeprefix(COMPUTE)
        if asked.method == "compute.instances.insert":
            path += f"/{asked.body['name']}"
        known = asked.method in {*ALWAYS, *OPTIONAL, *BY_ACCOUNTS}
        permissions = needed(asked.method, asked.body, asked.query) if known else {asked.method}
        for permission in sorted(permissions):
            if not self.permits(asked.who, permission, path):
                raise forbidden(permission, path)

    def _handled(self, asked: Asked, failure: Failure | None) -> Json:
        """`failure` is what becomes of the operation that is begun, if one is."""
        if asked.method == "compute.zoneOperations.wait":
            return self.methods.wait(asked)
        handler = self.handlers.get(asked.method)
        if handler is None:
            self.faults.append(f"{asked.method} is not served")
            raise Refusal(501, "notImplemented", asked.method)
        with self.project.lock, self.project.failing(failure):
            self.project.settle()
            return handler(asked)

    def _keep_time(self) -> None:
        """Machines are told what happens to them, also while nobody asks."""
        while not self._over.wait(0.02):
            self.project.settle()
