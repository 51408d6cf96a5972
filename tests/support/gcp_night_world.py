"""
Nights in virtual time on Google Cloud: a plain project, Cloud Scheduler as it says that it calls, and the runner of a
night as Cloud Run runs it. See NightWorld.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from spotrun.clouds.gcp.calls import Google
from spotrun.clouds.gcp.cloud import Gcp
from spotrun.clouds.gcp.control_plane import MEMORY_MB
from spotrun.clouds.gcp.night_alarm import TICK, GcpAlarm, job_of
from spotrun.clouds.gcp.nights import schedule
from spotrun.clouds.nights import Alarm, when_due, when_due_again
from spotrun.store import gcs
from tests.support.gce_answers import Refusal
from tests.support.gce_catalog import PROJECT
from tests.support.google_cloud import How
from tests.support.google_nights import GoogleNights
from tests.support.night_world import NAME, NightWorld
from tests.support.object_stores import BUCKET
from tests.support.plain_google import PlainGoogle

REGION, TYPE = "us-central1", "g2-standard-4"
JOB = f"projects/{PROJECT}/locations/{REGION}/jobs/{job_of(NAME, TICK)}"
DUE = tuple(f"projects/{PROJECT}/locations/{REGION}/jobs/{job_of(NAME, kind)}" for kind in ("begin", "again"))
DENIED = Refusal(403, "forbidden", "Required permission is gone by the test")


class GcpNightWorld(NightWorld):
    """`google` has Compute Engine and IAM, `called` the job of Cloud Scheduler that is switched."""

    store, cloud, region = f"gs://{BUCKET}/runs", "gcp", REGION
    where: Mapping[str, Any] = {"gcp": {"regions": [REGION], "instance_types": [TYPE]}}
    memory_mb = MEMORY_MB
    google: PlainGoogle
    called: GoogleNights

    def _open_account(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.account = self.google = PlainGoogle(self.clock)
        self.called = GoogleNights(self.google)
        self.called.jobs[JOB] = {"name": JOB, "schedule": "* * * * *", "state": "PAUSED"}
        self.called.jobs |= {name: {"name": name, "state": "ENABLED"} for name in DUE}
        self.google.fault = self._met
        self.google.reach(monkeypatch)
        monkeypatch.setattr(gcs, "GcsStore", self._opened)
        monkeypatch.setattr(Gcp, "clock", lambda *_: self.clock)

    def _met(self, method: str) -> How | None:
        try:
            self._meet("google", method)
        except Refusal as refusal:
            return refusal
        return None

    def new_alarm(self) -> Alarm:
        return GcpAlarm(Google(self.clock), JOB, DUE)

    @property
    def is_called_each_minute(self) -> bool:
        return self.called.state_of(TICK) == "ENABLED"

    @property
    def is_told_of_instances(self) -> bool:
        return False

    def _as_it_is_made(self) -> None:
        """A job that is made is enabled; one that is there stays as it is."""

    def _goes(self) -> None:
        self.called.jobs[JOB]["state"] = "PAUSED"

    def _denial(self, operation: str) -> Exception:
        return DENIED

    def _retried_after_min(self, event: Mapping[str, Any]) -> Sequence[int]:
        """As nights.py asks for it: pauses that double up to a longest one."""
        return {"begin": (1, 3, 7, 11, 15), "again": (1, 3)}.get(event["kind"], ())

    def _fires(self, moment: datetime) -> Iterator[dict[str, Any]]:
        for kind, due in (("begin", when_due(self.night)), ("again", when_due_again(self.night))):
            if fires(schedule(due), self.night.zone, moment):
                yield {"kind": kind, "due": f"{moment:%Y-%m-%dT%H:%M:%SZ}"}

    def _is_spot(self, instance_id: str) -> bool:
        return self.google.project.vm(instance_id).is_spot

    def _is_heard_of(self, instance_id: str) -> bool:
        return False


def fires(cron: str, zone: str, moment: datetime) -> bool:
    """
    Whether a job fires in this minute, by the clock on the wall. At a time that comes twice it may do so twice, and at
    one that does not exist it may not fire: https://cloud.google.com/scheduler/docs/configuring/cron-job-schedules
    """
    minutes, hours, _, _, days = cron.split()
    local = moment.astimezone(ZoneInfo(zone))
    is_today = str((local.weekday() + 1) % 7) in days.split(",")
    return is_today and local.hour == int(hours) and local.minute in {int(each) for each in minutes.split(",")}
