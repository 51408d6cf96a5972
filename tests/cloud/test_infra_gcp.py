"""infra/gcp: Terraform and gcloud make the same of it, and its roles are as narrow as it says."""

from __future__ import annotations

import copy
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from spotrun.folder.keys import key_of
from spotrun.store.lifecycle import gcs_expiries
from tests.data.google_provider import RESOURCES
from tests.support.cel import Resource as Named
from tests.support.cel import extracted, holds
from tests.support.gcloud_commands import EDITOR, GCLOUD, VIEWER, Asked, arguments, recorded
from tests.support.gcp_permissions import ALWAYS, OVERWRITING, WITH, needed
from tests.support.gcp_policies import bucket_named, folder_named
from tests.support.gcp_templates import (
    FOLDER,
    META,
    NIGHTS,
    NUMBER,
    REFERENCE,
    TERRAFORM,
    Evaluated,
    Resource,
    conditions,
    evaluated,
    named,
    permissions,
    refusal,
    resources,
    roles,
    written,
)
from tests.support.provider_schema import faults, schema
from tests.support.repository import ROOT

PROJECT, RUNNER = "acme-training", "user:ada@example.com"
BUCKET = f"spotrun-{PROJECT}"
VARIABLES = {"project": PROJECT, "runners": [RUNNER]}
README = (FOLDER / "README.md").read_text()
GRANTS = {
    ("project", "spotrunRunner"): None,
    ("project", "spotrunEnd"): conditions()["spotrunEnd"],
    ("bucket", "spotrunBucket"): None,
    ("bucket", "spotrunChange"): conditions()["spotrunChange"],
    ("bucket", "spotrunFolder"): conditions()["spotrunFolder"],
}
"""What a runner is granted where, under which condition."""
OF_ACCOUNTS = {("project", "spotrunSecret"): conditions()["spotrunSecret"]}
"""What every service account of the project is granted."""
ACCOUNTS = f"principalSet://cloudresourcemanager.googleapis.com/projects/{NUMBER}/type/ServiceAccount"
needs_terraform = pytest.mark.skipif(TERRAFORM is None, reason="there is no terraform on the PATH")
needs_gcloud = pytest.mark.skipif(GCLOUD is None, reason="there is no gcloud on the PATH")


# -- the files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.tf")), ids=lambda path: str(path.relative_to(FOLDER)))
def test_lines_are_indented_by_their_depth_and_neighbours_have_their_signs_below_one_another(path: Path) -> None:
    assert list(badly_formatted(path.read_text().splitlines())) == []


def test_the_check_of_formatting_finds_what_terraform_fmt_would_mend() -> None:
    assert list(badly_formatted(["a {", "   b = 1", "}"])) == ["   b = 1"]
    assert list(badly_formatted(["a = 1", "long = 2"])) == ["long = 2"]
    assert list(badly_formatted(["a = 1 "])) == ["a = 1 "]
    assert list(badly_formatted(["a    = 1", "long = 2", "", "b = {", "  c = 3", "}"])) == []


def badly_formatted(lines: list[str]) -> Iterator[str]:
    """Lines that `terraform fmt` would change, as far as these files have occasion to."""
    depth, column = 0, 0
    for line in lines:
        code = re.sub(r'"[^"]*"|#.*', '""', line).strip()
        depth -= code.startswith(("}", "]", ")"))
        if line != line.rstrip() or (line and len(line) - len(line.lstrip()) != 2 * depth):
            yield line
        opens = code.endswith(("{", "[", "("))
        depth += opens
        sign = 0 if opens or not re.match(r"[a-z_]+ *= ", code) else line.index("=")
        if sign and column and sign != column:
            yield line
        column = sign


