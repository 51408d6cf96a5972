"""
What a call to Google Cloud has to be allowed, by the method's name in Google's discovery documents.

Each method's page in the reference has its permissions:
https://cloud.google.com/compute/docs/reference/rest/v1 and https://cloud.google.com/iam/docs/reference/rest; those of
buckets, folders and objects are at https://cloud.google.com/storage/docs/access-control/iam-json. That page writes
`managedfolders`; roles and https://cloud.google.com/storage/docs/access-control/using-iam-for-managed-folders have
`managedFolders`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

ALWAYS: Mapping[str, tuple[str, ...]] = {
    "cloudbilling.services.skus.list": (),
    "cloudresourcemanager.projects.testIamPermissions": (),
    "compute.advice.capacityHistory": ("compute.advice.capacityHistory",),
    "compute.disks.aggregatedList": ("compute.disks.list",),
    "compute.disks.delete": ("compute.disks.delete",),
    "compute.firewalls.list": ("compute.firewalls.list",),
    "compute.globalOperations.aggregatedList": ("compute.globalOperations.list",),
    "compute.images.get": ("compute.images.get",),
    "compute.images.getFromFamily": ("compute.images.getFromFamily",),
    "compute.instances.aggregatedList": ("compute.instances.list",),
    "compute.instances.delete": ("compute.instances.delete",),
    "compute.instances.get": ("compute.instances.get",),
    "compute.instances.getSerialPortOutput": ("compute.instances.getSerialPortOutput",),
    "compute.instances.insert": ("compute.instances.create",),
    "compute.instances.testIamPermissions": (),
    "compute.machineTypes.list": ("compute.machineTypes.list",),
    "compute.projects.get": ("compute.projects.get",),
    "compute.regions.list": ("compute.regions.list",),
    "compute.reservations.aggregatedList": ("compute.reservations.list",),
    "compute.subnetworks.get": ("compute.subnetworks.get",),
    "compute.zoneOperations.get": ("compute.zoneOperations.get",),
    "compute.zones.list": ("compute.zones.list",),
    "iam.projects.serviceAccounts.create": ("iam.serviceAccounts.create",),
    "iam.projects.serviceAccounts.delete": ("iam.serviceAccounts.delete",),
    "iam.projects.serviceAccounts.get": ("iam.serviceAccounts.get",),
    "iam.projects.serviceAccounts.list": ("iam.serviceAccounts.list",),
    "iam.projects.serviceAccounts.testIamPermissions": (),
    "secretmanager.projects.secrets.versions.get": ("secretmanager.versions.get",),
    "storage.buckets.get": ("storage.buckets.get",),
    "storage.buckets.getIamPolicy": ("storage.buckets.getIamPolicy",),
    "storage.buckets.testIamPermissions": (),
    "storage.managedFolders.delete": ("storage.managedFolders.delete",),
    "storage.managedFolders.getIamPolicy": ("storage.managedFolders.getIamPolicy",),
    "storage.managedFolders.insert": ("storage.managedFolders.create",),
    "storage.managedFolders.setIamPolicy": ("storage.managedFolders.setIamPolicy",),
    "storage.objects.delete": ("storage.objects.delete",),
    "storage.objects.get": ("storage.objects.get",),
    "storage.objects.insert": ("storage.objects.create",),
    "storage.objects.list": ("storage.objects.list",),
}
"""The methods that spotrun may call, and what each needs whatever it is called with."""
OPTIONAL: Mapping[str, tuple[str, ...]] = {
    "cloudresourcemanager.projects.getIamPolicy": ("resourcemanager.projects.getIamPolicy",),
}
"""The methods that `spotrun doctor` tries, and does without where they are denied. No role has what they need."""
BY_ACCOUNTS: Mapping[str, tuple[str, ...]] = {
    "secretmanager.projects.secrets.versions.access": ("secretmanager.versions.access",),
}
"""The methods that instances call, and the runners of nights. Who launches needs none of them."""
WITH: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "compute.instances.insert": {
        "disks.initializeParams": ("compute.disks.create",),
        "disks.initializeParams.labels": ("compute.disks.setLabels",),
        "disks.initializeParams.sourceImage": ("compute.images.useReadOnly",),
        "labels": ("compute.instances.setLabels",),
        "metadata.items": ("compute.instances.setMetadata",),
        "networkInterfaces.subnetwork": ("compute.subnetworks.use",),
        "networkInterfaces.accessConfigs": ("compute.subnetworks.useExternalIp",),
        "serviceAccounts.email": ("compute.instances.setServiceAccount", "iam.serviceAccounts.actAs"),
    },
}
"""What it needs besides where its body has this field."""
NOT_EMPTY = {"storage.managedFolders.delete": ("allowNonEmpty", "storage.managedFolders.setIamPolicy")}
"""What it needs besides where its query has this: https://cloud.google.com/storage/docs/json_api/v1/managedFolder/delete"""
OVERWRITING = "storage.objects.delete"
"""What an insert over an object that is there needs."""


def needed(method: str, body: Mapping[str, Any] | None = None, query: Mapping[str, str] | None = None) -> set[str]:
    """
    Every permission that a call needs. An insert of an object may overwrite one, unless it says that there is none.

    Raises:
        KeyError: spotrun does not call this method.
    """
    found = set({**ALWAYS, **OPTIONAL, **BY_ACCOUNTS}[method])
    for field, permissions in WITH.get(method, {}).items():
        if any(_values(body or {}, field.split("."))):
            found.update(permissions)
    parameter, permission = NOT_EMPTY.get(method, ("", ""))
    if (query or {}).get(parameter) == "true":
        found.add(permission)
    if method == "storage.objects.insert" and (query or {}).get("ifGenerationMatch") != "0":
        found.add(OVERWRITING)
    return found


def _values(value: Any, path: list[str]) -> Iterator[Any]:
    """All that is at a path; of a list each element."""
    if isinstance(value, list):
        for each in value:
            yield from _values(each, path)
    elif not path:
        yield value
    elif isinstance(value, dict) and path[0] in value:
        yield from _values(value[path[0]], path[1:])
