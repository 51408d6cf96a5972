"""
The clouds by their names.

One more is a package `spotrun.clouds.NAME` whose `cloud.py` has a `CLOUD`, with its name in `spotrun.spec.clouds`. From
outside it is an object of that kind, which an entry point names:

    [project.entry-points."spotrun.clouds"]
    acme = "acme_cloud:CLOUD"

Nothing else has to know it: a job with `resources.cloud: acme`, `spotrun offers --cloud acme`, `spotrun doctor acme`
and `spotrun reap --cloud acme` find it here. The tests bring a whole one in one file.
"""

from __future__ import annotations

from spotrun.clock import ScaledClock
from spotrun.clouds.cloud import Cloud
from spotrun.clouds.nights import Nights
from spotrun.folder.night_record import Night
from spotrun.spec.clouds import find_cloud
from spotrun.spec.model import RunSpec


def cloud_named(name: str) -> Cloud:
    """
    Raises:
        SpecInvalid: there is none of that name.
    """
    found: Cloud = find_cloud(name)
    return found


def cloud_of(spec: RunSpec) -> Cloud:
    """Return the cloud that a run rents from, along with a machine of the user's own if the job names one."""
    rented = cloud_named(spec.resources.cloud)
    if spec.resources.home is None:
        return rented
    from spotrun.clouds.owned_machine import AtHome

    return AtHome(rented)


def clock_of(spec: RunSpec) -> ScaledClock:
    """Return the clock of a run that begins now."""
    return cloud_of(spec).clock(spec)


def nights_of(night: Night) -> Nights:
    """Return what calls the runner of a night."""
    return cloud_named(night.cloud).nights(night.region, RunSpec.from_dict(night.spec))
