"""
Removes ended runs, for `rm` and `prune`. Checks which runs can be removed, reports what each of them leaves behind in
its cloud or bucket, and asks the user.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from spotrun.errors import CloudError, SpecInvalid, SpotrunError, StoreError
from spotrun.folder import keys
from spotrun.folder.removal import objects_of, remove
from spotrun.report.describe import gigabytes
from spotrun.report.folding import say
from spotrun.runs.asking import confirm
from spotrun.runs.known_record import forget
from spotrun.runs.open_run import OpenRun, attended, namesakes
from spotrun.store.opening import open_store
from spotrun.store.port import Inspectable, ReportsForeignNames, Store
from spotrun.units import count_of, shown, some_of


class StillThere(SpotrunError):
    """The error for a run that cannot be removed yet."""


class Removable(NamedTuple):
    """An ended run that can be removed, with the store of its folder, and the number and size of its objects."""

    run: OpenRun
    ended_at: datetime
    outcome: str
    store: Store
    folder: str
    objects: int
    size_bytes: int
    disks: int
    """Number of ended instances whose disk is still on this machine."""

    def __str__(self) -> str:
        held = f"{count_of(self.objects, 'object')}, {gigabytes(self.size_bytes)}"
        if self.disks:
            held += f", and the local disks of {count_of(self.disks, 'instance')}"
        return f"{self.run.id}  {self.outcome} {self.ended_at:%Y-%m-%d %H:%M} UTC  {held}"


def removable(run: OpenRun) -> Removable:
    """
    Check that a run can be removed, and return it with its store and the number and size of its objects.

    Raises:
        StillThere: the run has not ended, a runner takes care of it, or one of its instances may still exist.
        StoreError: the run cannot be read.
        CloudError: the cloud does not say whether all of its instances have ended.
    """
    state = run.ledger.refresh()
    if state.terminal is None:
        raise StillThere(f"{run.id} has not ended", hint=f"`spotrun down {run.typed}` ends it")
    if unsettled := [str(launch.number) for launch in state.launches.values() if not launch.settled]:
        hint = f"`spotrun tick {run.typed}` finds out whether it has ended"
        raise StillThere(f"{run.id}: an instance of launch {', '.join(unsettled)} may be left", hint=hint)
    regions = {launch.intent.offering.region for launch in state.launches.values()}
    instances = run.driver.instances(run.created.uid, must_see=regions)
    if alive := [each.instance_id for each in instances if each.alive]:
        raise StillThere(
            f"{run.id} has running instances: {', '.join(alive)}", hint=f"`spotrun down {run.typed}` ends them"
        )
    if attended(run):
        raise StillThere(f"a runner still takes care of {run.id}", hint="try again in a minute")
    parent, _, folder = run.uri.rpartition("/")
    store = open_store(parent or "/")
    objects = objects_of(store, folder)
    size_bytes = sum(stored.size_bytes for stored in objects)
    return Removable(
        run=run,
        ended_at=run.clock.on_the_wall(state.terminal.at),
        outcome=state.terminal.outcome,
        store=store,
        folder=folder,
        objects=len(objects),
        size_bytes=size_bytes,
        disks=len(instances) if run.cloud.here and run.known.original is None else 0,
    )


def name_others(named: Mapping[str, OpenRun], store: str | None) -> None:
    """For each name with which a user named a run to remove, name the runs of this name that stay."""
    removed = {run.id for run in named.values()}
    for name, run in named.items():
        if others := [each.id for each in namesakes(name, store, run) if each.id not in removed]:
            say(f"note: other runs called {name} stay, each removed by its id: {some_of(others)}")


def remove_all(found: Sequence[Removable], *, yes: bool, dry_run: bool) -> None:
    """
    Show which runs will be deleted and what they leave behind, ask for confirmation, and delete them.

    Raises:
        SpecInvalid: there is no terminal on which to ask.
        StoreError: an object could not be deleted.
        CloudError: the disks of the instances could not be deleted.
    """
    for each in found:
        say(str(each), indent=2)
        for stays in _stays(each):
            say(f"  stays: {stays}", indent=4)
    total = f"{count_of(len(found), 'run')}, {gigabytes(sum(each.size_bytes for each in found))}"
    if dry_run or not found:
        print(f"{total} would be deleted")
        return
    confirm(yes, f"Delete {total}, with checkpoints, logs and bills?", default=False, declined="nothing was deleted")
    for each in found:
        is_copy = each.run.known.original is not None
        if not is_copy:
            each.run.cloud.forget(each.run.created.uid)  # first: once its folder is gone, no command can name the run
        keys.remove(each.store, each.run.created.uid)
        remove(each.store, each.folder)
        if not is_copy:
            forget(each.run.created.uid)
    print(f"{total} deleted")


def _stays(found: Removable) -> Iterator[str]:
    """
    Describe everything that the removal leaves behind, and how the user can remove it: the run's role, objects that
    spotrun did not write, and older versions of objects.
    """
    run = found.run
    try:
        if run.created.uid in run.cloud.identities(run.spec, run.clock).runs():
            yield f"its role on {run.cloud.name}, unless `spotrun reap --cloud {run.cloud.name}` removes it before"
    except (CloudError, SpecInvalid) as error:
        yield f"perhaps something on its cloud, which does not answer: {error.message}"
    try:
        if isinstance(found.store, ReportsForeignNames) and (strange := found.store.strange_names(f"{found.folder}/")):
            named = some_of([shown(name.removeprefix(f"{found.folder}/")) for name in strange])
            what = f"{count_of(len(strange), 'object')} under names that spotrun does not use"
            yield f"{what}: {named}; delete {run.uri} by hand if you do not need them"
    except StoreError as error:
        yield f"perhaps objects under other names: {error.message}"
    try:
        if isinstance(found.store, Inspectable) and found.store.inspect().versioned is True:
            yield "older versions of its objects: the bucket keeps what is deleted"
    except StoreError as error:
        yield f"perhaps older versions of its objects: {error.message}"
