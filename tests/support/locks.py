"""
The lock: what `make` and instances install, to the version and with the SHA-256 of each wheel.

    python -m tests.support.locks [OPTION...]      # or: make lock, make lock LOCK_ARGS=--upgrade

uv finds the versions of all that pyproject.toml names, for all platforms and Pythons at once; it keeps those that the
lock has, unless its options say otherwise. They are written to files that are installed one after another, so each
names only what those before it do not. Peers of a benchmark are installed elsewhere, and have a file of their own.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.repository import ROOT

BOOT, TORCH, CUDA = (f"spotrun/boot/{name}.txt" for name in ("lock", "torch", "cuda"))
EXAMPLES, TESTS = "locks/examples.txt", "locks/tests.txt"
PEERS, WANTED_PEERS = "locks/peers.txt", "benchmarks/peers.in"
CPU_BUILD = "locks/torch-cpu.txt"
"""Written by hand: no package index has it."""
HEADS = {
    BOOT: "What spotrun and Lightning need, on an instance too.\n"
    "PyTorch is not here but in torch.txt: an image has one that fits its driver.",
    TORCH: "PyTorch and what it alone needs: for make, and for an instance whose image has none that spotrun takes.",
    CUDA: "What PyTorch needs on Linux besides, unless it is a CPU build.",
    EXAMPLES: "What the examples need besides what is in spotrun/boot.",
    TESTS: "What tests, checks and documentation need besides.",
    PEERS: "What the peers of a benchmark need, in a folder of their own.",
}
"""What each file says of itself."""
EXTRAS = {BOOT: ("aws", "lightning"), EXAMPLES: ("examples",), TESTS: ("dev",)}
"""The extras of pyproject.toml whose needs are met when a file and those before it are installed."""
LAYERS = [name for name in HEADS if name != PEERS]
"""What `make` installs into .venv."""
OLDEST_PYTHON = "3.11"
WHEELS_ALONE = ("--only-binary", ":all:")
_OF_CUDA = ("cuda-", "nvidia-", "triton")
_PIN = re.compile(r"([A-Za-z0-9._-]+)==([^ ;\\]+)(?: ; ([^\\]+?))?(?: \\)?")
_DIGEST = re.compile(r" {4}--hash=sha256:([0-9a-f]{64})(?: \\)?")
_REASON = re.compile(r" {4}# via(?: (.+))?| {4}#   (.+)")
_OURS = "spotrun (pyproject.toml)"


class Pin(NamedTuple):
    """`reasons` are the packages that ask for it."""

    name: str
    version: str
    marker: str
    digests: tuple[str, ...]
    reasons: tuple[str, ...]

    @property
    def is_ours(self) -> bool:
        """Whether pyproject.toml names it."""
        return _OURS in self.reasons


def pins(text: str) -> list[Pin]:
    """
    What a lock file says.

    Raises:
        ValueError: of a line that is no pin, digest or remark, and of a pin without a digest.
    """
    found: list[Pin] = []
    for line in text.splitlines():
        if line.startswith("#") or not line:
            continue
        if pin := _PIN.fullmatch(line):
            found.append(Pin(canonicalize_name(pin[1]), pin[2], pin[3] or "", (), ()))
        elif found and (digest := _DIGEST.fullmatch(line)):
            found[-1] = found[-1]._replace(digests=(*found[-1].digests, digest[1]))
        elif found and (reason := _REASON.fullmatch(line)):
            found[-1] = found[-1]._replace(reasons=(*found[-1].reasons, *filter(None, reason.groups())))
        else:
            raise ValueError(f"{line!r} is no line of a lock: run make lock")
    if bare := [pin.name for pin in found if not pin.digests]:
        raise ValueError(f"no digest of {', '.join(bare)}: run make lock")
    return found


def unmet(requirements: Iterable[Requirement], locked: Sequence[Pin]) -> list[str]:
    """Of these requirements, those that no pin meets."""
    return [
        str(requirement)
        for requirement in requirements
        if not any(
            pin.name == canonicalize_name(requirement.name) and requirement.specifier.contains(pin.version)
            for pin in locked
        )
    ]


def asked_for(extras: Iterable[str], project: Path = ROOT / "pyproject.toml") -> list[Requirement]:
    """What pyproject.toml names for spotrun with these extras, and with those that they name in turn."""
    table = tomllib.loads(project.read_text())["project"]
    found = [Requirement(text) for text in table["dependencies"]]
    left, seen = list(extras), set[str]()
    while left:
        extra = left.pop()
        if extra not in seen:
            seen.add(extra)
            named = [Requirement(text) for text in table["optional-dependencies"][extra]]
            found += [each for each in named if each.name != "spotrun"]
            left += [more for each in named if each.name == "spotrun" for more in each.extras]
    return found


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
