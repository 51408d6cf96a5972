"""The command that installs what is missing, made from how spotrun was installed."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from spotrun.errors import NotInstalled, StoreNotInstalled, command_for, needs_extra
from tests.support.repository import ROOT

METADATA = """\
Metadata-Version: 2.4
Name: spotrun
Version: 0.1.0
Provides-Extra: aws
Provides-Extra: lightning
Provides-Extra: examples
Requires-Dist: rich>=15.0
Requires-Dist: boto3>=1.44; extra == "aws"
Requires-Dist: torch>=2.11; extra == "lightning"
Requires-Dist: spotrun[lightning]; extra == "examples"
Requires-Dist: scikit-learn>=1.9; extra == "examples"
"""
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Install:
    """A spotrun in an environment of its own, whose pip is the active one."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = folder / "my env"
        self.checkout = folder / "a check out"
        self.info = folder / "site" / "spotrun-0.1.0.dist-info"
        for each in (self.home / "bin", self.checkout, self.info):
            each.mkdir(parents=True)
        (self.info / "METADATA").write_text(METADATA)
        others = [path for path in sys.path if "site-packages" not in path and path not in ("", str(ROOT))]
        monkeypatch.setattr(sys, "path", [str(folder / "site"), *others])
        monkeypatch.setattr(sys, "prefix", str(self.home))
        monkeypatch.setattr(sys, "executable", str(self.home / "bin" / "python"))
        self.programs = {"pip": str(self.home / "bin" / "pip"), "uv": "/usr/bin/uv"}
        monkeypatch.setattr(shutil, "which", lambda name: self.programs.get(name))
        self.packages = {"pip"}
        monkeypatch.setattr("importlib.util.find_spec", lambda name: name if name in self.packages else None)

    def from_(self, **direct_url: object) -> None:
        (self.info / "direct_url.json").write_text(json.dumps(direct_url))


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    return Install(tmp_path, monkeypatch)


def test_a_folder_is_named_with_the_extra(install: Install) -> None:
    install.from_(url=install.checkout.as_uri(), dir_info={})
    assert command_for("aws") == f"pip install '{install.checkout}[aws]'"
    install.from_(url=install.checkout.as_uri(), dir_info={"editable": True})
    assert command_for("aws") == f"pip install -e '{install.checkout}[aws]'"
    install.from_(url=install.checkout.parent.as_uri(), dir_info={}, subdirectory="a check out")
    assert command_for("aws") == f"pip install '{install.checkout}[aws]'"


def test_a_wheel_is_named_with_the_extra(install: Install) -> None:
    wheel = install.checkout / "spotrun-0.1.0-py3-none-any.whl"
    wheel.touch()
    install.from_(url=wheel.as_uri(), archive_info={"hashes": {}})
    assert command_for("aws") == f"pip install '{wheel}[aws]'"
    install.from_(url="https://example.org/spotrun-0.1.0-py3-none-any.whl", archive_info={})
    assert command_for("aws") == "pip install 'spotrun[aws] @ https://example.org/spotrun-0.1.0-py3-none-any.whl'"


def test_a_repository_is_named_with_the_commit_that_is_installed(install: Install) -> None:
    vcs = {"vcs": "git", "requested_revision": "main", "commit_id": COMMIT}
    install.from_(url="https://example.org/spotrun.git", vcs_info=vcs)
    assert command_for("aws") == f"pip install 'spotrun[aws] @ git+https://example.org/spotrun.git@{COMMIT}'"
    Requirement(command_for("aws").split("'")[1])  # or pip would refuse it
    install.from_(url="https://example.org/tools.git", vcs_info=vcs, subdirectory="python")
    assert command_for("aws").endswith(f"git+https://example.org/tools.git@{COMMIT}#subdirectory=python'")
    install.from_(url="file:///srv/spotrun.git", vcs_info=vcs)
    assert command_for("aws") == "pip install 'boto3>=1.44'"


@pytest.mark.parametrize("gone", [True, False])
def test_without_a_place_the_packages_are_named(install: Install, gone: bool) -> None:
    if gone:
        install.from_(url="file:///no/such/folder", dir_info={"editable": True})
    assert command_for("aws") == "pip install 'boto3>=1.44'"
    assert command_for("examples") == "pip install 'torch>=2.11' 'scikit-learn>=1.9'"


def test_an_environment_that_is_not_active_is_named(install: Install) -> None:
    install.programs["pip"] = "/usr/bin/pip"
    assert command_for("aws") == f"'{install.home}/bin/python' -m pip install 'boto3>=1.44'"
    install.packages.clear()
    assert command_for("aws") == f"uv pip install --python '{install.home}/bin/python' 'boto3>=1.44'"
    del install.programs["uv"]
    assert command_for("aws") == f"pip --python '{install.home}/bin/python' install 'boto3>=1.44'"


def test_pipx_and_uv_have_their_own_words(install: Install) -> None:
    install.from_(url=install.checkout.as_uri(), dir_info={})
    receipt = install.home / "uv-receipt.toml"
    receipt.write_text('[tool]\nrequirements = [{ name = "spotrun" }]\n')
    assert command_for("aws") == f"uv tool install '{install.checkout}[aws]'"
    before = '{ name = "spotrun", extras = ["gcp"] }, { name = "acme", specifier = ">=1" }'
    receipt.write_text(f"[tool]\nrequirements = [{before}]\n")
    assert command_for("aws") == f"uv tool install '{install.checkout}[aws,gcp]' '--with=acme>=1'"
    (install.home / "pipx_metadata.json").touch()
    assert command_for("aws") == "pipx inject 'my env' 'boto3>=1.44'"


def test_a_spotrun_that_was_not_installed_says_so(install: Install) -> None:
    shutil.rmtree(install.info)
    assert command_for("aws") == "install spotrun with pip, and its extra aws"


def test_only_missing_packages_of_others_are_an_extra_s(install: Install) -> None:
    with (
        pytest.raises(StoreNotInstalled, match="s3://b needs the Python package boto9") as told,
        needs_extra("aws", "s3://b", StoreNotInstalled),
    ):
        import boto9  # type: ignore[import-not-found]  # noqa: F401
    assert told.value.hint == "pip install 'boto3>=1.44'"
    with pytest.raises(ModuleNotFoundError), needs_extra("aws", "s3://b", NotInstalled):
        import spotrun.no_such_module  # type: ignore[import-not-found]  # noqa: F401
