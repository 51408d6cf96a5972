"""
Battery: the examples of each kind of training, as they are, through kills on the local cloud. Are all bits those of a
training in peace, and all files of a command?

    make battery NAME=examples                                 each example, killed three times
    python -m tests.batteries.examples --only fabric --kills 1
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Annotated

import typer

from tests.support.repository import EXAMPLES

NAMES = ("plain_pytorch", "fabric", "hf_trainer", "command")


def verified(name: str, kills: int, seed: int) -> tuple[bool, str]:
    """Whether it is the same, and what was said."""
    words = ["verify-resume", str(EXAMPLES / f"{name}.yaml"), "--kills", str(kills), "--seed", str(seed)]
    done = subprocess.run([sys.executable, "-m", "spotrun", *words], capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stdout or done.stderr[-2000:]


def main(
    only: Annotated[str, typer.Option(help="One example, or several with commas.")] = ",".join(NAMES),
    kills: Annotated[int, typer.Option(help="Of each.")] = 3,
    seed: Annotated[int, typer.Option(help="Of the moments.")] = 1,
) -> None:
    wrong = 0
    for name in only.split(","):
        began = time.monotonic()
        same, said = verified(name, kills, seed)
        wrong += not same
        print(f"{name}.yaml, {time.monotonic() - began:.0f} s: {said}", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    typer.run(main)
