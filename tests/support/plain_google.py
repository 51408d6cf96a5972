"""
A project of Google Cloud without a server: what `requests` would send, it gives to this object.

    google = PlainGoogle(clock)
    google.reach(monkeypatch)
    google.fault = lambda call: ...   # what goes wrong with it, or None

The driver, google-auth and `requests` are the real ones. Google's own description checks each call and each answer, as
it does behind HTTP. What is due by the project's clock has happened whenever somebody asks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from email.utils import format_datetime
from typing import Any

import google.auth
import pytest
import requests
from google.auth import _exponential_backoff as pauses
from google.auth import exceptions as auth
from google.oauth2.credentials import Credentials

from tests.support.gce_answers import Failure, Json, Refusal
from tests.support.gce_logins import TOKEN
from tests.support.gce_methods import Asked
from tests.support.gce_server import GceServer, Lost
from tests.support.gcp_account import iam_handlers
from tests.support.gcp_project import GoogleProject
from tests.support.google_skus import on_demand_skus
from tests.support.manual_clock import ManualClock

LOGIN = "login"
"""Whoever is asked for a token."""
LOGIN_URL = "https://oauth2.googleapis.com/token"
MAKE_ACCOUNT = "iam.projects.serviceAccounts.create"
LISTS = ("compute.instances.aggregatedList", "compute.globalOperations.aggregatedList")


@dataclass(eq=False)
class Page(Exception):
    """In place of an answer: this text, whoever has sent it."""

    status: int
    text: str


class Hangs(Exception):
    """In place of an answer: none, until the caller has waited for as long as it wants to."""


class LoggedOut(Exception):
    """There is nobody who could be asked for a token."""


Trouble = Refusal | Failure | Page | Hangs | LoggedOut | type[Lost]


class PlainGce(GceServer):
    """Nothing arrives there by HTTP."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self._server.server_close()


class KnownAccounts:
    """
    The service accounts that Compute Engine knows: those of IAM, each `after` it was made. "It can take 60 seconds or
    more": https://cloud.google.com/iam/docs/service-accounts-create.
    """

    def __init__(self, iam: GoogleProject, clock: ManualClock) -> None:
        self.after = timedelta()
        self._iam, self._clock = iam, clock
        self._made: dict[str, datetime] = {}

    def __contains__(self, email: object) -> bool:
        unique_id = self._iam.accounts.get(str(email), {}).get("uniqueId")
        return unique_id is not None and self._clock.now() - self._made[unique_id] >= self.after

    def made(self, handler: Callable[[Asked], Json]) -> Callable[[Asked], Json]:
        """Handle what makes one, and note when that was."""

        def answer(asked: Asked) -> Json:
            account = handler(asked)
            self._made[account["uniqueId"]] = self._clock.now()
            return account

        return answer


class PlainGoogle:
    """
    `fault` says what goes wrong with a call, by the id of its method. `stale` is how old lists of instances and of
    operations are. What is `foreign` by its name is somebody else's.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.gce = PlainGce(clock)
        self.project = self.gce.project
        self.iam = GoogleProject()
        self.fault: Callable[[str], Trouble | None] = lambda _: None
        self.stale = timedelta()
        self.foreign: set[str] = set()
        self._lists: dict[str, list[tuple[datetime, Json]]] = {}
        self.asked: Counter[str] = Counter()
        self.gce.hook = self._trouble
        self.gce.handlers |= {
            **iam_handlers(self.iam),
            "cloudbilling.services.skus.list": lambda _: {"skus": on_demand_skus()},
            **{method: self._late(self.gce.handlers[method]) for method in LISTS},
        }
        self.accounts = self.project.accounts = KnownAccounts(self.iam, clock)
        self.gce.handlers[MAKE_ACCOUNT] = self.accounts.made(self.gce.handlers[MAKE_ACCOUNT])

    def reach(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever asks Google in this test asks this project."""
        monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", lambda _, asked, **how: self._sent(asked, **how))
        monkeypatch.setattr(google.auth, "default", self._logged_in)
        monkeypatch.setattr(pauses.time, "sleep", self.clock.sleep)

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
        try:
            return self._response(asked, 200, json.dumps(self._answer(asked)))
        except Refusal as refusal:
            return self._response(asked, refusal.status, json.dumps(refusal.body))
        except Page as page:
            return self._response(asked, page.status, page.text)
        except Hangs as hangs:
            self.clock.advance(timeout[1] if isinstance(timeout, tuple) else timeout)
            raise requests.exceptions.ReadTimeout("by the test", request=asked) from hangs
        except ConnectionError as lost:
            raise requests.exceptions.ConnectionError("connection reset", request=asked) from lost

    def _answer(self, asked: requests.PreparedRequest) -> Json:
        text = asked.body.encode() if isinstance(asked.body, str) else asked.body or b""
        if asked.url == LOGIN_URL:
            return self._token()
        token = asked.headers.get("Authorization", "").removeprefix("Bearer ")
        faults = len(self.gce.faults)
        try:
            return self.gce.answer(asked.method or "", asked.path_url, token, text)
        finally:
            if wrong := self.gce.faults[faults:]:
                pytest.fail(f"Google's description says: {wrong}")

    def _token(self) -> Json:
        self.asked[LOGIN] += 1
        trouble = self.fault(LOGIN)
        if isinstance(trouble, Refusal):
            raise replace(trouble)
        if isinstance(trouble, Exception):
            raise trouble
        if trouble is Lost:
            raise ConnectionError(LOGIN)
        return {"access_token": TOKEN, "expires_in": 3599, "token_type": "Bearer"}

    def _trouble(self, method: str, _nth: int) -> Refusal | Failure | type[Lost] | None:
        self.asked[method] += 1
        trouble = self.fault(method)
        if isinstance(trouble, Page | Hangs | LoggedOut):
            raise trouble
        return trouble

    def _response(self, asked: requests.PreparedRequest, status: int, text: str) -> requests.Response:
        found = requests.Response()
        found.status_code, found._content = status, text.encode()
        found.request, found.url = asked, asked.url or ""
        found.headers["Date"] = format_datetime(self.clock.now(), usegmt=True)
        return found

    def _late(self, handler: Callable[[Asked], Json]) -> Callable[[Asked], Json]:
        """The newest answer to the same question that is old enough; nothing has been there before the first."""

        def answer(asked: Asked) -> Json:
            now, fresh = self.clock.now(), handler(asked)
            known = self._lists.setdefault(f"{asked.method} {asked.query.get('filter')}", [])
            known.append((now, fresh))
            old = [told for at, told in known if at <= now - self.stale]
            return old[-1] if old else {**fresh, "items": {}}

        return answer
