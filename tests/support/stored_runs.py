"""Runs of a few events, stored in a folder as spotrun stores them."""

from __future__ import annotations

from pathlib import Path

from spotrun.store.local import LocalStore
from tests.support.decisions import spec
from tests.support.histories import History


def store_run(folder: Path, history: History) -> Path:
    """Put a ledger into a store of runs. Returns the folder of the run."""
    place = folder / f"{history.state.created.name}-{history.uid}"
    store = LocalStore(place)
    history.put_into(store)
    return place


def new_run(folder: Path, name: str, uid: str) -> Path:
    """A run that was created, and nothing more."""
    return store_run(folder, History(name=name, uid=uid, spec=spec().to_dict()))
