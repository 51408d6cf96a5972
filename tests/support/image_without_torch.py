"""
A machine image as Google has them: a Python with all that is in ours, but for PyTorch. That is to be had from an index,
as a wheel of one line that leads to the one which is installed here.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import venv
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from spotrun.store.port import Store
from tests.support.locks import CUDA, TORCH
from tests.support.small_wheels import change_wheel, only_from, small_wheel


class ImageWithoutTorch:
    """`environment` is what its programs find, and where pip finds packages."""

    def __init__(self, folder: Path) -> None:
        image, apart, index = folder / "image", folder / "torch", folder / "index"
        venv.create(image, symlinks=True)
        site = image / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        apart.mkdir()
        for path in Path(sysconfig.get_path("purelib")).iterdir():
            (apart if _is_torchs(path.name) else site).joinpath(path.name).symlink_to(path)
        public = version("torch").partition("+")[0]
        digest = small_wheel(index, "torch", public, holds={"torch-apart.pth": f"{apart}\n"})
        self._locks = {TORCH: f"torch=={public} --hash=sha256:{digest}\n", CUDA: ""}
        self.environment: Mapping[str, str] = {"PATH": f"{image / 'bin'}:{os.defpath}", **only_from(index)}

    def lock(self, store: Store) -> None:
        """Let the instances of a run take that wheel for the one of the lock."""
        change_wheel(store, self._locks)


def _is_torchs(name: str) -> bool:
    ours = name.startswith("nvidia_ml_py")
    return name in ("torch", "torchgen", "functorch") or (name.startswith(("torch-", "nvidia", "triton")) and not ours)
