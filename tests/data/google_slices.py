"""
Writes tests/data/google: slices of Google's own discovery documents, for the methods that tests serve alone.

    python -m tests.data.google_slices WHEEL

The documents are in the wheel google-api-python-client on PyPI; that of Compute Engine has 5 MB and 1,025 methods. A
slice keeps what a check needs: no descriptions, and of the schemas those that a method's bodies are made of.
https://developers.google.com/discovery/v1/reference/apis
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "google"
METHODS: Mapping[str, str] = {
    "cloudbilling.v1": "services.skus.list",
    "cloudscheduler.v1": """
        projects.locations.jobs.create projects.locations.jobs.delete projects.locations.jobs.get
        projects.locations.jobs.patch projects.locations.jobs.pause projects.locations.jobs.resume
        projects.locations.list""",
    "cloudresourcemanager.v3": "projects.get projects.getIamPolicy projects.testIamPermissions",
    "compute.v1": """
        advice.capacityHistory
        diskTypes.get
        disks.aggregatedList disks.delete disks.get disks.list
        firewalls.list
        globalOperations.aggregatedList
        images.get images.getFromFamily
        instances.aggregatedList instances.delete instances.get instances.getSerialPortOutput instances.insert
        instances.simulateMaintenanceEvent
        instances.testIamPermissions
        machineTypes.get machineTypes.list
        networks.get networks.list
        projects.get
        regions.get regions.list
        reservations.aggregatedList
        subnetworks.get subnetworks.list
        zoneOperations.get zoneOperations.wait
        zones.get zones.list""",
    "iam.v1": """
        projects.serviceAccounts.create projects.serviceAccounts.delete projects.serviceAccounts.get
        projects.serviceAccounts.getIamPolicy projects.serviceAccounts.list
        projects.serviceAccounts.testIamPermissions""",
    "iamcredentials.v1": "projects.serviceAccounts.generateIdToken",
    "run.v2": """
        projects.locations.services.delete projects.locations.services.get projects.locations.services.patch""",
    "secretmanager.v1": """
        projects.secrets.addVersion projects.secrets.create
        projects.secrets.versions.access projects.secrets.versions.disable projects.secrets.versions.get""",
    "serviceusage.v1": "services.batchGet services.list",
    "storage.v1": """
        buckets.get buckets.getIamPolicy buckets.insert buckets.testIamPermissions
        managedFolders.delete managedFolders.get managedFolders.getIamPolicy managedFolders.insert managedFolders.list
        managedFolders.setIamPolicy
        objects.compose objects.copy objects.delete objects.get objects.insert objects.list objects.patch
        objects.rewrite objects.update""",
}
_KEPT = {
    "$ref", "additionalProperties", "annotations", "enum", "format", "items", "location", "maximum", "minimum",
    "pattern", "properties", "repeated", "required", "type",
}  # fmt: skip
_OF_METHOD = ("httpMethod", "path", "request", "response", "supportsMediaDownload")


def sliced(document: Mapping[str, Any], source: str, names: str) -> dict[str, Any]:
    """
    The part of a document that describes these methods.

    Raises:
        KeyError: Google has no such method.
    """
    all_methods = dict(_methods(document))
    methods = {name: _method(all_methods[name]) for name in sorted(names.split())}
    schemas: dict[str, Any] = {}
    wanted = list(_references(methods))
    while wanted:
        name = wanted.pop()
        if name not in schemas:
            schemas[name] = _kept(document["schemas"][name])
            wanted += _references(schemas[name])
    return {
        "source": f"{source}: revision {document['revision']}",
        "servicePath": f"/{document['servicePath']}",
        "parameters": {name: _kept(each) for name, each in document["parameters"].items()},
        "methods": methods,
        "schemas": dict(sorted(schemas.items())),
    }


def _methods(resource: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, method in resource.get("methods", {}).items():
        yield prefix + name, method
    for name, inner in resource.get("resources", {}).items():
        yield from _methods(inner, f"{prefix}{name}.")


def _method(described: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: described[name] for name in _OF_METHOD if name in described}
    kept["parameters"] = {name: _kept(each) for name, each in described["parameters"].items()}
    if "mediaUpload" in described:
        kept["uploads"] = [each["path"] for each in described["mediaUpload"]["protocols"].values()]
    return kept


def _kept(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema without what only people read."""
    kept = {name: value for name, value in schema.items() if name in _KEPT}
    for name in ("items", "additionalProperties"):
        if name in kept:
            kept[name] = _kept(kept[name])
    if "properties" in kept:
        kept["properties"] = {name: _kept(each) for name, each in kept["properties"].items()}
    return kept


def _references(value: Any) -> Iterator[str]:
    return iter(re.findall(r'"\$ref": "(\w+)"', json.dumps(value)))


def _dumped(value: Any, indent: str = "") -> str:
    """JSON in which all that fits is on one line."""
    line = json.dumps(value)
    if len(indent) + len(line) <= 118 or not isinstance(value, dict):
        return line
    inner = indent + " "
    fields = (f"{inner}{json.dumps(name)}: {_dumped(each, inner)}" for name, each in value.items())
    return "{\n" + ",\n".join(fields) + f"\n{indent}}}"


def _write(wheel: Path) -> None:
    source = wheel.name.split("-py3")[0]
    with zipfile.ZipFile(wheel) as files:
        for api, names in METHODS.items():
            document = json.loads(files.read(f"googleapiclient/discovery_cache/documents/{api}.json"))
            (FOLDER / f"{api}.json").write_text(_dumped(sliced(document, source, names)) + "\n")


if __name__ == "__main__":
    _write(Path(sys.argv[1]))
