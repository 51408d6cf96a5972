"""
The lock: what `make` and instances install, to the version and with the SHA-256 of each wheel.

Its files are installed one after another, so each names only what those before it do not. Peers of a benchmark are
installed elsewhere, and have a file of their own. `write_locks.py` writes them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.repository import ROOT

BOOT, GCP, TORCH, CUDA = (f"spotrun/boot/{name}.txt" for name in ("lock", "gcp", "torch", "cuda"))
EXAMPLES, TESTS = "locks/examples.txt", "locks/tests.txt"
PEERS, WANTED_PEERS = "locks/peers.txt", "benchmarks/peers.in"
CPU_BUILD = "locks/torch-cpu.txt"
"""Written by hand: no package index has it."""
HEADS = {
    BOOT: "What spotrun and Lightning need, on an instance too.\n"
    "PyTorch is not here but in torch.txt: an image has one that fits its driver.",
    GCP: "What instances on Google Cloud need besides.",
    TORCH: "PyTorch and what it alone needs: for make, and for an instance whose image has none that spotrun takes.",
    CUDA: "What PyTorch needs on Linux besides, unless it is a CPU build.",
    EXAMPLES: "What the examples need besides what is in spotrun/boot.",
    TESTS: "What tests, checks and documentation need besides.",
    PEERS: "What the peers of a benchmark need, in a folder of their own.",
}
"""What each file says of itself."""
EXTRAS = {BOOT: ("aws", "lightning"), GCP: ("gcp",), EXAMPLES: ("examples",), TESTS: ("dev",)}
"""The extras of pyproject.toml whose needs are met when a file and those before it are installed."""
LAYERS = [name for name in HEADS if name != PEERS]
"""What `make` installs into .venv."""
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
