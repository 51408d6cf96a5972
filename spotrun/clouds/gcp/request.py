"""
Converts a LaunchRequest into a call of instances.insert. This one call does everything, so no launch can fail halfway.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from spotrun.clouds.gcp.bootstrap import startup_script
from spotrun.clouds.gcp.calls import SCOPE
from spotrun.clouds.gcp.config import HYPERDISK_ONLY, GcpConfig
from spotrun.clouds.gcp.gpus import in_label
from spotrun.clouds.gcp.names import name_for
from spotrun.clouds.gcp.notices import EXTENDED_NOTICE
from spotrun.instance import LaunchRequest
from spotrun.offering import CapacityType, Offering

RUN, LAUNCH, TOKEN = "spotrun-run", "spotrun-launch", "spotrun-token"
NANO_PRICE = "spotrun-nano-usd-per-hour"
"""The label for the price. The price is an integer, in nano-dollars an hour, because a label cannot contain a dot."""
ACCELERATORS, CPUS, MEMORY = "spotrun-accelerators", "spotrun-cpus", "spotrun-memory-gib"
NANO = Decimal(10) ** 9
LIMIT_MIN = timedelta(seconds=30)
"""
The shortest limit of a VM's lifetime that Google accepts:
https://cloud.google.com/compute/docs/instances/limit-vm-runtime
"""
HYPERDISK = "hyperdisk-balanced"
INCLUDED_SPEED = {"provisionedIops": "3000", "provisionedThroughput": "140"}
"""
The speed that a Hyperdisk's price includes, in IOPS and MiB/s. Without these settings Google would provision a higher
speed and bill it: https://cloud.google.com/compute/docs/disks/hd-types/hyperdisk-balanced
"""
_NO_MIGRATION = ("a2-", "a3-", "a4-", "a4x-", "g2-", "g4-", "h3-", "h4d-", "m3-ultramem-metal", "z3-")
"""
Prefixes of the instance types that cannot migrate: when their host needs maintenance, Google ends the instance. Google
also ends an instance with GPUs, whatever its type.
"""


def request_id(request: LaunchRequest, notice: timedelta, denials: int = 0) -> str:
    """
    Return the id of the request. If a call has the same id as an earlier call, Google does nothing and repeats its
    earlier answer. So the id depends only on the token and the run, and a repeated launch starts no second instance.

    But after a refusal, the next call needs a different id, or Google would repeat the refusal. So the id also depends
    on two arguments. `notice` is 0 if Google refused a call that requested a notice, because the next call then
    requests none. `denials` is the number of calls that Google refused because the launch's service account was unknown
    or not allowed.
    """
    asked_for = f"{request.run_uid}{'' if notice else ':no-notice'}{f':{denials}' if denials else ''}"
    return str(uuid5(NAMESPACE_URL, f"spotrun:{request.token}:{asked_for}"))


def insert_body(
    request: LaunchRequest, config: GcpConfig, project: str, notice: timedelta = EXTENDED_NOTICE
) -> dict[str, Any]:
    """
    Return the body of the request, which depends only on the arguments. `notice` is the time that is requested between
    a spot instance's notice and its shutdown signal; 0 requests no notice.
    """
    offering = request.offering
    zone = f"zones/{offering.zone}"
    notice = notice if offering.capacity_type is CapacityType.SPOT else timedelta()
    external = [{"name": "external-nat", "type": "ONE_TO_ONE_NAT"}] if config.external_address else []
    secure = {"enableSecureBoot": True} if config.secure_boot else {}
    return {
        "name": str(name_for(request)),
        "description": f"launch {request.launch} of the run {request.run_uid} of spotrun",
        "machineType": f"{zone}/machineTypes/{offering.instance_type}",
        "labels": labels_of(request),
        "disks": [_boot_disk(request, config)],
        "networkInterfaces": [{"subnetwork": offering.subnet, **({"accessConfigs": external} if external else {})}],
        "scheduling": _scheduling(request, notice),
        **_reserved(offering, config),
        "serviceAccounts": [{"email": config.account_of(request.run_uid, project), "scopes": [SCOPE]}],
        "shieldedInstanceConfig": {"enableVtpm": True, "enableIntegrityMonitoring": True, **secure},
        "metadata": {
            "items": [
                {"key": "startup-script", "value": startup_script(request, notice)},
                {"key": "block-project-ssh-keys", "value": "true"},
                {"key": "enable-oslogin", "value": "TRUE"},
            ]
        },
    }


def _reserved(offering: Offering, config: GcpConfig) -> dict[str, Any]:
    """
    Return the settings with which an on-demand instance uses the job's reservation:
    https://cloud.google.com/compute/docs/instances/reservations-consume
    """
    if config.reservation is None or offering.capacity_type is CapacityType.SPOT:
        return {}
    named = {"key": "compute.googleapis.com/reservation-name", "values": [config.reservation]}
    return {"reservationAffinity": {"consumeReservationType": "SPECIFIC_RESERVATION", **named}}


def labels_of(request: LaunchRequest) -> dict[str, str]:
    """Return the instance's labels. By these labels, any driver knows to which run and launch the instance belongs."""
    offering = request.offering
    labels = {
        RUN: request.run_uid,
        LAUNCH: str(request.launch),
        TOKEN: request.token,
        NANO_PRICE: str(int(offering.price_usd_per_hour * NANO)),
        ACCELERATORS: in_label(offering.accelerators),
        CPUS: str(offering.cpus),
        MEMORY: str(offering.memory_gib),
    }
    return {key: value for key, value in labels.items() if value}


def disk_type(instance_type: str) -> str:
    return HYPERDISK if instance_type.partition("-")[0] in HYPERDISK_ONLY else "pd-balanced"


def _boot_disk(request: LaunchRequest, config: GcpConfig) -> dict[str, Any]:
    offering = request.offering
    kind = disk_type(offering.instance_type)
    return {
        "boot": True,
        "autoDelete": True,
        "initializeParams": {
            "sourceImage": offering.image,
            "diskSizeGb": str(config.volume_gib),
            "diskType": f"zones/{offering.zone}/diskTypes/{kind}",
            "labels": {RUN: request.run_uid, LAUNCH: str(request.launch)},
            **(INCLUDED_SPEED if kind == HYPERDISK else {}),
        },
    }


def _scheduling(request: LaunchRequest, notice: timedelta) -> dict[str, Any]:
    """
    Return the scheduling options. Google ends the instance after `maxRunDuration` even if the runner and the agent are
    dead, so no guard is needed (protocol 11). The instance is deleted, not stopped, because a stopped instance's disk
    is billed (G3).
    """
    offering = request.offering
    spot = offering.capacity_type is CapacityType.SPOT
    limit = max(request.time_to_live, LIMIT_MIN)
    scheduling: dict[str, Any] = {
        "provisioningModel": "SPOT" if spot else "STANDARD",
        "instanceTerminationAction": "DELETE",
        "onHostMaintenance": "TERMINATE" if spot or _is_ended_for_its_host(request) else "MIGRATE",
        "automaticRestart": False,
        "maxRunDuration": _duration(limit),
    }
    if spot:
        scheduling["preemptible"] = True
    if notice:
        scheduling["preemptionNoticeDuration"] = _duration(notice)
    return scheduling


def _is_ended_for_its_host(request: LaunchRequest) -> bool:
    return bool(request.offering.accelerators) or request.offering.instance_type.startswith(_NO_MIGRATION)


def _duration(length: timedelta) -> dict[str, str]:
    return {"seconds": str(int(length.total_seconds()))}