@needs_terraform
def test_terraform_fmt_would_change_nothing() -> None:
    command = [str(TERRAFORM), "fmt", "-check", "-diff", "-recursive", str(FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def all_faults(found: Mapping[Resource, Mapping[str, Any]]) -> list[str]:
    known = schema()
    bodies = {each: {name: value for name, value in body.items() if name not in META} for each, body in found.items()}
    return [fault for each, body in bodies.items() for fault in faults(known[each.type], body, ".".join(each))]


@pytest.mark.checks("infra/gcp")
def test_googles_provider_knows_every_argument_and_block_and_misses_none() -> None:
    assert {each.type for each in (*resources(), *resources(NIGHTS))} == set(RESOURCES) == set(schema())
    assert all_faults(resources()) == all_faults(resources(NIGHTS)) == []


def test_the_check_against_the_schema_finds_what_the_provider_would_refuse() -> None:
    wrong: Any = copy.deepcopy(dict(resources()))
    bucket = wrong[Resource("google_storage_bucket", "runs")]
    bucket["soft_delete_policy"][0]["retention_seconds"] = bucket["soft_delete_policy"][0].pop(
        "retention_duration_seconds"
    )
    bucket["uniform_access"] = bucket.pop("uniform_bucket_level_access")
    bucket["versioning"] = "on"
    del bucket["location"], bucket["lifecycle_rule"][0]["action"][0]["type"]
    assert all_faults(wrong) == [
        "google_storage_bucket.runs: location is missing",
        "google_storage_bucket.runs.soft_delete_policy: no argument is called retention_seconds",
        "google_storage_bucket.runs.lifecycle_rule.action: type is missing",
        "google_storage_bucket.runs: no argument is called uniform_access",
        "google_storage_bucket.runs: no argument is called versioning",
    ]


def test_each_terraform_reference_has_its_target() -> None:
    text = json.dumps([list(resources().values()), written()["locals"], written()["output"]])
    assert set(re.findall(r"\bvar\.(\w+)", text)) == set(named("variable"))
    assert set(re.findall(r"\blocal\.(\w+)", text)) == {name for block in written()["locals"] for name in block}
    for kind, name, _, asked in REFERENCE.findall(text):
        assert Resource(kind, name) in resources()
        assert not asked or asked in schema()[kind]["told"]


def test_each_variable_and_output_says_what_it_is() -> None:
    assert all(body["description"] and "type" in body for body in named("variable").values())
    assert all(body["description"] for body in named("output").values())
    table = re.findall(r"^\| `(\w+)` \|", README.partition("Terraform takes these variables")[2], re.MULTILINE)
    assert table[: len(named("variable"))] == list(named("variable"))


# -- what Terraform makes of them ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Evaluated], dict[str, Any]]:
    return evaluated(tmp_path_factory.mktemp("planned"), VARIABLES)


def of_type(found: list[Evaluated], *kinds: str) -> list[Mapping[str, Any]]:
    return [each.values for each in found if each.resource.type in kinds]


@needs_terraform
def test_terraform_makes_the_roles_and_grants_them_as_they_are_meant(
    planned: tuple[list[Evaluated], dict[str, Any]],
) -> None:
    found, told = planned
    made = {each["role_id"]: each for each in of_type(found, "google_project_iam_custom_role")}
    assert {name: each["permissions"] for name, each in made.items()} == {
        name: each["includedPermissions"] for name, each in roles().items()
    }
    assert {name: (each["title"], each["description"], each["stage"]) for name, each in made.items()} == {
        name: (each["title"], each["description"], each["stage"]) for name, each in roles().items()
    }
    members = of_type(found, "google_project_iam_member", "google_storage_bucket_iam_member")
    assert {each["member"] for each in members} == {RUNNER, ACCOUNTS}
    assert {each.get("bucket", each.get("project")) for each in members} == {BUCKET, PROJECT}
    for member, meant in ((RUNNER, GRANTS), (ACCOUNTS, OF_ACCOUNTS)):
        granted = {
            ("bucket" if "bucket" in each else "project", each["role"].rpartition("/")[2]): each.get("condition")
            for each in members
            if each["member"] == member
        }
        assert granted == {key: condition and [condition] for key, condition in meant.items()}
    assert told == {
        "store": f"gs://{BUCKET}/runs",
        "subnets": {"us-central1": "google_compute_subnetwork/nodes"},
        "roles": {name: f"projects/{PROJECT}/roles/{name}" for name in roles()},
    }


@needs_terraform
def test_viewers_of_the_project_read_no_object_and_named_readers_no_key(
    planned: tuple[list[Evaluated], dict[str, Any]], tmp_path: Path
) -> None:
    """A new bucket lets every Viewer read its objects, the keys of runs among them."""
    (binding,) = of_type(planned[0], "google_storage_bucket_iam_binding")
    assert (binding["role"], binding["members"]) == (VIEWER["role"], [RUNNER])
    removing = ["storage", "buckets", "remove-iam-policy-binding"]
    (removed,) = (each for each in commands_of_the_readme(tmp_path) if each[:3] == removing)
    assert (option(removed, "role"), option(removed, "member")) == (VIEWER["role"], f"projectViewer:{PROJECT}")
    (tmp_path / "with").mkdir()
    found, _ = evaluated(tmp_path / "with", {**VARIABLES, "readers": ["group:staff@example.com"]})
    members = of_type(found, "google_storage_bucket_iam_member")
    (reads,) = [each for each in members if each["member"] == "group:staff@example.com"]
    assert reads["role"] == "roles/storage.objectViewer"
    assert reads["condition"] == [conditions()["spotrunRead"]]


@needs_terraform
def test_no_ingress_is_open_unless_ssh_is_enabled(
    planned: tuple[list[Evaluated], dict[str, Any]], tmp_path: Path
) -> None:
    found, _ = planned
    assert of_type(found, "google_compute_firewall") == []
    (network,) = of_type(found, "google_compute_network")
    assert network["auto_create_subnetworks"] is False  # the default network's rules come with such subnets
    members = {*VARIABLES["runners"], ACCOUNTS, "group:staff@example.com"}
    asked = {
        **VARIABLES,
        "ssh_members": ["group:staff@example.com"],
        "bucket": "mine",
        "subnets": {"europe-west4": "10.0.0.0/24"},
    }
    with_ssh, told = evaluated(tmp_path, asked)
    (rule,) = of_type(with_ssh, "google_compute_firewall")
    assert (rule["direction"], rule["source_ranges"]) == ("INGRESS", ["35.235.240.0/20"])
    assert rule["allow"] == [{"protocol": "tcp", "ports": ["22"]}]
    granted = {each["member"]: each["role"] for each in of_type(with_ssh, "google_project_iam_member")}
    assert granted.keys() == members
    assert granted["group:staff@example.com"] == f"projects/{PROJECT}/roles/spotrunSsh"
    assert told["store"] == "gs://mine/runs"
    assert list(told["subnets"]) == ["europe-west4"]


@needs_terraform
def test_terraform_refuses_values_that_would_open_or_break_something(tmp_path: Path) -> None:
    wrong = {
        "project": "123456789012",
        "runners": [RUNNER, "allUsers"],
        "bucket": "ledger",
        "subnets": {"us-central1": "10.10.0.0"},
        "ssh_members": ["allAuthenticatedUsers"],
        "readers": ["allUsers"],
    }
    told = refusal(tmp_path, wrong)
    assert re.findall(r'^\s*\d+: variable "(\w+)"', told, re.MULTILINE) == [*wrong]
    assert refusal(tmp_path, VARIABLES) == ""
    assert "of this name" not in refusal(tmp_path, {**VARIABLES, "bucket": "ledgers"})
    assert "lower-case letters" in refusal(tmp_path, {**VARIABLES, "bucket": "Runs"})


# -- what gcloud makes of them ---------------------------------------------------------------------------------------


def commands_of_the_readme(folder: Path) -> list[list[str]]:
    (block,) = (text for text in README.split("```")[1::2] if "gcloud services enable" in text)
    return arguments(block, folder)


def option(command: list[str], name: str) -> str | None:
    return next((each.partition("=")[2] for each in command if each.startswith(f"--{name}=")), None)


def test_gcloud_commands_make_all_roles_and_grants_of_terraform(tmp_path: Path) -> None:
    commands = commands_of_the_readme(tmp_path)
    made = {each[3]: option(each, "file") for each in commands if each[:3] == ["iam", "roles", "create"]}
    assert made == {name: f"infra/gcp/roles/{name}.yaml" for name in roles()}
    granted = {}
    for each in commands:
        if "add-iam-policy-binding" in each:
            where = "bucket" if each[0] == "storage" else "project"
            role = (option(each, "role") or "").removeprefix(f"projects/{PROJECT}/roles/")
            granted[where, role] = option(each, "condition-from-file") or option(each, "condition")
    assert granted == {
        (where, role): "None" if condition is None else f"infra/gcp/conditions/{role}.yaml"
        for (where, role), condition in {**GRANTS, **OF_ACCOUNTS}.items()
    }
    (services,) = resources_of("google_project_service")
    (enabled,) = (each for each in commands if each[:2] == ["services", "enable"])
    assert [each for each in enabled if each.endswith(".com")] == re.findall(r'"([^"]+)"', services["for_each"])


def resources_of(kind: str) -> list[Mapping[str, Any]]:
    return [body for each, body in resources().items() if each.type == kind]


@pytest.mark.checks("infra/gcp")
@needs_gcloud
def test_gcloud_asks_google_for_what_terraform_makes(tmp_path: Path) -> None:
    found = recorded(commands_of_the_readme(tmp_path), tmp_path)
    assert {each["roleId"]: each["role"] for each in bodies(found.asked, f"/v1/projects/{PROJECT}/roles")} == roles()
    policies = {"project": found.policies[f"projects/{PROJECT}"], "bucket": found.policies[f"b/{BUCKET}"]}
    assert {policy["version"] for policy in policies.values()} == {3}
    bindings = {
        (where, each["role"].removeprefix(f"projects/{PROJECT}/roles/")): (each["members"], each.get("condition"))
        for where, policy in policies.items()
        for each in policy["bindings"]
    }
    assert bindings.pop(("project", "roles/editor")) == (EDITOR["members"][1:], None)
    wanted = {key: ([RUNNER], condition) for key, condition in GRANTS.items()}
    assert bindings == wanted | {key: ([ACCOUNTS], condition) for key, condition in OF_ACCOUNTS.items()}
    (network,) = bodies(found.asked, f"/compute/v1/projects/{PROJECT}/global/networks")
    assert (network["name"], network["autoCreateSubnetworks"]) == ("spotrun", False)
    (subnet,) = bodies(found.asked, f"/compute/v1/projects/{PROJECT}/regions/us-central1/subnetworks")
    assert (subnet["name"], subnet["privateIpGoogleAccess"]) == ("spotrun", True)
    assert {"us-central1": subnet["ipCidrRange"]} == named("variable")["subnets"]["default"]
    assert subnet["network"].endswith("/global/networks/spotrun")
    (bucket,) = bodies(found.asked, "/storage/v1/b")
    assert bucket == {
        "name": BUCKET,
        "location": "us-central1",
        "iamConfiguration": {"publicAccessPrevention": "enforced", "uniformBucketLevelAccess": {"enabled": True}},
        "softDeletePolicy": {"retentionDurationSeconds": "0"},
        "lifecycle": json.loads((FOLDER / "lifecycle.json").read_text()),
    }


def bodies(asked: Iterator[Asked] | Any, path: str) -> list[Mapping[str, Any]]:
    return [each.body for each in asked if (each.method, each.path) == ("POST", path)]


def test_no_page_says_of_what_works_that_it_does_not_yet() -> None:
    for page in (README, (ROOT / "docs" / "gcp.md").read_text()):
        assert not re.search(r"not launch instances on Google Cloud\s+yet|do not work yet|Until then nobody", page)


# -- the bucket ------------------------------------------------------------------------------------------------------


def test_the_bucket_is_private_keeps_nothing_deleted_and_stays() -> None:
    (bucket,) = resources_of("google_storage_bucket")
    assert bucket["uniform_bucket_level_access"] is True
    assert bucket["public_access_prevention"] == "enforced"
    assert bucket["soft_delete_policy"] == [{"retention_duration_seconds": 0}]
    assert bucket["lifecycle"] == [{"prevent_destroy": True}]
    assert not {"force_destroy", "retention_policy", "versioning", "autoclass"} & set(bucket)


def test_no_rule_of_the_bucket_expires_what_is_there_and_unfinished_uploads_end() -> None:
    (bucket,) = resources_of("google_storage_bucket")
    rules = [{"action": each["action"][0], "condition": each["condition"][0]} for each in bucket["lifecycle_rule"]]
    assert {"rule": rules} == json.loads((FOLDER / "lifecycle.json").read_text())
    assert gcs_expiries(rules, "runs/") == ()
    assert [each["action"]["type"] for each in rules] == ["AbortIncompleteMultipartUpload"]


# -- the roles -------------------------------------------------------------------------------------------------------

OF_RUNNERS = ("spotrunRunner", "spotrunEnd", "spotrunBucket", "spotrunFolder", "spotrunChange")


def test_the_roles_of_a_runner_have_what_its_calls_need_and_no_more() -> None:
    possible = {each for method in ALWAYS for each in needed(method)}
    possible |= {each for fields in WITH.values() for found in fields.values() for each in found}
    possible.add("serviceusage.services.use")  # for each call of a login that names this project as its quota project
    assert permissions(*OF_RUNNERS) == possible
    assert sum(len(roles()[name]["includedPermissions"]) for name in OF_RUNNERS) == len(possible)


def test_permissions_for_the_bucket_are_granted_there_alone() -> None:
    for where, role in GRANTS:
        assert {each.startswith("storage.") for each in permissions(role)} == {where == "bucket"}
    assert permissions("spotrunCreate", "spotrunChange") == {
        *needed("storage.objects.get"),
        *needed("storage.objects.list"),
        *needed("storage.objects.insert"),
        *needed("storage.objects.delete"),
    }
    assert OVERWRITING not in permissions("spotrunCreate", "spotrunBucket", "spotrunRunner")


def test_a_call_needs_what_its_body_asks_for() -> None:
    insert = "compute.instances.insert"
    assert needed(insert) == {"compute.instances.create"}
    body = {
        "disks": [{"boot": True}, {"initializeParams": {"labels": {"spotrun-run": "0123456789"}}}],
        "networkInterfaces": [{"subnetwork": "regions/us-central1/subnetworks/spotrun"}],
    }
    assert needed(insert, body) == {
        "compute.instances.create",
        "compute.disks.create",
        "compute.disks.setLabels",
        "compute.subnetworks.use",
    }
    assert OVERWRITING in needed("storage.objects.insert", query={"name": "runs/r-1/hints/runner.json"})
    assert OVERWRITING not in needed("storage.objects.insert", query={"ifGenerationMatch": "0"})
    with pytest.raises(KeyError):
        needed("compute.instances.start")


@pytest.mark.parametrize("name", roles())
def test_no_role_can_give_itself_more_or_wake_what_has_ended(name: str) -> None:
    policies = {each for each in permissions(name) if each.endswith("setIamPolicy")}
    assert policies == ({"storage.managedFolders.setIamPolicy"} if name == "spotrunFolder" else set())
    beyond = r"serviceAccountKeys|\.roles\.|resourcemanager|instances\.(start|resume|reset|update)|networks\.create|\*"
    assert not [each for each in permissions(name) if re.search(beyond, each)]
    assert (
        len(roles()[name]["description"]) <= 256
    )  # https://cloud.google.com/iam/docs/reference/rest/v1/projects.roles
    assert roles()[name]["includedPermissions"].count("iam.serviceAccounts.actAs") == (
        name in ("spotrunRunner", "spotrunSsh")
    )


# -- the conditions --------------------------------------------------------------------------------------------------


def in_the_bucket(name: str, bucket: str = BUCKET) -> Named:
    """https://cloud.google.com/iam/docs/conditions-resource-attributes: how a condition sees an object."""
    return Named(f"projects/_/buckets/{bucket}/objects/{name}", "storage.googleapis.com/Object")


@pytest.mark.parametrize(
    "name",
    [
        "runs/resnet-0123456789/ledger/00000000.json",
        "resnet-0123456789/ledger/00000017.json",
        "runs/r-0123456789/ledger/ledger/x",
        "runs/r-0123456789/ledger//x",
        "runs/r-0123456789/checkpoints/ledger/../x",
        "runs/ledger/r-0123456789/hints/runner.json",
        f"runs/{key_of('0123456789')}",
        f"runs/{key_of('0123456789', 'ab' * 32)}",
        key_of("0123456789"),
        "runs/keys//0123456789",
        "a/keys/b/ledger/c",
    ],
)
def test_no_runner_changes_a_ledger_or_a_key(name: str) -> None:
    assert not holds(conditions()["spotrunChange"]["expression"], in_the_bucket(name))


@pytest.mark.parametrize(
    "name",
    [
        "runs/r-0123456789/hints/runner.json",
        "runs/r-0123456789/checkpoints/00000012/part-0",
        "runs/ledger-0123456789/hints/runner.json",
        "runs/keys-0123456789/notified/x",
        "runs/r-0123456789/logs/2/ledger",
        "runs/r-0123456789/ledger/",  # a folder's mark of the console, which holds nothing
    ],
)
def test_a_runner_changes_all_else(name: str) -> None:
    assert holds(conditions()["spotrunChange"]["expression"], in_the_bucket(name))


def test_a_bucket_of_a_name_that_terraform_refuses_would_be_protected_as_a_whole() -> None:
    for bucket in ("ledger", "keys"):
        found = in_the_bucket("runs/r-0123456789/hints/runner.json", bucket)
        assert not holds(conditions()["spotrunChange"]["expression"], found)


@pytest.mark.parametrize(
    ("name", "may"),
    [
        ("runs/r-0123456789/", True),
        ("runs/keys-0123456789/", True),
        ("team/runs/r-0123456789/", True),
        ("runs/", False),
        ("runs/keys/", False),
        ("runs/keys/0123456789/", False),
        ("runs/team/keys/", False),
        ("team/", False),
        ("team/runs/", False),
        ("team/runs/keys/", False),
        ("keys/", False),
        ("other/r-0123456789/", False),
        ("runs", False),
    ],
)
def test_runner_sets_who_uses_the_folder_of_a_run_and_never_that_of_keys_or_one_over_it(name: str, may: bool) -> None:
    """With the policy of runs/keys/, or of runs/, a stolen login could grant itself the deletion of keys."""
    assert holds(conditions()["spotrunFolder"]["expression"], folder_named(BUCKET, name)) is may


def test_bucket_called_runs_is_refused_because_each_of_its_folders_would_be_inside_of_runs() -> None:
    assert holds(conditions()["spotrunFolder"]["expression"], folder_named("runs", "keys0/"))
    assert '"runs"]' in (FOLDER / "variables.tf").read_text()


def test_condition_for_folders_holds_for_the_bucket_so_that_the_doctor_sees_the_right() -> None:
    assert holds(conditions()["spotrunFolder"]["expression"], bucket_named(BUCKET))


@pytest.mark.parametrize(
    "name", ["runs/keys/0123456789", f"runs/{key_of('0123456789', 'ab' * 32)}", "keys/0", "a/keys/b"]
)
def test_reader_of_runs_reads_no_key(name: str) -> None:
    assert not holds(conditions()["spotrunRead"]["expression"], in_the_bucket(name))
    for readable in ("runs/r-0123456789/ledger/00000000.json", "runs/keys-0123456789/checkpoints/1"):
        assert holds(conditions()["spotrunRead"]["expression"], in_the_bucket(readable))
    assert holds(conditions()["spotrunRead"]["expression"], bucket_named(BUCKET)), "or nobody could list"


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("projects/acme/zones/us-central1-a/instances/spotrun-0123456789-3-00c0ffee-s-g2-standard-4", True),
        ("projects/acme/zones/us-central1-a/disks/spotrun-0123456789-3-00c0ffee-s-g2-standard-4", True),
        ("projects/acme/zones/us-central1-a/instances/database", False),
        ("projects/acme/zones/us-central1-a/instances/my-spotrun-1", False),
        ("projects/acme/zones/us-central1-a/disks/database", False),
        ("projects/spotrun-training/zones/us-central1-a/instances/database", False),
        ("projects/acme/zones/spotrun-a/instances/database", False),
        ("projects/instances/zones/us-central1-a/instances/database", False),
        ("projects/acme/global/images/spotrun-image", False),
        ("projects/acme/zones/us-central1-a/instances/", False),
        ("projects/acme", False),
    ],
)
def test_a_runner_ends_what_spotrun_has_launched_and_nothing_else(name: str, ends: bool) -> None:
    assert holds(conditions()["spotrunEnd"]["expression"], Named(name)) is ends


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("secrets/spotrun-WANDB_API_KEY/versions/3", True),
        ("secrets/spotrun-WANDB_API_KEY/versions/latest", True),
        ("locations/europe-west4/secrets/spotrun-WANDB_API_KEY/versions/1", True),
        ("secrets/database/versions/1", False),
        ("secrets/my-spotrun-key/versions/1", False),
        ("secrets/spotrun/versions/1", False),
        ("secrets/Spotrun-KEY/versions/1", False),
        ("secrets/database/versions/spotrun-1", False),
        ("locations/spotrun-1/secrets/database/versions/1", False),
        ("", False),
    ],
)
def test_an_account_reads_the_secrets_of_spotrun_and_no_other(name: str, reads: bool) -> None:
    found = Named(f"projects/{NUMBER}/{name}", "secretmanager.googleapis.com/SecretVersion")
    assert holds(conditions()["spotrunSecret"]["expression"], found) is reads
    assert permissions("spotrunSecret") == needed("secretmanager.projects.secrets.versions.access")
    assert not permissions("spotrunSecret") & permissions(*OF_RUNNERS), "who launches reads no value"


