"""Completes words in a shell: the names of the store's runs, and the paths of job files."""

from __future__ import annotations

import os
from pathlib import Path

import typer

JOBS = (".yaml", ".yml", ".py")


def run_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names and ids of runs that begin with `incomplete`; none if the store cannot be read."""
    from spotrun import address
    from spotrun.errors import StoreError
    from spotrun.store.opening import open_store

    folder = context.params.get("store") or os.environ.get("SPOTRUN_STORE") or address.DEFAULT_STORE
    try:
        place = address.parse(folder)
        if isinstance(place, str) and not os.path.isdir(os.path.expanduser(place)):
            return []  # opening the folder would create it
        ids = [name for name in open_store(folder).folders() if "-" in name]
    except StoreError:
        return []
    names = sorted({each.rpartition("-")[0] for each in ids})
    return [word for word in [*names, *ids] if word.startswith(incomplete)]


def job_files(incomplete: str) -> list[str]:
    """Return the folders, and the files that may be jobs, whose paths begin with `incomplete`."""
    folder, _, start = incomplete.rpartition("/")
    place = Path(f"{folder}/" if folder or incomplete.startswith("/") else ".").expanduser()
    try:
        found = sorted(place.iterdir())
    except OSError:
        return []
    above = incomplete[: len(incomplete) - len(start)]
    chosen = [path for path in found if path.name.startswith(start) and not path.name.startswith(".")]
    folders = [f"{above}{path.name}/" for path in chosen if path.is_dir()]
    return [f"{above}{path.name}" for path in chosen if path.suffix in JOBS and path.is_file()] + folders
