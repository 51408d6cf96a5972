"""Clouds that a package brings from outside: those that are broken, and those that are no longer there."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotrun.errors import SpecInvalid
from spotrun.spec.clouds import find_cloud
from spotrun.spec.file import SpecFileInvalid, load_spec
from spotrun.spec.model import RunSpec
from tests.support import toy_cloud

TOY = f"from {toy_cloud.__name__} import Toy"
INCOMPLETE = """
from datetime import timedelta
from spotrun.clouds.cloud import Cloud
class Bare(Cloud):
    name, here, simulated, notice, instead_of_envs = "bare", True, True, timedelta(0), ""
CLOUD = Bare()
"""


def bring(folder: Path, name: str, source: str, package: str = "") -> None:
    """A package that is installed in `folder` and brings a cloud of that name."""
    package = package or f"{name}_package"
    info = folder / f"{package}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[spotrun.clouds]\n{name} = {package}:CLOUD\n")
    (folder / f"{package}.py").write_text(source)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    return site


@pytest.mark.parametrize(
    ("name", "source", "reason"),
    [
        ("raising", "raise RuntimeError('no SDK')", "RuntimeError: no SDK"),
        ("leaving", "raise SystemExit(3)", "SystemExit: 3"),
        ("empty", "", "has no attribute 'CLOUD'"),
        ("number", "CLOUD = 42", "is not an object of a class that inherits from Cloud"),
        ("kind", f"{TOY} as CLOUD", "is not an object of a class that inherits from Cloud"),
        ("bare", INCOMPLETE, "abstract methods account, billing, boot, driver"),
        ("nameless", f"{TOY}\nclass T(Toy): pass\nCLOUD = T()\ndel Toy.notice", "lacks notice"),
        ("other", f"{TOY}\nCLOUD = Toy()", "has the name toy"),
    ],
)
def test_a_broken_cloud_is_refused_with_its_package_and_the_line_of_the_job(
    site: Path, name: str, source: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toy_cloud.Toy, "notice", toy_cloud.Toy.notice)  # put back what a case takes away
    bring(site, name, source)
    with pytest.raises(SpecInvalid) as refused:
        find_cloud(name)
    assert f"the cloud {name} cannot be loaded" in refused.value.message
    assert reason in refused.value.message
    assert refused.value.hint == f"repair or uninstall the package {name}_package"
    job = site / "job.yaml"
    job.write_text(f"run: echo\nresources: {{cloud: {name}}}\n")
    with pytest.raises(SpecFileInvalid, match=f"job.yaml:2: resources.cloud: the cloud {name} cannot be loaded"):
        load_spec(job)


def test_two_packages_may_not_bring_the_same_name(site: Path) -> None:
    bring(site, "twice", "CLOUD = 1", "one_package")
    bring(site, "twice", "CLOUD = 1", "other_package")
    with pytest.raises(SpecInvalid, match="2 packages define a cloud called twice: one_package, other_package"):
        find_cloud("twice")


def test_a_cloud_of_ours_keeps_its_name(site: Path) -> None:
    bring(site, "local", "raise RuntimeError")
    assert find_cloud("local").name == "local"


def test_the_job_of_a_run_can_be_read_where_its_cloud_is_not_installed() -> None:
    written = {"name": "a", "workdir": "/w", "train": {"run": "echo"}, "resources": {"cloud": "gone"}}
    spec = RunSpec.from_dict(written)
    assert RunSpec.from_dict(spec.to_dict()) == spec
    with pytest.raises(SpecInvalid, match="no installed cloud is called gone") as refused:
        assert spec.cloud
    assert "install the package that defines gone" in str(refused.value)
