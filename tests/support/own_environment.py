"""A Python environment as uv or Poetry makes one for a project: its own interpreter and packages, none of ours."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

OURS = (
    "spotrun",
    "__editable__",
    "msgspec",
    "blake3",
    "xxhash",
    "pathspec",
    "psutil",
    "pvectorc",
    "pydantic",
    "pyrsistent",
    "tenacity",
    "typer",
    "cryptography",
    "nvidia_ml_py",
    "pynvml",
)
"""How the names begin of what spotrun needs and a training has no need of."""


def make(folder: Path) -> Path:
    """Its packages are links to those of this Python, so it takes no time. Returns the interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(OURS) and entry.suffix != ".pth" and entry.name != "__pycache__":
            (site / entry.name).symlink_to(entry)
    return folder / "bin" / "python"
