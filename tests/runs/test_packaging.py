"""What a user gets from the wheel alone: everything that spotrun needs to run, and nothing else."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

from tests.support.repository import JOBS
from tests.support.repository import ROOT as REPOSITORY


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as `python -m build` makes it, from copies of the sources, so that the work tree stays clean."""
    source, dist = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "README.md", "LICENSE", "spotrun", "tests", "examples"):
        (source / name).symlink_to(REPOSITORY / name)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", dist, source)
    (built,) = dist.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel was installed; the libraries it needs are those of this interpreter."""
    target = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--no-index", "--target", target, wheel)
    return target


def run(*command: object, **environment: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd="/",
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def read(wheel: Path, ending: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(ending))
        return archive.read(name).decode()


def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "spotrun").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == sources
    assert {name.partition("/")[0] for name in names} == {"spotrun", "spotrun-0.1.0.dist-info"}
    assert {"spotrun/py.typed", *(f"spotrun/boot/{name}.txt" for name in ("lock", "gcp", "torch", "cuda"))} <= names
    assert {"spotrun/boot/install.sh", *(f"spotrun/clouds/{name}/start.sh" for name in ("aws", "gcp"))} <= names
    assert "Apache License" in read(wheel, "licenses/LICENSE")


def test_the_wheel_says_which_pythons_and_which_lightning_it_takes(wheel: Path):
    metadata = email.message_from_string(read(wheel, "METADATA"))
    assert metadata["Version"] == "0.1.0"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata["Requires-Python"].split(",")) == {">=3.11", "<3.14"}
    needs = metadata.get_all("Requires-Dist")
    assert any(need.startswith("torch>=2.11") for need in needs)
    light = {re.match(r"[a-z0-9-]+", need.lower())[0] for need in needs if "extra ==" not in need}
    assert not light & {"torch", "numpy", "lightning", "pytorch-lightning", "scikit-learn"}
    for lightning in (need for need in needs if need.startswith(("lightning", "pytorch-lightning"))):
        assert all(bound in lightning for bound in (">=2.6.6", "!=2.6.2", "!=2.6.3")), lightning  # failures.md S1-S3


def test_the_wheel_registers_the_command_and_both_lightning_factories(wheel: Path):
    entry_points = ConfigParser(delimiters=("=",))
    entry_points.read_string(read(wheel, "entry_points.txt"))
    assert {section: dict(entry_points[section]) for section in entry_points.sections()} == {
        "console_scripts": {"spotrun": "spotrun.cli.app:main"},
        "pytorch_lightning.callbacks_factory": {"spotrun": "spotrun.lightning.factory:for_pytorch_lightning"},
        "lightning.pytorch.callbacks_factory": {"spotrun": "spotrun.lightning.factory:for_lightning"},
    }


@pytest.mark.parametrize("trainer", ["pytorch_lightning", "lightning.pytorch"])
def test_every_trainer_asks_the_installed_wheel_for_callbacks(installed: Path, trainer: str):
    """Lightning finds the factory under the name of its own group, and outside of spotrun gets nothing from it."""
    ask = (
        f"import fast_imports; from {trainer} import Trainer; import spotrun, sys; print(spotrun.__file__);"
        "trainer = Trainer(logger=False, enable_checkpointing=False);"
        "assert 'spotrun.lightning.factory' in sys.modules;"
        "assert not [c for c in trainer.callbacks if type(c).__module__.startswith('spotrun')]"
    )
    assert str(installed) in run(sys.executable, "-W", "ignore", "-c", ask, PYTHONPATH=f"{installed}:{JOBS}")


def test_the_installed_wheel_runs_on_its_own(installed: Path):
    where = run(sys.executable, "-c", "import spotrun; print(spotrun.__file__)", PYTHONPATH=str(installed))
    assert Path(where.strip()).is_relative_to(installed)
    example = REPOSITORY / "examples" / "resnet50.yaml"
    run(sys.executable, "-m", "spotrun", "validate", example, PYTHONPATH=str(installed))
