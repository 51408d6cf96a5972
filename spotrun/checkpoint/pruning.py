"""
Prunes the checkpoints of a run that has ended: retires commits in the ledger, and then deletes their objects.

It does no harm if pruning is interrupted or repeated: the next pruning deletes whatever is left of retired commits.
"""

from __future__ import annotations

import msgspec

from spotrun.checkpoint import outputs, retention
from spotrun.folder import setup_cache, stored_files
from spotrun.folder.final_status import write_final_status
from spotrun.folder.ledger import Ledger
from spotrun.run.events import CheckpointRetired
from spotrun.run.state import Commit, RunState
from spotrun.spec.model import CheckpointSpec
from spotrun.store.port import Store, StoredObject
from spotrun.store.retrying import persist


class Pruning(msgspec.Struct, frozen=True, kw_only=True):
    """
    The commits to retire, and the objects to delete. The objects are:
    - the objects of these commits, and the remaining objects of commits that were retired earlier
    - the objects of uploads that never became a commit
    - files of the script that belong to no kept checkpoint
    - setup caches (if the run is resumed later, it repeats its setup)
    """

    commits: tuple[Commit, ...]
    objects: tuple[StoredObject, ...]

    @property
    def size_bytes(self) -> int:
        return sum(stored.size_bytes for stored in self.objects)


def plan(state: RunState, store: Store, rule: CheckpointSpec) -> Pruning:
    """
    Return the commits that `prune` would retire and the objects that it would delete. Both are empty if the run has not
    ended, because until then only its current attempt is allowed to retire commits (protocol 23).
    """
    if state.terminal is None:
        return Pruning(commits=(), objects=())
    commits = retention.to_prune(state, rule)
    stored = {found.key: found for found in persist(lambda: store.list(retention.FOLDER))}
    keys = retention.garbage(state, stored, {commit.number for commit in commits})
    packed = persist(lambda: store.list(f"{setup_cache.FOLDER}/"))
    files = {found.key: found for found in persist(lambda: store.list(stored_files.FOLDER))}
    unnamed = outputs.garbage(state, store, files, {commit.number for commit in commits})
    gone = (*(stored[key] for key in keys), *packed, *(files[key] for key in unnamed))
    return Pruning(commits=tuple(commits), objects=gone)


def prune(ledger: Ledger, store: Store, rule: CheckpointSpec) -> Pruning:
    """
    Retire commits, then delete objects.

    Raises:
        EntryRefused: another process has meanwhile resumed the run. Commits that were not yet retired stay.
        StoreError: an object could not be deleted. Call this function again.
    """
    planned = plan(ledger.refresh(), store, rule)
    for commit in planned.commits:
        _retire(ledger, commit.number)
    keys = [stored.key for stored in planned.objects]
    parts = [key for key in keys if key.startswith(retention.FOLDER)]
    files = [key for key in keys if key.startswith(stored_files.FOLDER)]
    packed = [key for key in keys if key.startswith(f"{setup_cache.FOLDER}/")]
    state = ledger.state
    for key in (*retention.garbage(state, parts), *packed, *outputs.garbage(state, store, files)):
        store.delete(key)
    write_final_status(store, ledger)
    return planned


def _retire(ledger: Ledger, number: int) -> None:
    event = CheckpointRetired(attempt=None, commit=number)
    ledger.append(lambda state: None if state.is_retired(number) else event)
