"""Reads the git commit that a work folder has checked out."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from spotrun.run.events import Revision

TIMEOUT_S = 5.0
"""
Maximum seconds of system time for each git command. It is short because the user's launch waits for git, although the
commit is only shown in reports.
"""
_HARMLESS = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
_ENVIRONMENT = {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}
_TRUSTED = ("system", "global")
"""The scopes of git's settings that the user controls. The settings in a repository may come from another person."""


def revision_of(folder: Path) -> Revision | None:
    """
    Return the commit that `folder` has checked out. Return None if the folder is not in a repository, if there is no
    commit yet, or if git fails.

    The repository's settings cannot be trusted: they may name programs that git would run. So git is called with
    options that prevent this.
    """
    commit = (_asked(folder, "rev-parse", "HEAD") or "").strip()
    return Revision(commit=commit, changed=_changed(folder)) if re.fullmatch("[0-9a-f]{40,64}", commit) else None


def _changed(folder: Path) -> bool | None:
    """Return True if the folder's files differ from the commit; None if git cannot check this safely."""
    filters = _asked(folder, "config", "-z", "--show-scope", "--name-only", "--get-regexp", r"^filter\.", no_match=True)
    if filters is None or any(scope not in _TRUSTED for scope in filters.split("\0")[:-1:2]):
        return None  # to compare a file, git would run a filter that the repository names
    found = _asked(folder, "status", "--porcelain", "--ignore-submodules=all", "--", ".")
    return None if found is None else found != ""


def _asked(folder: Path, *question: str, no_match: bool = False) -> str | None:
    """
    Return the output of git; None if git fails. With `no_match`, exit status 1 does not count as a failure, because
    `git config` returns it if no setting matches.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | _ENVIRONMENT
    command = ["git", "--no-pager", *_HARMLESS, "-C", str(folder), *question]
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    answered = done.returncode == 0 or (no_match and done.returncode == 1)
    return done.stdout.decode(errors="replace") if answered else None
