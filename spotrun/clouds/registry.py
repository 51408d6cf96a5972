"""
Finds clouds by name.

To add a cloud to spotrun, make a package `spotrun.clouds.NAME` whose module `cloud.py` defines the object `CLOUD`, and
add the name to `spotrun.spec.clouds`. Another package can add a cloud too: it defines such an object, and declares it
as an entry point:

    [project.entry-points."spotrun.clouds"]
    acme = "acme_cloud:CLOUD"

Nothing else has to be changed: a job with `resources.cloud: acme`, `spotrun offers --cloud acme`, `spotrun doctor acme`
and `spotrun reap --cloud acme` find the cloud by this entry point. The tests have a complete example in one file.
"""

from __future__ import annotations

from spotrun.clock import ScaledClock
from spotrun.clouds.cloud import Cloud
from spotrun.clouds.nights import Nights
from spotrun.folder.night import Night
from spotrun.spec.clouds import find_cloud
from spotrun.spec.model import RunSpec


def cloud_named(name: str) -> Cloud:
    """Return the cloud of this name; raise SpecInvalid if there is none."""
    found: Cloud = find_cloud(name)
    return found


def cloud_of(spec: RunSpec) -> Cloud:
    """
    Return the cloud that a run rents from, combined with the user's own machine if the job names that machine as its
    home.
    """
    rented = cloud_named(spec.resources.cloud)
    if spec.resources.home is None:
        return rented
    from spotrun.clouds.owned_machine import OwnedMachineCloud

    return OwnedMachineCloud(rented)


def clock_of(spec: RunSpec) -> ScaledClock:
    return cloud_of(spec).clock(spec)


def nights_of(night: Night) -> Nights:
    """Return the interface of the night's cloud with which spotrun installs nights and calls their runners."""
    return cloud_named(night.cloud).nights(night.region, RunSpec.from_dict(night.spec))
