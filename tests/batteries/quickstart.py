"""
Battery: how long a new user needs from `git clone` to the first survived interruption of an own script.

    make battery NAME=quickstart
    make battery NAME=quickstart ARGS=--own-index     # PyTorch from the index that pip is configured for

Types the commands of docs/quickstart.md as they stand there, in a new folder, and times them. At most 6 minutes may
pass until the training continues after the interruption, and at most 3 of these for the installation. Needs a package
index, and an idle machine.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.doc_pages import Block, blocks
from tests.support.repository import ROOT

PAGE = ROOT / "docs" / "quickstart.md"
INSTALLED_WITHIN_S, SURVIVED_WITHIN_S = 180.0, 360.0
SURVIVED = "resuming from step"


def main(own_index: bool) -> int:
    """Type the page's commands, print the times, and return 1 if they are over their limits."""
    with tempfile.TemporaryDirectory() as folder:
        began_s = time.monotonic()
        home = Path(folder)
        subprocess.run(["git", "clone", "--quiet", str(ROOT), "spotrun"], cwd=home, check=True)
        for words in _installation():
            _type(re.sub(r" --index-url \S+", "", words) if own_index else words, home)
        installed_s = time.monotonic() - began_s
        print(f"installed after {installed_s:.0f} s", flush=True)
        project = home / "my-project"
        for block in blocks(PAGE):
            if block.file in ("train.py", "job.yaml"):
                (project / block.file).write_text(block.text)
        survived_s = _launch(project) - began_s
        print(f"survived an interruption after {survived_s:.0f} s", flush=True)
    if installed_s > INSTALLED_WITHIN_S or survived_s > SURVIVED_WITHIN_S:
        print(f"expected at most {INSTALLED_WITHIN_S:.0f} s and {SURVIVED_WITHIN_S:.0f} s", file=sys.stderr)
        return 1
    return 0


def _installation() -> Iterator[str]:
    """Yield the commands of the block that installs spotrun, without those that only change the shell."""
    (block,) = (each for each in blocks(PAGE) if _installs(each))
    for words, _ in block.commands():
        if words.startswith("mkdir"):
            yield words.partition(" && ")[0]
        elif not words.startswith(". "):
            yield f"cd my-project && PATH=$PWD/.venv/bin:$PATH && {words}"


def _installs(block: Block) -> bool:
    return any("pip install" in words for words, _ in block.commands())


def _type(words: str, home: Path) -> None:
    print(f"$ {words}", flush=True)
    subprocess.run(words, shell=True, cwd=home, env=_environment(home), check=True)


def _environment(home: Path) -> dict[str, str]:
    """Return this process's environment without its Python, and with a home that has no runs."""
    kept = {name: text for name, text in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    return {**kept, "HOME": str(home)}


def _launch(project: Path) -> float:
    """Launch the page's job, stop it after its first survived interruption, and return when that was."""
    command = [str(project / ".venv" / "bin" / "spotrun"), "launch", "job.yaml", "-y"]
    print(f"$ {shlex.join(['spotrun', *command[1:]])}", flush=True)
    with subprocess.Popen(
        command, cwd=project, env=_environment(project.parent), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        survived_s = next((time.monotonic() for line in process.stdout if SURVIVED in line), None)
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
    if survived_s is None:
        raise SystemExit(f"`spotrun launch` ended with {process.returncode}, and nothing was resumed")
    return survived_s


if __name__ == "__main__":
    sys.exit(main("--own-index" in sys.argv[1:]))
