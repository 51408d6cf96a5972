"""
Reads notices from Compute Engine's metadata server.

The server holds back its answer until a value has changed:
https://cloud.google.com/compute/docs/metadata/querying-metadata. The value `preempted` announces that the instance will
be preempted, but not when. How much time is left depends on the length of notice that the launch requested:
https://cloud.google.com/compute/docs/instances/spot.

Only this value announces a preemption; the values about a graceful shutdown do not (failures.md N14). If `preempted` is
neither TRUE nor FALSE, Blind is raised.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from spotrun.clock import Clock
from spotrun.clouds.metadata import MetadataConnection
from spotrun.clouds.notices import Blind, Notice
from spotrun.store.atomic_write import write_atomically

HOST_VARIABLE = "GCE_METADATA_HOST"
HOSTS = ("169.254.169.254", "metadata.google.internal")
"""The server's address, which works without a name server, and the server's name, for instances with IPv6 only."""
ROOT = "/computeMetadata/v1/"
FLAVOR_HEADER, FLAVOR = "Metadata-Flavor", "Google"
PREEMPTED = "instance/preempted"
MAINTENANCE = "instance/maintenance-event"
HELD_BACK_S = 60
"""Maximum seconds for which the server delays an answer. After that it sends the unchanged value, which is normal."""
ANSWER_WITHIN_S = 5.0
"""Maximum seconds to wait for an answer, in addition to HELD_BACK_S."""

NOTICE_VARIABLE = "SPOTRUN_NOTICE_S"
"""The bootstrap's variable for the seconds of notice that the launch requested; 0 if the launch requested none."""
EXTENDED_NOTICE = timedelta(seconds=120)
"""
Time from the announcement to the shutdown signal. The instance usually ends USUAL_NOTICE after the signal, but spotrun
does not count on that extra time.
"""
USUAL_NOTICE = timedelta(seconds=30)
"""Time from the shutdown signal to the end of the instance."""
HEARD_LATE = timedelta(seconds=3)
"""
Time that may have passed between the shutdown signal and the moment when the agent receives the notice. It is
subtracted from the usual notice.
"""


class MetadataValue:
    """
    One value of the metadata. The server answers the first request immediately. It holds back the answer to each later
    request until the value changes, but for at most `held_back_s`. After a failure, the next of `hosts` is used, and
    that host answers its first request immediately too.
    """

    def __init__(
        self,
        name: str,
        hosts: tuple[str, ...],
        held_back_s: float = HELD_BACK_S,
        answer_within_s: float = ANSWER_WITHIN_S,
    ) -> None:
        self._name = name
        self._hosts = cycle(hosts)
        self._held_back_s = held_back_s
        self._answer_within_s = answer_within_s
        self._connection = self._next_host()
        self._etag: str | None = None

    def get(self) -> str:
        """Return the value; raise Blind if the server does not answer, or if its answer has no value."""
        etag, self._etag = self._etag, None
        try:
            return self._ask(etag)
        except Blind:
            self._connection = self._next_host()
            raise

    def _ask(self, etag: str | None) -> str:
        path, timeout_s = ROOT + self._name, self._answer_within_s
        if etag is not None:
            wait = {"wait_for_change": "true", "last_etag": etag, "timeout_sec": f"{self._held_back_s:.0f}"}
            path, timeout_s = f"{path}?{urlencode(wait)}", timeout_s + self._held_back_s
        answer = self._connection.ask("GET", path, {FLAVOR_HEADER: FLAVOR}, timeout_s)
        if answer.headers.get(FLAVOR_HEADER) != FLAVOR:
            raise Blind(f"{self._name}: HTTP {answer.status}, not from Google's metadata server")
        if answer.status != 200:
            raise Blind(f"{self._name}: HTTP {answer.status}")
        self._etag = answer.headers.get("ETag")
        return answer.body.decode("ascii", "replace").strip()

    def _next_host(self) -> MetadataConnection:
        parts = urlsplit(f"//{next(self._hosts)}")
        return MetadataConnection(parts.hostname or HOSTS[0], parts.port)


class PreemptionNotices:
    """
    A source of preemption notices. `left` is the time between the announcement of a preemption and the end of the
    instance. The file `kept` stores when the announcement was first seen, so a restarted agent still counts from that
    time.
    """

    def __init__(self, value: MetadataValue, left: timedelta, kept: Path | None, clock: Clock) -> None:
        self._value = value
        self._left = left
        self._kept = kept
        self._clock = clock
        self._heard_s: float | None = None

    def notices(self) -> Iterator[Notice]:
        preempted = self._value.get()
        if preempted not in ("TRUE", "FALSE"):
            raise Blind(f"{PREEMPTED} is neither TRUE nor FALSE: {preempted[:80]!r}")
        if preempted == "TRUE":
            now_s = self._clock.monotonic()
            deadline_s = self._heard_at(now_s) + self._left.total_seconds()
            yield Notice("termination", self._clock.now() + timedelta(seconds=deadline_s - now_s), deadline_s)

    def _heard_at(self, now_s: float) -> float:
        """
        Return the monotonic run time at which the preemption was first seen. All processes of a machine share this
        clock.
        """
        if self._heard_s is None:
            self._heard_s = min(now_s, _read(self._kept, now_s))
            _write(self._kept, self._heard_s)
        return self._heard_s


class HostMaintenance:
    """
    A source of recommendations. Google announces up to an hour ahead that host maintenance will end the instance.
    Because this is so early, spotrun treats it as a recommendation, not as a notice. If Google will migrate the
    instance instead, nothing is reported.
    """

    def __init__(self, value: MetadataValue) -> None:
        self._value = value

    def notices(self) -> Iterator[Notice]:
        event = self._value.get()
        if event == "TERMINATE_ON_HOST_MAINTENANCE":
            yield Notice("rebalance")
        elif event not in ("NONE", "MIGRATE_ON_HOST_MAINTENANCE"):
            raise Blind(f"{MAINTENANCE} holds no known event: {event[:80]!r}")


def gce_notices(environment: Mapping[str, str], clock: Clock) -> tuple[PreemptionNotices, HostMaintenance]:
    """
    Return the sources that read notices from the metadata server. The server's host is the value of HOST_VARIABLE, or
    else one of HOSTS.
    """
    host = environment.get(HOST_VARIABLE)
    hosts = HOSTS if host is None else (host,)
    folder = environment.get("SPOTRUN_INSTANCE_DIR")
    kept = None if folder is None else Path(folder) / "preempted-at"
    left = time_left(timedelta(seconds=int(environment.get(NOTICE_VARIABLE, "0"))))
    return PreemptionNotices(MetadataValue(PREEMPTED, hosts), left, kept, clock), HostMaintenance(
        MetadataValue(MAINTENANCE, hosts)
    )


def time_left(asked: timedelta) -> timedelta:
    """
    Return how much time an instance has after the announcement of a preemption. `asked` is the length of notice that
    the launch requested.
    """
    return asked or USUAL_NOTICE - HEARD_LATE


def _read(kept: Path | None, otherwise: float) -> float:
    """Return the stored time, or `otherwise` if it cannot be read."""
    if kept is not None:
        with contextlib.suppress(OSError, ValueError):
            return float(kept.read_text())
    return otherwise


def _write(kept: Path | None, heard_s: float) -> None:
    """Store the time. Ignore failures, because the notice must be reported even if the disk is full."""
    if kept is not None:
        with contextlib.suppress(OSError):
            write_atomically(kept, repr(heard_s).encode())
