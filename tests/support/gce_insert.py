"""
What Compute Engine refuses of an insert at once, and what it makes of the rest.

Where a rule has no address it is of https://cloud.google.com/compute/docs/reference/rest/v1/instances/insert.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any

from tests.support.gce_answers import Json, bad_request, invalid, last_part, not_found
from tests.support.gce_catalog import IMAGES, KINDS, NETWORKS, SUBNETS, ImageKind, MachineKind, region_of

LABELS_MAX = 64
VALUE_MAX = 256 * 1024
"""Bytes: https://cloud.google.com/compute/docs/metadata/setting-custom-metadata"""
LIMIT_S = (30, 120 * 24 * 3600)
"""https://cloud.google.com/compute/docs/instances/limit-vm-runtime"""
NOTICES_S = (0, 120)
"""https://cloud.google.com/compute/docs/reference/rest/v1/instances: preemptionNoticeDuration, of Spot VMs only"""
_KEY, _VALUE = re.compile(r"[a-z][a-z0-9_-]{0,62}"), re.compile(r"[a-z0-9_-]{0,63}")


def check_request_id(text: str | None) -> None:
    """A UUID, and not that of zeros."""
    try:
        good = text is None or uuid.UUID(text).int != 0
    except ValueError:
        good = False
    if not good:
        raise invalid("requestId", text, "The request ID must be a valid, non-zero UUID.")


def check_labels(labels: Mapping[str, str], field: str = "labels") -> None:
    """Here letters are those of ASCII alone. https://cloud.google.com/compute/docs/labeling-resources"""
    if len(labels) > LABELS_MAX:
        raise invalid(field, len(labels), f"At most {LABELS_MAX} labels are allowed.")
    for key, value in labels.items():
        if not _KEY.fullmatch(key):
            raise invalid(field, key, "Label key violates format constraints.")
        if not _VALUE.fullmatch(value):
            raise invalid(field, value, f"Label value '{value}' violates format constraints.")


def checked_kind(asked: Json, zone: str) -> MachineKind:
    name = last_part(str(asked.get("machineType") or ""))
    kind = KINDS.get(name)
    if kind is None or zone not in kind.zones:
        why = f"Machine type with name '{name}' does not exist in zone '{zone}'."
        raise invalid("machineType", asked.get("machineType"), why)
    return kind


def checked_scheduling(asked: Json, kind: MachineKind) -> Json:
    """With Google's defaults."""
    found: dict[str, Any] = {
        name: value for name, value in (asked.get("scheduling") or {}).items() if value is not None
    }
    model = found.setdefault("provisioningModel", "STANDARD")
    is_spot = model == "SPOT" or bool(found.get("preemptible"))
    found.setdefault("onHostMaintenance", "TERMINATE" if is_spot else "MIGRATE")
    found.setdefault("automaticRestart", not is_spot)
    found.setdefault("preemptible", is_spot)
    _check_market(found, is_spot)
    _check_maintenance(found, is_spot, kind)
    _check_limit(found, is_spot)
    _check_notice(found, model)
    return found


def _check_market(scheduling: Json, is_spot: bool) -> None:
    """https://cloud.google.com/compute/docs/instances/spot: no restart, no live migration."""
    if is_spot and not scheduling["preemptible"]:
        raise bad_request("Scheduling must have preemptible be true when provisioning model is SPOT.")
    if is_spot and scheduling["automaticRestart"]:
        raise bad_request("Scheduling must have automaticRestart be false when preemptible is true.")
    if is_spot and scheduling["onHostMaintenance"] == "MIGRATE":
        raise bad_request("Scheduling must have onHostMaintenance be TERMINATE when preemptible is true.")


def _check_maintenance(scheduling: Json, is_spot: bool, kind: MachineKind) -> None:
    """
    https://cloud.google.com/compute/docs/gpus: with GPUs there is no live migration. E2 on demand has to migrate:
    https://github.com/skypilot-org/skypilot/issues/1006.
    """
    if kind.gpu is not None and scheduling["onHostMaintenance"] == "MIGRATE":
        raise bad_request("Instances with guest accelerators do not support live migration.")
    if kind.family == "e2" and not is_spot and scheduling["onHostMaintenance"] == "TERMINATE":
        raise bad_request("[onHostMaintenance=TERMINATE] is not supported for e2 instances.")


