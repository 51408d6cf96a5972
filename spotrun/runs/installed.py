"""Reads the installed version of spotrun, its Git commit if known, and its extras."""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

import spotrun
from spotrun.errors import packages_of
from spotrun.version import __version__

PACKAGE = Path(spotrun.__file__).parent
COMMIT_FILE = "commit.txt"
"""Name of the file with the Git commit, in a package built by `make dist`."""
GIT_WITHIN_S = 5.0
SHORT = 12


def told() -> str:
    """Return the version, Git commit and extras, for bug reports."""
    commit = commit_of(PACKAGE)
    known = "" if commit is None else f" (commit {commit})"
    return f"spotrun {__version__}{known}\nextras: {', '.join(extras()) or 'none'}"


def commit_of(package: Path) -> str | None:
    """
    Return the Git commit from which the package was built or installed. In a checkout, `-dirty` means that files differ
    from the commit.
    """
    return _built_in(package) or _told_to_pip() or _checked_out(package.parent)


def _built_in(package: Path) -> str | None:
    try:
        return (package / COMMIT_FILE).read_text().strip()[:SHORT]
    except OSError:
        return None


def _told_to_pip() -> str | None:
    """
    Return the Git commit that pip recorded when it installed spotrun from a repository; None if there is no such
    record. The record's format: https://packaging.python.org/specifications/direct-url.
    """
    try:
        text = distribution("spotrun").read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    commit = json.loads(text or "{}").get("vcs_info", {}).get("commit_id")
    return None if commit is None else str(commit)[:SHORT]


def _checked_out(folder: Path) -> str | None:
    if not (folder / ".git").exists():
        return None
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(
            [*command, f"--abbrev={SHORT}"], capture_output=True, text=True, timeout=GIT_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def extras() -> list[str]:
    """Return the extras that are complete: all their packages are installed, in versions that spotrun accepts."""
    try:
        named = distribution("spotrun").metadata.get_all("Provides-Extra") or []
    except PackageNotFoundError:
        return []
    return sorted(name for name in named if all(map(_is_met, packages_of(name))))


def _is_met(package: str) -> bool:
    from packaging.requirements import Requirement

    need = Requirement(package)
    try:
        return need.specifier.contains(version(need.name), prereleases=True)
    except PackageNotFoundError:
        return False
