"""
Measures how long `spotrun --help` takes, next to the `--help` of a Typer app with two commands.

    python benchmarks/help.py [--rounds 15]

The two are run in turns, so that other work of the machine hits both.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

TWO_COMMANDS = """
import typer
app = typer.Typer()
@app.command()
def first(name: str) -> None: "One"
@app.command()
def second(name: str) -> None: "Two"
app()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "two.py"
        small.write_text(TWO_COMMANDS)
        pairs = [(_help_s([str(small)]), _help_s(["-m", "spotrun"])) for _ in range(rounds)]
    typers, ours = (median(each) for each in zip(*pairs, strict=True))
    ratio = median(own / other for other, own in pairs)
    print(f"two commands {typers:.3f} s, spotrun {ours:.3f} s: {ratio:.2f} x (median of {rounds} rounds)")


def _help_s(program: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, *program, "--help"], capture_output=True, check=True)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