def _check_limit(scheduling: Json, is_spot: bool) -> None:
    action, limit = scheduling.get("instanceTerminationAction"), scheduling.get("maxRunDuration")
    if action is not None and not is_spot and limit is None:
        why = "It needs a Spot VM, or maxRunDuration."
        raise invalid("scheduling.instanceTerminationAction", action, why)
    if limit is not None and action is None:
        raise bad_request("Scheduling must have instanceTerminationAction when maxRunDuration is set.")
    if limit is not None and not LIMIT_S[0] <= int(limit.get("seconds", 0)) <= LIMIT_S[1]:
        raise invalid("scheduling.maxRunDuration.seconds", limit.get("seconds"), "It is not between 30 s and 120 d.")


def _check_notice(scheduling: Json, model: str) -> None:
    notice = scheduling.get("preemptionNoticeDuration")
    if notice is None:
        return
    field = "scheduling.preemptionNoticeDuration"
    if model != "SPOT":
        raise invalid(field, notice, "It is only supported for Spot VMs.")
    if int(notice.get("seconds", 0)) not in NOTICES_S or notice.get("nanos"):
        raise invalid(field, notice, "Supported values are 0 and 120 seconds.")


def check_metadata(asked: Json) -> None:
    items = (asked.get("metadata") or {}).get("items") or []
    keys = [each["key"] for each in items]
    if len(keys) != len(set(keys)):
        raise invalid("metadata.items", keys, "There is a duplicate metadata key.")
    for each in items:
        if len(each["value"].encode()) > VALUE_MAX:
            raise invalid("metadata.items.value", each["key"], f"The value exceeds {VALUE_MAX} characters.")


def check_network(asked: Json, zone: str) -> None:
    interfaces = asked.get("networkInterfaces") or []
    if not interfaces:
        raise invalid("networkInterfaces", "", "At least one network interface is required.")
    for number, each in enumerate(interfaces):
        field = f"networkInterfaces[{number}]"
        subnet, network = each.get("subnetwork"), each.get("network")
        known = {here.name for here in SUBNETS if here.region == region_of(zone)}
        if subnet and (last_part(subnet) not in known or f"/{region_of(zone)}/" not in f"/{subnet}"):
            raise invalid(f"{field}.subnetwork", subnet, "The referenced subnetwork resource cannot be found.")
        if network and last_part(network) not in NETWORKS:
            raise invalid(f"{field}.network", network, "The referenced network resource cannot be found.")
        if last_part(network or "default") == "spotrun" and not subnet:
            raise bad_request("Subnetwork should be specified for custom subnetmode network")


def checked_image(link: str, project: str) -> ImageKind:
    """By name or family; `global/images/…` is of the own project."""
    path = link.partition("/compute/v1/")[2] or link
    whole = path if path.startswith("projects/") else f"projects/{project}/{path}"
    for image in IMAGES:
        base = f"projects/{image.project}/global/images"
        if whole in (f"{base}/{image.name}", f"{base}/family/{image.family}"):
            return image
    raise not_found(whole)


def checked_disk(asked: Json, field: str, kind: MachineKind, project: str) -> tuple[ImageKind, str, int]:
    """The image of a disk, its type and its size in GiB."""
    params = asked.get("initializeParams") or {}
    if not params.get("sourceImage"):
        raise invalid(field, asked, "Boot disk must have a source specified")
    image = checked_image(params["sourceImage"], project)
    disk_kind = last_part(params.get("diskType") or "pd-standard")
    if disk_kind not in kind.disks:
        raise bad_request(f"[{disk_kind}] features are not compatible for creating instance.")
    size_gb = int(params.get("diskSizeGb") or image.size_gb)
    if size_gb < image.size_gb:
        why = f"Requested disk size cannot be smaller than the image size ({image.size_gb} GB)"
        raise invalid(f"{field}.initializeParams.diskSizeGb", size_gb, why)
    return image, disk_kind, size_gb
