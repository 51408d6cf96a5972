"""A script in an environment of its own has nothing that spotrun needs: a training's side imports none of it."""

from __future__ import annotations

import subprocess
import sys

from tests.support.own_environment import OURS
from tests.support.repository import ROOT

NOT_OF_A_TRAINING = {"spotrun.lightning.checkpoint_file"}
"""For commands alone."""
IMPORTS_ALL = f"""
import importlib, pkgutil, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name != "spotrun" and not name.startswith("spotrun.") and name.startswith({OURS!r}):
            raise ModuleNotFoundError(f"there is no {{name}}", name=name)

sys.meta_path.insert(0, Absent())
names = []
for room in ("training", "lightning", "loop", "transformers", "hydra"):
    package = importlib.import_module(f"spotrun.{{room}}")
    names += [each.name for each in pkgutil.walk_packages(package.__path__, f"{{package.__name__}}.")]
for name in sorted({{*names}} - {NOT_OF_A_TRAINING!r}):
    importlib.import_module(name)
print(len(names))
"""


def test_a_training_needs_torch_and_numpy_alone() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS_ALL], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50
