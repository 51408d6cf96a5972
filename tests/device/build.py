"""
Builds the simulated accelerator (toy_device.cpp), once for each version of the source and of torch.

    python -m tests.device.build        # make dev
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

SOURCE = Path(__file__).with_name("toy_device.cpp")
PLUGIN = Path(__file__).with_name("plugin")
"""
Makes it the accelerator of each process that imports torch and has this folder and the repository in its PYTHONPATH.
"""
COMPILER = os.environ.get("CXX", "g++")
FLAGS = ("-std=c++20", "-O1", "-Wall", "-fPIC", "-shared")


def library() -> Path:
    """Return the path of the built library. It lies next to the torch that it is built for, and may not exist yet."""
    key = sha256(SOURCE.read_bytes() + repr((FLAGS, importlib.metadata.version("torch"))).encode())
    return Path(sys.prefix, "toy-device", f"{key.hexdigest()[:16]}.so")


def missing() -> str:
    """Return the reason why there is no library, as tests are skipped with it; "" if there is one."""
    if library().exists():
        return ""
    if shutil.which(COMPILER):
        return "the simulated accelerator is not built: make dev"
    return f"there is no C++ compiler ({COMPILER}) for the simulated accelerator"


def build(path: Path) -> None:
    """
    Compile the library.

    Raises:
        subprocess.CalledProcessError: the compiler found an error, and has printed it.
    """
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.submodule_search_locations
    torch = Path(spec.submodule_search_locations[0])
    path.parent.mkdir(exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}")
    places = (f"-isystem{torch / 'include'}", f"-L{torch / 'lib'}")
    subprocess.run([COMPILER, *FLAGS, *places, SOURCE, "-o", new, "-ltorch_cpu", "-lc10"], check=True)
    for old in path.parent.glob("*.so"):
        old.unlink()
    new.rename(path)


def main() -> int:
    path = library()
    if path.exists():
        return 0
    if not shutil.which(COMPILER):
        print(f"{missing()}: its tests are skipped")
        return 0
    print("building the simulated accelerator for tests: about a minute")
    try:
        build(path)
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
