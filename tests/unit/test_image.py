"""The name of a container image, and what a job says of its registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotrun.spec.file import load_spec
from spotrun.spec.image import PASSWORD, SERVER, USERNAME, image_of, read_image
from spotrun.spec.model import RunSpec
from spotrun.units import Unreadable

DIGEST = f"sha256:{'0f' * 32}"
part = st.from_regex(r"[a-z0-9]{1,8}([._-][a-z0-9]{1,8})?", fullmatch=True)
tag = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "name", "tag", "digest"),
    [
        ("docker:ubuntu:24.04", "docker.io/library/ubuntu", "24.04", ""),
        ("docker:team/image:a", "docker.io/team/image", "a", ""),
        (f"docker:ghcr.example/team/image@{DIGEST}", "ghcr.example/team/image", "", DIGEST),
        (f"docker:localhost:5000/a/b/c:1@{DIGEST}", "localhost:5000/a/b/c", "1", DIGEST),
        ("docker:localhost/a:1", "localhost/a", "1", ""),
    ],
)
def test_a_name_is_read_as_engines_read_it(text: str, name: str, tag: str, digest: str) -> None:
    image = image_of(text)
    assert (image.name, image.tag, image.digest) == (name, tag, digest)


@pytest.mark.exhaustive
@given(st.lists(part, min_size=1, max_size=4), tag)
def test_image_survives_a_round_trip_through_text(parts: list[str], tag: str) -> None:
    image = image_of(f"docker:{'/'.join(parts)}:{tag}")
    assert image_of(str(image)) == image
    pinned = image.with_digest(DIGEST)
    assert image_of(str(pinned)) == pinned
    assert pinned.pinned == f"{image.name}@{DIGEST}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("docker:", "names no image"),
        ("docker:Team/image:1", "capital letters"),
        ("docker:team/image", "neither tag nor digest"),
        ("docker:team/image:", "is not a tag"),
        ("docker:team/image@sha256:12", "is not a digest"),
        (f"docker:team/image@{DIGEST.upper()}", "is not a digest"),
        ("docker:team//image:1", "is not the name of an image"),
        ("docker:-x:1", "is not the name of an image"),
        ("docker:a b:1", "is not the name of an image"),
        ("docker:--privileged:1", "is not the name of an image"),
        ("ami-0123456789", "aws.image_id"),
        ("", "must be the name"),
        (3, "must be the name"),
        ({"us-east-1": "ami-1"}, "must be the name"),
    ],
)
def test_a_bad_form_is_one_line_with_what_to_write(text: Any, message: str) -> None:
    with pytest.raises(Unreadable, match=message) as caught:
        read_image(text)
    assert caught.value.suggestion
    assert "\n" not in str(caught.value)


def spec(**keys: Any) -> RunSpec:
    resources = {"image_id": "docker:team/image:1"}
    return RunSpec.model_validate({"name": "n", "workdir": "/w", "train": {"run": "x"}, "resources": resources} | keys)


def test_a_server_stands_before_a_name_without_a_host() -> None:
    assert str(spec(envs={SERVER: "registry.example:5000"}).image) == "docker:registry.example:5000/team/image:1"
    named = {"resources": {"image_id": "docker:other.example/image:1"}}
    assert spec(envs={SERVER: "registry.example"}, **named).image == image_of("docker:other.example/image:1")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"envs": {PASSWORD: "x"}}, "written into the ledger"),
        ({"envs": {USERNAME: "me"}}, f"{PASSWORD} is missing"),
        ({"secrets": [PASSWORD]}, f"{USERNAME} is missing"),
        ({"secrets": [SERVER]}, "is not a secret"),
        ({"envs": {SERVER: "https://registry.example/"}}, "is not a host"),
    ],
)
def test_a_login_is_a_name_and_a_secret(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spec(**keys)
    assert spec(envs={USERNAME: "me"}, secrets=[PASSWORD]).secret_references.keys() == {PASSWORD}


def test_a_run_has_the_digest_behind_the_tag() -> None:
    pinned = spec().with_image(image_of("docker:team/image:1").with_digest(DIGEST))
    assert pinned.to_dict()["resources"]["image_id"] == f"docker:docker.io/team/image:1@{DIGEST}"
    assert RunSpec.from_dict(pinned.to_dict()) == pinned
    assert "image_id" not in spec(resources={}).to_dict()["resources"]


def test_a_job_on_a_cluster_has_no_container(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "run: x\nresources: {cloud: slurm, image_id: 'docker:a/b:1'}\n"
        "slurm: {partitions: [{name: a, capacity: spot, usd_per_node_hour: 0}]}\n"
    )
    with pytest.raises(Exception, match=r"resources.image_id: needs root"):
        load_spec(job)
