"""What `make` installs: what the lock says, byte for byte, or nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.support.locks import BOOT, CPU_BUILD, CUDA, EXAMPLES, TORCH
from tests.support.repository import ROOT
from tests.support.small_wheels import WRONG, only_from, small_wheel

pytestmark = pytest.mark.checks("Makefile", "tests/support/locks.py", "tests/support/small_wheels.py")
PROJECT = """[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "house"
version = "1.0"
dependencies = [{needs}]
optional-dependencies = {{examples = []}}

[tool.setuptools]
py-modules = []
"""


class House:
    """A project with this Makefile, in a folder with a space in its name. It needs a package of one line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "a house"
        self.folder.mkdir()
        self.wheels = folder / "wheels"
        shutil.copy(ROOT / "Makefile", self.folder)
        venv.create(self.folder / ".venv", symlinks=True)
        self.site = next(self.folder.glob(".venv/lib/python3*/site-packages"))
        (self.site / "tools.pth").write_text(sysconfig.get_path("purelib") + "\n")  # pip and setuptools
        for name in (BOOT, TORCH, CPU_BUILD, CUDA, EXAMPLES):
            self.lock(name)
        self.needs()

    def needs(self, *names: str) -> None:
        listed = ", ".join(f'"{name}"' for name in names)
        (self.folder / "pyproject.toml").write_text(PROJECT.format(needs=listed))

    def lock(self, name: str, *lines: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text("".join(f"{line}\n" for line in ("# a lock", *lines)))

    def make(self) -> subprocess.CompletedProcess[str]:
        rest = {name: text for name, text in os.environ.items() if not name.startswith("PIP_")}
        return subprocess.run(
            ["make", "install"],
            cwd=self.folder,
            env={**rest, **only_from(self.wheels)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_locked_packages_are_installed_and_cuda_where_torch_requires_it(house: House) -> None:
    brick, cuda = small_wheel(house.wheels, "brick"), small_wheel(house.wheels, "cuda_toolkit")
    torch = small_wheel(house.wheels, "torch", needs="cuda-toolkit==1.0")
    house.lock(BOOT, f"brick==1.0 --hash=sha256:{brick}")
    house.lock(TORCH, f"torch==1.0 --hash=sha256:{torch}")
    house.lock(CUDA, f"cuda-toolkit==1.0 --hash=sha256:{cuda}")
    house.needs("brick")
    done = house.make()
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.stem for path in house.site.glob("*.py")} >= {"brick", "torch", "cuda_toolkit"}
    assert (house.folder / ".venv/.installed").exists()


def test_a_cpu_build_is_taken_where_there_is_one(house: House) -> None:
    build = small_wheel(house.wheels, "torch", version="1.0+cpu")
    house.lock(CPU_BUILD, f"torch==1.0+cpu \\\n    --hash=sha256:{build}")
    house.lock(TORCH, f"torch==1.0 --hash=sha256:{WRONG}")
    house.lock(CUDA, f"cuda-toolkit==1.0 --hash=sha256:{WRONG}")
    done = house.make()
    assert done.returncode == 0, done.stdout + done.stderr
    assert (house.site / "torch-1.0+cpu.dist-info").exists()


@pytest.mark.parametrize(
    ("digest", "says"),
    [(f" --hash=sha256:{WRONG}", "DO NOT MATCH THE HASHES"), ("", "Hashes are required")],
    ids=["wrong", "none"],
)
def test_a_wheel_with_another_digest_or_none_is_refused(house: House, digest: str, says: str) -> None:
    small_wheel(house.wheels, "brick")
    house.lock(BOOT, f"brick==1.0{digest}")
    done = house.make()
    assert done.returncode != 0
    assert says in done.stderr
    assert not (house.site / "brick.py").exists()


def test_package_that_the_lock_lacks_is_not_searched_for(house: House) -> None:
    small_wheel(house.wheels, "brick")
    house.needs("brick")
    done = house.make()
    assert done.returncode != 0
    assert "No matching distribution found for brick" in done.stderr
