"""
Writes the lock.

    python -m tests.support.write_locks [OPTION...]      # or: make lock, make lock LOCK_ARGS=--upgrade

uv finds the versions of all that pyproject.toml names, for all platforms and Pythons at once; it keeps those that the
lock has, unless its options say otherwise.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from tests.support.locks import BOOT, CUDA, EXAMPLES, EXTRAS, GCP, HEADS, LAYERS, PEERS, TESTS, TORCH, WANTED_PEERS
from tests.support.repository import ROOT

OLDEST_PYTHON = "3.11"
WHEELS_ALONE = ("--only-binary", ":all:")
_OF_CUDA = ("cuda-", "nvidia-", "triton")


def main(options: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        without_torch = folder / "without.txt"
        without_torch.write_text("torch\n")
        _write_layers(folder / "versions.txt", without_torch, options)
        # s3torchconnector has no wheel.
        excluded = ("--excludes", str(without_torch))
        peers = _blocks(_kept(folder / "peers.txt", [PEERS], WANTED_PEERS, *excluded, *options))
        _write(PEERS, peers, peers)


def _write_layers(versions: Path, without_torch: Path, options: Sequence[str]) -> None:
    project = "pyproject.toml"

    def needed(*more: str) -> set[str]:
        return set(_blocks(_compiled(project, *WHEELS_ALONE, "--constraints", str(versions), *more)))

    every = _blocks(_kept(versions, LAYERS, project, *WHEELS_ALONE, *_with(EXTRAS[TESTS]), *options))
    spotrun = _with(EXTRAS[BOOT])
    layers = {
        BOOT: needed(*spotrun, "--excludes", str(without_torch)),
        GCP: needed(*spotrun, *_with(EXTRAS[GCP]), "--excludes", str(without_torch)),
        CUDA: {name for name in every if name.startswith(_OF_CUDA)},
        TORCH: needed(*spotrun),
        EXAMPLES: needed(*spotrun, *_with(EXTRAS[EXAMPLES])),
        TESTS: set(every),
    }
    written: set[str] = set()
    for name, members in layers.items():
        _write(name, every, members - written)
        written |= members


def _write(name: str, blocks: Mapping[str, str], members: Iterable[str]) -> None:
    head = "".join(f"# {line}\n" for line in (*HEADS[name].splitlines(), "Written by `make lock`."))
    (ROOT / name).write_text(head + "".join(blocks[each] for each in sorted(members)))


def _with(extras: Iterable[str]) -> list[str]:
    return [word for extra in extras for word in ("--extra", extra)]


def _kept(output: Path, before: Iterable[str], wanted: str, *options: str) -> str:
    """What uv says, which keeps the versions that these files have."""
    output.write_text("".join((ROOT / name).read_text() for name in before if (ROOT / name).exists()))
    _compiled(wanted, "--output-file", str(output), *options)
    return output.read_text()


def _compiled(wanted: str, *options: str) -> str:
    """What uv says of the packages that a file names, for each Python and system. It names no place they came from."""
    how = ("--universal", "--python-version", OLDEST_PYTHON, "--generate-hashes")
    quietly = ("--quiet", "--no-header", "--system-certs")
    command = [sys.executable, "-m", "uv", "pip", "compile", wanted, *how, *quietly, *options]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def _blocks(text: str) -> dict[str, str]:
    """By name, all lines of a package; of one that has several versions, for different Pythons, all of them."""
    found: dict[str, str] = {}
    for block in re.split(r"^(?=[A-Za-z])", text, flags=re.MULTILINE)[1:]:
        name = canonicalize_name(block.partition("==")[0])
        found[name] = found.get(name, "") + block
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
