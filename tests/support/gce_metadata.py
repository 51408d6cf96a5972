"""
The metadata server of a Compute Engine instance, over HTTP, with long polls and with all that goes wrong there.

https://cloud.google.com/compute/docs/metadata/querying-metadata. Who waits for a change waits on an event: a test lets
the time of the polls pass (`time_out`), and sleeps nowhere. google-auth finds its tokens here.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from spotrun.clouds.gcp.notices import FLAVOR, FLAVOR_HEADER, MAINTENANCE, PREEMPTED, ROOT
from tests.support.http_server import HttpServer, Reply, Request

ACCOUNTS = "instance/service-accounts/"
GOOGLE = {FLAVOR_HEADER: FLAVOR, "Server": "Metadata Server for VM"}
PLAIN = "application/text"
USUAL, HANGS = Reply(status=0), Reply(status=-1)


def told(status: int = 200, body: bytes = b"", headers: Mapping[str, str] = GOOGLE) -> Reply:
    """What is answered in place of a value."""
    return Reply(status, body, headers)


class Asked(NamedTuple):
    name: str
    query: Mapping[str, str]

    @property
    def waits(self) -> bool:
        return self.query.get("wait_for_change") == "true"


class GceMetadata:
    """
    `replies` are answered in place of a value, one a question, until there are none left; None ends the connection,
    HANGS lets the caller wait for ever, and USUAL is the value after all. `asked` is all that was asked with Google's
    header.
    """

    def __init__(
        self,
        name: str = "spotrun-0123456789-7",
        zone: str = "us-central1-a",
        account: str = "run@p.iam.gserviceaccount.com",
        token: str = "ya29.c.a-token_of.tests",
    ) -> None:
        self.token = token
        self.replies: dict[str, Iterator[Reply | None]] = {}
        self.asked: list[Asked] = []
        self._changed = threading.Condition()
        self._timeouts = self._moves = 0
        self._over = False
        credentials = {"access_token": self.token, "expires_in": 3599, "token_type": "Bearer"}
        self._values = {
            "/": "computeMetadata/\n",  # by this answer google-auth knows that it is on an instance
            "instance/name": name,
            "instance/zone": f"projects/123456789012/zones/{zone}",
            "project/project-id": "tests",
            "universe/universe-domain": "googleapis.com",
            PREEMPTED: "FALSE",
            MAINTENANCE: "NONE",
        }
        for called in ("default", account):
            folder = f"{ACCOUNTS}{called}/"
            self._values[f"{folder}email"] = account
            self._values[f"{folder}token"] = json.dumps(credentials)
            self._values[folder] = json.dumps({"aliases": ["default"], "email": account, "scopes": []})
        self._server = HttpServer(self._handle)
        self.host = self._server.host
        """As GCE_METADATA_HOST wants it."""

    # -- what tests do -------------------------------------------------------------------------------------------

    def preempt(self) -> None:
        self.change(PREEMPTED, "TRUE")

    def change(self, name: str, value: str) -> None:
        with self._changed:
            self._values[name] = value
            self._changed.notify_all()

    def time_out(self) -> None:
        """All polls that wait now have waited for as long as they wanted."""
        with self._changed:
            self._timeouts += 1
            self._changed.notify_all()

    def move_etags(self) -> None:
        """With no change of any value, as happens."""
        with self._changed:
            self._moves += 1
            self._changed.notify_all()

    def polls(self, name: str) -> list[Asked]:
        """The long polls of a value so far."""
        return [asked for asked in self.asked if asked.name == name and asked.waits]

    # -- what is answered ----------------------------------------------------------------------------------------

    def _handle(self, request: Request) -> Reply | None:
        parts = urlsplit(request.target)
        if request.headers.get(FLAVOR_HEADER.lower()) != FLAVOR or "x-forwarded-for" in request.headers:
            return told(403, b"Missing Metadata-Flavor:Google header.")
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        return self._answer(Asked(parts.path.removeprefix(ROOT), query))

    def _answer(self, asked: Asked) -> Reply | None:
        self.asked.append(asked)
        reply = next(self.replies.get(asked.name, iter(())), USUAL)
        if reply is HANGS:
            with self._changed:
                self._changed.wait_for(lambda: self._over)
            return None
        if reply is not USUAL:
            return reply
        with self._changed:
            if asked.waits:
                before = self._timeouts
                self._changed.wait_for(
                    lambda: self._over or self._timeouts > before or self._etag(asked.name) != asked.query["last_etag"],
                    float(asked.query["timeout_sec"]),
                )
            value = self._values.get(asked.name)
            etag = self._etag(asked.name)
        if value is None:
            return told(404, b"<!DOCTYPE html>", {**GOOGLE, "Content-Type": "text/html; charset=UTF-8"})
        kind = "application/json" if value.startswith("{") else PLAIN
        return told(200, value.encode(), {**GOOGLE, "Content-Type": kind, "ETag": etag})

    def _etag(self, name: str) -> str:
        """Hexadecimal, as the server's are."""
        return f"{hash((self._values.get(name), self._moves)) & (1 << 64) - 1:016x}"

    # -- its life ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._server.close()


@contextmanager
def gce_metadata(**facts: str) -> Iterator[GceMetadata]:
    metadata = GceMetadata(**facts)
    try:
        yield metadata
    finally:
        metadata.close()
