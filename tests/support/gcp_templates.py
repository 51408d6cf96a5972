"""The Terraform files of infra/gcp, and of nights there: as they are written, and as Terraform evaluates them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import hcl2
import yaml

from tests.support.repository import ROOT

FOLDER = ROOT / "infra" / "gcp"
NIGHTS = FOLDER / "nights"
TERRAFORM = shutil.which("terraform")
NUMBER = "123456789012"
"""Of the project, which Google tells with its bucket."""
META = {"for_each", "count", "depends_on", "lifecycle"}
"""What Terraform itself takes in each resource."""
_READ = hcl2.SerializationOptions(with_comments=False, explicit_blocks=False, strip_string_quotes=True)
REFERENCE = re.compile(r"\b(google_\w+)\.(\w+)(\[[^\]]+\])?(?:\.(\w+))?")
"""To a resource: its type, its name, its key, and what is asked of it."""

Block = Mapping[str, Any]


class Resource(NamedTuple):
    type: str
    name: str


class Evaluated(NamedTuple):
    """`key` is that of for_each or count, or None."""

    resource: Resource
    key: str | int | None
    values: Block


@cache
def written(of: Path = FOLDER) -> Mapping[str, list[Block]]:
    """The blocks of all files by their kind. An expression is a text within ${}."""
    found: dict[str, list[Block]] = {}
    for path in sorted(of.glob("*.tf")):
        with path.open() as file:
            for kind, blocks in hcl2.load(file, serialization_options=_READ).items():
                found.setdefault(kind, []).extend(blocks)
    return found


def resources(of: Path = FOLDER) -> dict[Resource, Block]:
    return {
        Resource(kind, name): body
        for block in written(of)["resource"]
        for kind, named in block.items()
        for name, body in named.items()
    }


def named(kind: str, of: Path = FOLDER) -> dict[str, Block]:
    """All `variable` or `output` blocks by their names."""
    return {name: body for block in written(of).get(kind, ()) for name, body in block.items()}


@cache
def roles(of: Path = FOLDER) -> Mapping[str, Block]:
    """The custom roles by their ids, as gcloud reads them too."""
    return {path.stem: yaml.safe_load(path.read_text()) for path in sorted((of / "roles").iterdir())}


@cache
def permissions(*names: str) -> frozenset[str]:
    known = {**roles(), **roles(NIGHTS)}
    return frozenset(each for name in names for each in known[name]["includedPermissions"])


@cache
def conditions() -> Mapping[str, Block]:
    """The conditions by the roles that they are for."""
    return {path.stem: yaml.safe_load(path.read_text()) for path in sorted((FOLDER / "conditions").iterdir())}


def refusal(folder: Path, variables: Mapping[str, Any]) -> str:
    """What Terraform says against these values of the variables; empty if nothing."""
    shutil.copy(FOLDER / "variables.tf", folder)
    done = _terraform(folder, "plan", variables)
    assert (done.returncode == 0) == (done.stderr == ""), done.stderr
    return done.stderr


def evaluated(folder: Path, variables: Mapping[str, Any], of: Path = FOLDER) -> tuple[list[Evaluated], dict[str, Any]]:
    """
    All resources as Terraform plans them, and the outputs.

    Google's provider is not needed: each resource becomes one of Terraform's own kind, which takes any values, with its
    arguments and blocks as input.
    """
    for name in ("roles", "conditions"):
        if (of / name).exists():
            shutil.copytree(of / name, folder / name)
    if of != FOLDER:
        shutil.copytree(FOLDER / "conditions", folder.parent / "conditions")
    shutil.copy(of / "variables.tf", folder)
    (folder / "main.tf.json").write_text(json.dumps(_without_provider(of), indent=1))
    done = _terraform(folder, "init", {})
    assert done.returncode == 0, done.stderr
    done = _terraform(folder, "plan", variables, "-out=plan")
    assert done.returncode == 0, done.stderr
    done = _terraform(folder, "show", {}, "-json", "plan")
    assert done.returncode == 0, done.stderr
    planned = json.loads(done.stdout)["planned_values"]
    found = [
        Evaluated(Resource(*each["name"].split("__")), each.get("index"), each["values"]["input"])
        for each in planned["root_module"]["resources"]
    ]
    return found, {name: each["value"] for name, each in planned.get("outputs", {}).items()}


def _without_provider(of: Path) -> dict[str, Any]:
    made = {}
    for resource, body in resources(of).items():
        meta = {name: value for name, value in body.items() if name in META}
        if "depends_on" in meta:  # the one place where JSON has a bare reference
            meta["depends_on"] = [_redirected(each).removeprefix("${").removesuffix("}") for each in meta["depends_on"]]
        given = {name: value for name, value in body.items() if name not in META}
        made["__".join(resource)] = meta | {"input": _told(resource) | given}
    outputs = _redirected(named("output", of))
    return {
        "locals": _redirected(written(of)["locals"]),
        "resource": {"terraform_data": _redirected(made)},
        **({"output": outputs} if outputs else {}),
    }


def _told(resource: Resource) -> dict[str, str]:
    """In place of what the provider tells of a resource."""
    if resource.type == "google_project_iam_custom_role":
        return {"name": "projects/${var.project}/roles/${each.key}"}
    if resource.type == "google_service_account":
        email = f"spotrun-{resource.name}@${{var.project}}.iam.gserviceaccount.com"
        return {"email": email, "name": f"projects/${{var.project}}/serviceAccounts/{email}"}
    if resource.type == "google_storage_bucket":
        return {"project_number": NUMBER}
    return {"id": "/".join(resource)}


def _redirected(value: Any) -> Any:
    """With each reference to a resource as one to what stands in its place."""
    if isinstance(value, dict):
        return {key: _redirected(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_redirected(each) for each in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    return REFERENCE.sub(_stand_in, value)


def _stand_in(reference: re.Match[str]) -> str:
    kind, name, key, asked = reference.groups(default="")
    return f"terraform_data.{kind}__{name}{key}" + (f".input.{asked}" if asked else "")


def _terraform(
    folder: Path, verb: str, variables: Mapping[str, Any], *options: str
) -> subprocess.CompletedProcess[str]:
    assert TERRAFORM is not None
    environment = {name: text for name, text in os.environ.items() if not name.startswith("TF_")}
    environment |= {"CHECKPOINT_DISABLE": "1", "HOME": str(folder)}
    environment |= {f"TF_VAR_{name}": _as_text(value) for name, value in variables.items()}
    command = [TERRAFORM, verb, "-no-color", *([] if verb == "show" else ["-input=false"]), *options]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