@pytest.mark.parametrize("role", conditions())
def test_a_condition_is_short_enough_for_a_policy(role: str) -> None:
    """https://cloud.google.com/iam/docs/conditions-overview: 12 logical operators at most, with a title."""
    condition = conditions()[role]
    assert condition.keys() == {"title", "description", "expression"}
    assert len(re.findall(r"&&|\|\||!(?!=)", condition["expression"])) <= 12
    assert len(condition["title"]) <= 100


def test_the_reader_of_conditions_reads_them_as_google_says() -> None:
    """By the examples and rules of https://cloud.google.com/iam/docs/conditions-attribute-reference."""
    disk = "projects/acme/zones/us-east1-b/disks/spotrun-1"
    assert extracted(disk, "/disks/{name}") == "spotrun-1"
    assert extracted(disk, "projects/{project}/") == "acme"
    assert extracted(disk, "{all}") == disk
    assert extracted(disk, "{before}/zones/") == "projects/acme"
    assert extracted(disk, "/images/{name}") == ""
    assert extracted(disk, "/zones/{zone}/images/") == ""
    found = Named(disk, "compute.googleapis.com/Disk")
    assert holds('!(resource.type == "x") && (resource.name.endsWith("-1") || resource.name == "x")', found)
    assert not holds('resource.name.startsWith("projects/") && resource.type != "compute.googleapis.com/Disk"', found)
    assert holds('resource.type == "x" && resource.name == "x" || resource.name.extract("/disks/{n}") != ""', found)
    for strange in ("request.time", 'resource.name.contains("x")', 'resource.name == "x" ||', "resource.name", '("x"'):
        with pytest.raises(NotImplementedError):
            holds(strange, found)
