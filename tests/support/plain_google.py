"""
The front end of a GoogleCloud within this process: what `requests` would send, it gives to this object.

    google = PlainGoogle(clock)
    google.reach(monkeypatch)
    google.fault = lambda call: ...   # what goes wrong with it, or None

The driver, google-auth and `requests` are the real ones. Google's own description checks each call and each answer, as
it does behind HTTP. What is due by the project's clock has happened whenever somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import format_datetime
from typing import Any

import google.auth
import pytest
import requests
from google.auth import _exponential_backoff as pauses
from google.auth import exceptions as auth
from google.oauth2.credentials import Credentials

from spotrun.clock import Clock
from tests.support.gce_answers import Json, Refusal
from tests.support.gcp_project import GoogleProject
from tests.support.google_api import Asked
from tests.support.google_cloud import TOKEN_PATH, GoogleCloud, Hang, How, Lost
from tests.support.http_server import Reply, Request, as_json

LOGIN = "login"
"""Whoever is asked for a token."""
LOGIN_URL = "https://oauth2.googleapis.com/token"
LISTS = ("compute.instances.aggregatedList", "compute.globalOperations.aggregatedList")


class LoggedOut(Exception):
    """There is nobody who could be asked for a token."""


Trouble = How | LoggedOut


@dataclass
class KnownAccounts:
    """
    The service accounts that Compute Engine knows: those of IAM, each `after` it was made. "It can take 60 seconds or
    more": https://cloud.google.com/iam/docs/service-accounts-create.
    """

    iam: GoogleProject
    after: timedelta = timedelta()

    def __contains__(self, email: object) -> bool:
        made_at = self.iam.made_at.get(self.iam.accounts.get(str(email), {}).get("uniqueId", ""))
        return made_at is not None and self.iam.clock.now() - made_at >= self.after


class PlainGoogle(GoogleCloud):
    """
    `fault` says what goes wrong with a call, by the id of its method. `stale` is how old lists of instances and of
    operations are. What is `foreign` by its name is somebody else's.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.clock = clock
        self.fault: Callable[[str], Trouble | None] = lambda _: None
        self.stale = timedelta()
        self.foreign: set[str] = set()
        self._lists: dict[str, list[tuple[datetime, Json]]] = {}
        self.hook = self._trouble
        self.handlers |= {method: self._late(self.handlers[method]) for method in LISTS}
        self.accounts = self.project.accounts = KnownAccounts(self.iam)

    def reach(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever asks Google in this test asks this project."""
        monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", lambda _, asked, **how: self._sent(asked, **how))
        monkeypatch.setattr(requests.sessions, "get_environ_proxies", lambda *_, **__: {})  # read for each request
        monkeypatch.setattr(google.auth, "default", self._logged_in)
        monkeypatch.setattr(pauses, "time", self.clock)

    # -- what a run is told of its account (see Account) -------------------------------------------------------------

    @property
    def alive(self) -> list[str]:
        return [vm.name for vm in self.project.vms.values() if vm.started is not None and vm.off is None]

    @property
    def rented(self) -> list[str]:
        return sorted({each.name for each in self.project.charges.running})

    @property
    def left(self) -> list[str]:
        return [name for _, name in (*self.project.vms, *self.project.disks) if name not in self.foreign]

    @property
    def identities_left(self) -> list[str]:
        return [*self.iam.accounts, *self.iam.policies]

    @property
    def charged_usd(self) -> dict[str, float]:
        """Of each instance, with its disk."""
        charges, now, found = self.project.charges, self.clock.now(), dict[str, float]()
        for running in charges.running:
            found[running.name] = found.get(running.name, 0.0) + float(charges.instance_usd(running, now))
        for kept in charges.kept:
            found[kept.name] = found.get(kept.name, 0.0) + float(kept.usd(now))
        return {name: usd for name, usd in found.items() if name not in self.foreign}

    def interrupt(self, instance_id: str) -> None:
        self.project.preempt_at_once(instance_id)

    def power_off(self, instance_id: str) -> None:
        self.project.power_off(instance_id)

    # -- what is answered --------------------------------------------------------------------------------------------

    def _logged_in(self, scopes: Any) -> tuple[Credentials, str]:
        if isinstance(self.fault(LOGIN), LoggedOut):
            raise auth.DefaultCredentialsError("by the test")
        facts = {"refresh_token": "r", "token_uri": LOGIN_URL, "client_id": "c", "client_secret": "s"}
        return Credentials(None, scopes=scopes, **facts), self.project.name  # type: ignore[no-untyped-call]

    def _sent(self, asked: requests.PreparedRequest, timeout: Any, **_: Any) -> requests.Response:
        text = asked.body.encode() if isinstance(asked.body, str) else asked.body or b""
        headers = {name.lower(): value for name, value in asked.headers.items()}
        try:
            return self._response(asked, self._checked(Request(asked.method or "", asked.path_url, headers, text)))
        except Hang as hang:
            self.clock.sleep(timeout[1] if isinstance(timeout, tuple) else timeout)
            raise requests.exceptions.ReadTimeout("by the test", request=asked) from hang
        except Lost as lost:
            raise requests.exceptions.ConnectionError("connection reset", request=asked) from lost

    def _checked(self, request: Request) -> Reply:
        faults = len(self.faults)
        try:
            return self._token() if request.target == TOKEN_PATH else self.answer(request)
        finally:
            if wrong := self.faults[faults:]:
                pytest.fail(f"Google's description says: {wrong}")

    def _token(self) -> Reply:
        match self._trouble(LOGIN, 0):
            case Reply() as reply:
                return reply
            case Refusal() as refusal:
                return as_json(refusal.body, refusal.status)
            case type() as ends:
                raise ends(LOGIN)
        return as_json(self.logins.refreshed())

    def _trouble(self, method: str, _nth: int) -> How | None:
        if method == LOGIN:
            self.counts[LOGIN] += 1
        trouble = self.fault(method)
        return None if isinstance(trouble, LoggedOut) else trouble

    def _response(self, asked: requests.PreparedRequest, reply: Reply) -> requests.Response:
        found = requests.Response()
        found.status_code, found._content = reply.status, reply.body
        found.request, found.url = asked, asked.url or ""
        found.headers["Date"] = format_datetime(self.clock.now(), usegmt=True)
        return found

    def _late(self, handler: Callable[[Asked], Json | None]) -> Callable[[Asked], Json]:
        """The newest answer to the same question that is old enough; nothing has been there before the first."""

        def answer(asked: Asked) -> Json:
            now, fresh = self.clock.now(), handler(asked) or {}
            known = self._lists.setdefault(f"{asked.method} {asked.query.get('filter')}", [])
            known.append((now, fresh))
            old = [told for at, told in known if at <= now - self.stale]
            return old[-1] if old else {**fresh, "items": {}}

        return answer
