"""
Lets `spotrun down` end the instances of a run whose entry 0 cannot be read. The later entries of the ledger name the
clouds and regions in which to look for instances, and each instance has the run's uid as a tag.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from spotrun.clouds.cloud import Account
from spotrun.clouds.registry import cloud_named
from spotrun.errors import CloudError, LedgerDamaged, SpecInvalid
from spotrun.folder.ledger import FOLDER as LEDGER
from spotrun.run.entry_bytes import decode_entry
from spotrun.run.events import ENTRY_SIZE_MAX, LaunchIntended
from spotrun.runs.asking import confirm
from spotrun.runs.open_run import default_store, open_each
from spotrun.store.opening import open_store
from spotrun.store.port import Store
from spotrun.store.retrying import persist
from spotrun.units import shown, shown_lines


class Region(NamedTuple):
    cloud: str
    region: str

    def __str__(self) -> str:
        return shown(f"{self.cloud}/{self.region}")


class Nameless(NamedTuple):
    """The folder of a run whose entry 0 cannot be read."""

    name: str
    run_uid: str
    store: Store


def nameless(reference: str, store: str | None) -> Nameless | None:
    """
    Return the folder that `reference` names; None if no folder or several match. Also return None if another folder
    contains a run with the same uid that is known on this machine: instances are tagged only with the uid, and belong
    to that run.
    """
    folder, _, name = reference.rstrip("/").rpartition("/")
    runs = open_store(folder or store or default_store())
    names = persist(runs.folders)
    meant = [each for each in names if name in (each, *each.rsplit("-", 1))]
    if len(meant) != 1:
        return None
    uid = meant[0].rpartition("-")[2]
    others = [each for each in names if each.rpartition("-")[2] == uid and each != meant[0]]
    if any(run.known.is_known() for run in open_each(runs, others)[0]):
        return None
    return Nameless(meant[0], uid, open_store(f"{runs.uri}/{meant[0]}"))


def end_nameless(reference: str, store: str | None, yes: bool) -> None:
    """
    Ask for confirmation, and end the instances of the run in the folder that `reference` names. Do nothing if there is
    no such folder, or more than one (see `nameless`).
    """
    found = nameless(reference, store)
    if found is not None:
        confirm(yes, f"End the instances of {found.name} now?", default=True, declined="nothing was ended")
        end_listed(found.store, found.run_uid)


def end_listed(store: Store, run_uid: str) -> None:
    """End the instances with the tag `run_uid`, in every region where the run's ledger has requested an instance."""
    places = sorted(set(_places(store)))
    if not places:
        print(
            f"the ledger names no cloud; `spotrun reap --cloud CLOUD --run {shown(run_uid)}` ends its instances there"
        )
    for place in places:
        try:
            driver = _account(place).driver
            for instance in driver.instances(run_uid):
                if instance.alive:
                    driver.terminate(instance.instance_id)
                    print(f"asked to end {instance.instance_id} in {place}")
        except (CloudError, SpecInvalid) as error:
            print(shown_lines(f"could not read {place}: {error.one_line}"))


def _account(place: Region) -> Account:
    """
    Return the account on the cloud and in the region of `place`.

    Raises:
        SpecInvalid: the cloud does not exist.
    """
    cloud = cloud_named(place.cloud)
    try:
        return cloud.account([place.region])
    except SpecInvalid:
        return cloud.account([])  # a cloud without regions, or a region that does not exist


def _places(store: Store) -> Iterator[Region]:
    for found in persist(lambda: store.list(LEDGER)):
        data = persist(lambda key=found.key: store.get(key, 0, ENTRY_SIZE_MAX + 1))  # type: ignore[misc]
        try:
            entry = decode_entry(data)
        except LedgerDamaged:
            continue
        if entry is not None and isinstance(entry.event, LaunchIntended):
            yield Region(entry.event.offering.cloud, entry.event.offering.region)
