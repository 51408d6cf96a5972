"""
Writes google_provider.json: a slice of the schema of Terraform's provider for Google Cloud, for infra/gcp alone.

    python -m tests.data.google_provider WHEEL

The provider itself is a program of 100 MB that a test cannot ask without a registry. Its schema is also in the wheel
cdktf-cdktf-provider-google on PyPI (https://pypi.org/project/cdktf-cdktf-provider-google): in a description that jsii
makes for all languages. A class `…Config` has the arguments of a resource; a property whose type is another class is a
block. What a resource tells of itself besides has a property of the class without `Config`.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SLICE = Path(__file__).with_suffix(".json")
PACKAGE = "@cdktf/provider-google"
RESOURCES = (
    "google_compute_firewall",
    "google_compute_network",
    "google_compute_subnetwork",
    "google_project_default_service_accounts",
    "google_project_iam_custom_role",
    "google_project_iam_member",
    "google_project_service",
    "google_service_account",
    "google_service_account_iam_member",
    "google_storage_bucket",
    "google_storage_bucket_iam_binding",
    "google_storage_bucket_iam_member",
)
_ARGUMENT = re.compile(r"/google/([\d.]+)/docs/resources/\w+#(\w+) ")
_NOT_GIVEN = {"id", "count", "connection", "dependsOn", "forEach", "lifecycle", "provider", "provisioners"}
"""`id` is told by the provider; the others are those of Terraform itself."""


def sliced(wheel: Path) -> dict[str, Any]:
    with zipfile.ZipFile(wheel) as files:
        (packed,) = (name for name in files.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(files.read(packed))) as package:
            described = package.extractfile("package/.jsii")
            assert described is not None
            types = json.load(described)["types"]
    resources = {name: _resource(types, name) for name in RESOURCES}
    (version,) = {each.pop("version") for each in resources.values()}
    source = f"{wheel.name.split('-py3')[0]}: hashicorp/google {version}"
    return {"source": source, "resources": resources}


def _resource(types: Mapping[str, Any], name: str) -> dict[str, Any]:
    words = [word.capitalize() for word in name.removeprefix("google_").split("_")]
    kind = "".join(words)
    base = f"{PACKAGE}.{kind[0].lower()}{kind[1:]}.{kind}"
    config = types[f"{base}Config"]
    version, _ = _documented(config["properties"][0])
    told = {_snake(each["name"]) for each in types[base]["properties"] if not each.get("static")}
    given = {name for name in told if name.endswith("_input")}  # cdktf's own
    return {"version": version, **_struct(types, config), "told": sorted(told - given)}


def _documented(described: Mapping[str, Any]) -> tuple[str, str]:
    """The version of the provider, and what it calls the argument of a property."""
    named = _ARGUMENT.search(" ".join(described["docs"].values()))
    assert named is not None, described
    return named[1], named[2]


def _struct(types: Mapping[str, Any], described: Mapping[str, Any]) -> dict[str, Any]:
    arguments, blocks, required = {}, {}, []
    for each in described["properties"]:
        if each["name"] in _NOT_GIVEN:
            continue
        _, name = _documented(each)
        if not each.get("optional"):
            required.append(name)
        inner = _inner(each["type"])
        if inner is None:
            arguments[name] = _plain(each["type"])
        else:
            blocks[name] = _struct(types, types[inner])
    return {"arguments": arguments, "blocks": blocks, "required": required}


def _inner(kind: Mapping[str, Any]) -> str | None:
    """The class of a block's content, of one or of a list of them."""
    names = re.findall(rf'"({PACKAGE}\.[^"]+)"', json.dumps(kind))
    assert len(names) < 2, names
    return names[0] if names else None


def _plain(kind: Mapping[str, Any]) -> str:
    """string, number, boolean, or a list or map of them."""
    if "collection" in kind:
        return f"{kind['collection']['kind']} of {_plain(kind['collection']['elementtype'])}".replace("array", "list")
    if "union" in kind:
        told = {_plain(each) for each in kind["union"]["types"] if each.get("fqn") != "cdktf.IResolvable"}
        (only,) = told
        return only
    name: str = kind["primitive"]
    return name


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


if __name__ == "__main__":
    SLICE.write_text(json.dumps(sliced(Path(sys.argv[1])), indent=1) + "\n")
