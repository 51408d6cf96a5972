"""Calls Google's APIs through REST. Repeats failed calls by spotrun's own rules. Reads all pages of a list."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import google.auth
import requests
from google.auth import exceptions as auth
from google.auth.transport.requests import AuthorizedSession, Request

from spotrun.clock import Clock
from spotrun.clouds.clock_skew import skew_of, told_at
from spotrun.clouds.error_kinds import translated
from spotrun.clouds.gcp.error_codes import answered_by_another, refused
from spotrun.clouds.gcp.logins import meaning_of
from spotrun.clouds.patience import ASIDE, PATIENT, Patience, PatientClient
from spotrun.errors import CloudError

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
"""The OAuth scope of all calls. A scope can only narrow rights; IAM decides which rights the login has."""
SCOPE_OF_ADDRESS = "https://www.googleapis.com/auth/userinfo.email"
OVERRIDES = "CLOUDSDK_API_ENDPOINT_OVERRIDES_"
"""Prefix of the variables that name another server for an API. gcloud reads the same variables."""
REDIRECTS = 300
"""The lowest status that counts as a failure. Google's APIs never redirect."""
_PARAMETERS = {"prettyPrint": "false"}


class Api(NamedTuple):
    """One of Google's APIs. Its addresses begin with `root`, or with what gcloud's variable for this API contains."""

    name: str
    root: str

    @property
    def address(self) -> str:
        named = os.environ.get(OVERRIDES + self.name.upper()) or self.root
        return named if named.endswith("/") else f"{named}/"


COMPUTE = Api("compute", "https://compute.googleapis.com/compute/v1/")
STORAGE = Api("storage", "https://storage.googleapis.com/storage/v1/")
IAM = Api("iam", "https://iam.googleapis.com/")
RESOURCES = Api("cloudresourcemanager", "https://cloudresourcemanager.googleapis.com/")
BILLING = Api("cloudbilling", "https://cloudbilling.googleapis.com/")
LOGIN = Api("oauth2", "https://www.googleapis.com/oauth2/v2/")
RUN = Api("run", "https://run.googleapis.com/")
SCHEDULER = Api("cloudscheduler", "https://cloudscheduler.googleapis.com/")
CREDENTIALS = Api("iamcredentials", "https://iamcredentials.googleapis.com/")
SECRET_MANAGER = Api("secretmanager", "https://secretmanager.googleapis.com/")


class Call(NamedTuple):
    """
    One request. `path`, in which all values are URL-quoted, is appended to the API's root. For an API that does not
    expect JSON, `form` replaces `body`.
    """

    api: Api
    method: str
    path: str
    query: Mapping[str, str | Sequence[str]] = {}
    body: Mapping[str, Any] | None = None
    form: Mapping[str, str] | None = None


class Google(PatientClient):
    """
    A client with the login of this machine's user. It repeats calls that were throttled, got a 5xx status, or did not
    reach Google. Its waiting times have jitter. It corrects `clock` by the time that each of Google's answers contains.
    """

    def __init__(self, clock: Clock, patience: Patience = PATIENT) -> None:
        super().__init__(clock, patience)
        self._session: requests.Session | None = None
        self._login_project = ""

    @cached_property
    def aside(self) -> Google:
        """
        A second client, for calls that are not essential. It gives up after a few seconds, because the caller will
        repeat the call later anyway.
        """
        return Google(self._clock, ASIDE)

    def project(self, named: str | None) -> str:
        """Return the project to bill: `named` or, if it is None, the login's. Raise CloudError if there is neither."""
        if named is None:
            with translated(meaning_of, "find out who is logged in"):
                self._open()
        found = named or self._login_project
        if not found:
            raise CloudError("no project is named", hint="set gcp.project in the job, or GOOGLE_CLOUD_PROJECT")
        return found

    def caller(self) -> str:
        """
        Return the login's email address. Return "" if it is unknown, for example because the login does not include the
        scope for reading it.

        The token is sent in the body of the request, because a URL may appear in error messages.

        Raises:
            CloudError: no user is logged in.
        """
        doing = "find out who is logged in"
        with translated(meaning_of, doing):
            credentials, _ = google.auth.default(scopes=[SCOPE, SCOPE_OF_ADDRESS])
            with contextlib.suppress(auth.RefreshError):
                if not credentials.valid:
                    credentials.refresh(Request())  # type: ignore[no-untyped-call]
        own = str(getattr(credentials, "service_account_email", ""))
        if "@" in own or not credentials.valid:
            return own
        asked = Call(LOGIN, "POST", "tokeninfo", form={"access_token": str(credentials.token)})
        return str(self.ask(doing, asked).get("email", ""))

    def ask(self, action: str, call: Call) -> dict[str, Any]:
        """
        Make a call that is harmless to repeat. Return the answer; {} if it is empty. `action` completes the message
        "Google refused to …".

        Raises:
            CloudError: one of the errors that CloudDriver lists.
        """

        def once() -> dict[str, Any]:
            with translated(meaning_of, action):
                return self._once(action, call)

        return self._patiently(once)

    def pages(self, action: str, call: Call) -> Iterator[dict[str, Any]]:
        token = ""
        while True:
            query = {**call.query, **({"pageToken": token} if token else {})}
            page = self.ask(action, call._replace(query=query))
            yield page
            token = str(page.get("nextPageToken", ""))
            if not token:
                return

    def items(self, action: str, call: Call, of: str = "items") -> list[Any]:
        """Return the items in the list `of` of an answer, from all of its pages."""
        return [item for page in self.pages(action, call) for item in page.get(of, ())]

    def _once(self, action: str, call: Call) -> dict[str, Any]:
        before = self._clock.now()
        answer = self._open().request(
            call.method,
            call.api.address + call.path,
            params={**_PARAMETERS, **call.query},
            json=call.body,
            data=call.form,
            timeout=(self._patience.connect_s, self._patience.read_s),
            allow_redirects=False,
        )
        body = _json(answer)
        if answer.status_code >= REDIRECTS:
            raise refused(action, answer.status_code, body, answer.text)
        if not isinstance(body, dict) and (answer.content or call.method != "DELETE"):
            raise answered_by_another(action, answer.text)
        told = told_at(answer.headers.get("Date", ""))
        if told is not None:
            self._clock.put_back(skew_of(before, self._clock.now(), told))
        return body if isinstance(body, dict) else {}

    def _open(self) -> requests.Session:
        if self._session is None:
            credentials, project = google.auth.default(scopes=[SCOPE])
            self._session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
            self._login_project = project or ""
        return self._session

    def _drop_login(self) -> None:
        self._session = None


def _json(answer: requests.Response) -> object:
    try:
        return answer.json()
    except ValueError:
        return None
