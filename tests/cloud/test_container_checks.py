"""What `spotrun doctor JOB.yaml` says of a job with an image: the engine of this machine, and the image."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from spotrun.container import facts
from spotrun.container.engine import Engine
from spotrun.container.facts import EngineFacts, facts_of
from spotrun.doctor.finding import Finding, Verdict
from spotrun.errors import NotInstalled
from spotrun.runs.doctor_checks import _container
from spotrun.runs.pinning import with_image
from spotrun.spec.model import RunSpec
from tests.support.ec2_server import ACCOUNT, REGION
from tests.support.engine_stand_in import StandIn
from tests.support.guarded_account import GuardedAccount
from tests.support.registry_server import RegistryServer

DIGEST = f"sha256:{'1' * 64}"
ROOTLESS = {"SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless"]}


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    found = StandIn(tmp_path)
    found.install(monkeypatch)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(facts, "GPU", tmp_path / "no-gpu")
    return found


def job(image: str, cloud: str = "local") -> RunSpec:
    keys = {"name": "n", "workdir": "/w", "train": {"run": "x"}, "checkpoint": {"uri": "s3://bucket/runs"}}
    return RunSpec.model_validate(keys | {"resources": {"image_id": image, "cloud": cloud}})


def said(spec: RunSpec) -> list[tuple[Verdict, str]]:
    return [(each.verdict, f"{each.name}: {each.detail}") for each in _container(spec)]


def test_working_engine_is_reported_with_its_version_and_the_image(engine: StandIn) -> None:
    with RegistryServer() as server:
        digest = server.put_image("team/train:1", 2_000_000)
        assert said(job(f"docker:{server.host}/team/train:1")) == [
            (Verdict.OK, "container engine: docker 27.0 responds, and runs as root"),
            (Verdict.OK, "container gpus: this machine has no Nvidia GPU"),
            (Verdict.OK, f"container image: image {server.host}/team/train is {digest}, 2 MB to pull"),
        ]
        server.fails = 503
        (*_, (verdict, words)) = said(job(f"docker:{server.host}/team/train@{DIGEST}"))
        assert (verdict, f"this machine has no docker:{server.host}/team/train" in words) == (Verdict.FAILED, True), (
            words
        )
    assert engine.calls("run") == engine.calls("pull") == []


@pytest.mark.usefixtures("engine")
def test_machine_that_only_rents_needs_no_engine() -> None:
    with RegistryServer() as server:
        server.put_image("team/train:1", 1)
        names = {each.name for each in _container(job(f"docker:{server.host}/team/train:1", "aws"))}
    assert names == {"container image"}


def test_an_engine_that_cannot_be_used_is_one_line(engine: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = job(f"docker:registry.example/team/train@{DIGEST}")
    engine.say("info", json.dumps(ROOTLESS))
    ((verdict, rootless),) = said(spec)
    assert (verdict, "runs rootless" in rootless) == (Verdict.FAILED, True)
    engine.say("info", "nonsense")
    assert "the output of docker info cannot be read" in said(spec)[0][1]
    monkeypatch.setenv("PATH", "")
    assert said(spec) == [(Verdict.FAILED, "container engine: this machine has neither docker nor podman")]


@pytest.mark.parametrize(("runtimes", "knows"), [({"runc": {}, "nvidia": {}}, True), ({"runc": {}}, False)])
def test_docker_needs_its_toolkit_for_gpus(
    engine: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtimes: dict[str, object], knows: bool
) -> None:
    monkeypatch.setattr(facts, "GPU", tmp_path)
    monkeypatch.setattr(facts, "HOOK", "no-such-program")
    engine.say("info", json.dumps({"Runtimes": runtimes}))
    engine.say("images", f"registry.example/team/train@{DIGEST}")
    gpus = one([*_container(job(f"docker:registry.example/team/train@{DIGEST}"))], "container gpus")
    assert (gpus.verdict is Verdict.OK) is knows
    assert knows or "nvidia-ctk runtime configure" in gpus.hint


def one(found: list[Finding], name: str) -> Finding:
    (each,) = [each for each in found if each.name == name]
    return each


def test_podman_needs_a_specification_of_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "podman"
    told = {"host": {"security": {"rootless": False}}}
    program.write_text(f"#!/bin/sh\nif [ $1 = info ]; then echo '{json.dumps(told)}'; else echo 4.3.1; fi\n")
    program.chmod(0o755)
    podman = Engine("podman", str(program))
    monkeypatch.setattr(facts, "GPU", tmp_path / "no-gpu")
    assert facts_of(podman) == EngineFacts("4.3.1", False, None)
    monkeypatch.setattr(facts, "GPU", tmp_path)
    monkeypatch.setattr(facts, "CDI", (tmp_path / "cdi", tmp_path / "none"))
    assert facts_of(podman).gpus is False
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi" / "nvidia.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\n")
    assert facts_of(podman).gpus is True


@pytest.mark.parametrize("right", ["ecr:GetAuthorizationToken", "ecr:BatchGetImage"])
def test_a_right_that_is_missing_for_the_image_is_named(account: GuardedAccount, right: str) -> None:
    account.policies = []
    (found,) = _container(job(f"docker:{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/team/train:1", "aws"))
    assert found.verdict is Verdict.FAILED
    assert right in found.hint
    account.denied.clear()


def test_a_machine_of_ones_own_without_an_engine_is_refused_before_anything_bills(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    keys = {"name": "n", "workdir": "/w", "train": {"run": "x"}, "checkpoint": {"uri": "s3://bucket/runs"}}
    resources = {"image_id": f"docker:registry.example/team/train@{DIGEST}", "cloud": "aws", "home": "box"}
    spec = RunSpec.model_validate(
        keys | {"resources": resources, "hardware": {"box": {"purchase_usd": 2000, "months": 24, "days_per_month": 20}}}
    )
    with pytest.raises(NotInstalled, match="neither docker nor podman"):
        with_image(spec, {})
    assert [each.name for each in _container(spec)] == ["container engine"]
