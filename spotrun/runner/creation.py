"""
Creates a run: makes its folder in the store, stores the content of the work folder there, and writes entry 0.

Several processes can try to create the same run, and only one of them writes entry 0. Every other process compares the
stored entry 0 with the one that it wanted to write.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from spotrun.account.storage_prices import storage_prices
from spotrun.clock import ScaledClock
from spotrun.clouds.cloud import Cloud
from spotrun.clouds.registry import cloud_of
from spotrun.errors import LedgerDamaged, StoreError
from spotrun.folder import keys, start_file, workdir
from spotrun.folder.bench_record import benched_steps
from spotrun.folder.ledger import EntryRefused, Ledger
from spotrun.folder.revision import revision_of
from spotrun.folder.travelling import to_upload
from spotrun.policy.deadline import deadline_at
from spotrun.run import fold
from spotrun.run.events import Entry, EpochsEnd, PackDigest, RunCreated, version_for
from spotrun.run.state import RunState
from spotrun.spec.model import RunSpec, sha256_of
from spotrun.store.conditional_put_probe import race
from spotrun.store.opening import open_store
from spotrun.store.port import Located, Store
from spotrun.store.retrying import persist
from spotrun.version import __version__

TRIAL = "trial"
"""Name of an object that is written to a new run's folder as a test, and then deleted."""


def new_uid() -> str:
    return secrets.token_hex(5)


class NewRun:
    """
    A run whose folder is complete except for entry 0. `create` writes entry 0. It can be called repeatedly, because
    each call writes the same bytes. `shared` is True if other processes try to create the same run. In that case, an
    entry 0 from one of them is accepted too.
    """

    def __init__(self, store: Store, created: RunCreated, ledger: Ledger, *, shared: bool = False) -> None:
        self._store = store
        self._ledger = ledger
        self._shared = shared
        self.created = created

    @property
    def uri(self) -> str:
        return self._store.uri

    @property
    def id(self) -> str:
        return f"{self.created.name}-{self.created.uid}"

    @property
    def first_sha256(self) -> str:
        """The digest of the object that contains entry 0."""
        return self._ledger.first_sha256(self.created)

    def create(self) -> str:
        """
        Write entry 0, and return the address of the run's folder.

        Raises:
            LedgerDamaged: the run already has a different entry 0.
            StoreUnavailable: entry 0 may have been written; repeat the call.
        """
        try:
            self._ledger.create(self.created)
        except EntryRefused:
            found = self._ledger.state.created
            if not self._shared or differences(found, self.created):
                raise self.not_ours(found) from None
        return self.uri

    def not_ours(self, found: RunCreated) -> LedgerDamaged:
        """Return the error to raise if another process has written a different entry 0, `found`."""
        return LedgerDamaged(
            f"another process wrote the first entry of {self.uri}{in_what(differences(found, self.created))}",
            hint="nothing in that folder was executed; check who has write access to the store, then delete the folder",
        )


def prepare_run(
    spec: RunSpec,
    writer: str,
    start: Path | None = None,
    uid: str | None = None,
    *,
    shared: bool = False,
    part_of: str = "",
    setup_packs: tuple[PackDigest, ...] = (),
    signer: keys.Signer | None = None,
) -> NewRun:
    """
    Store everything that an instance needs, except entry 0.

    `start` is the Lightning checkpoint that the training starts from. `uid` is the run's uid, if the caller has already
    chosen it. `shared` is True if several processes may create the run at the same time. Then the store is not tested,
    because these processes would disturb one another's tests. `part_of` names the only command that can continue the
    run, and `setup_packs` are the stored set-ups that it will copy into the run's folder (see RunCreated). `signer`
    signs entry 0.

    Raises:
        StoreError: the store cannot hold a run.
        SpecInvalid: the work folder is too large, or the script is not among the files to upload.
        CloudError: the interruption rates that the specification names cannot be read.
    """
    folder = Path(spec.workdir)
    to_upload(folder, spec.checkpoint.uri, spec.train.source(folder), spec.workdir_max_gb)
    uid = uid or new_uid()
    runs, store = _stores_of(spec, uid)
    if not shared:
        _try_out(store)
    cloud = cloud_of(spec)
    clock = cloud.clock(spec)
    cloud.put_right(clock, spec)
    cloud.furnish(store)
    work_sha256 = workdir.upload(store, folder)
    start_sha256 = None if start is None else start_file.upload(store, start)
    created = _first_event(spec, cloud, uid, clock, work_sha256, start_sha256, part_of)
    created = replace(created, public_key=keys.make(runs, uid), setup_packs=setup_packs or UNSET)
    ledger = Ledger(store, uid, writer, clock, sign=None if signer is None else signer.sign)
    return NewRun(store, created, ledger, shared=shared)


def would_be_created(spec: RunSpec, uid: str, start: Path | None = None) -> RunCreated:
    """
    Return the event that entry 0 would contain if a run of `spec` were created now. Write nothing, and create no key.

    Raises:
        StoreError, SpecInvalid, CloudError: as in `prepare_run`.
    """
    work_sha256 = workdir.digest_of(Path(spec.workdir), open_store(spec.checkpoint.uri).uri)
    start_sha256 = None if start is None else start_file.digest_of(start)
    cloud = cloud_of(spec)
    return _first_event(spec, cloud, uid, cloud.clock(spec), work_sha256, start_sha256, "")


def _stores_of(spec: RunSpec, uid: str) -> tuple[Store, Store]:
    return open_store(spec.checkpoint.uri), open_store(f"{spec.checkpoint.uri.rstrip('/')}/{spec.name}-{uid}")


def _first_event(
    spec: RunSpec,
    cloud: Cloud,
    uid: str,
    clock: ScaledClock,
    work_sha256: str,
    start_sha256: str | None,
    part_of: str,
) -> RunCreated:
    runs, store = _stores_of(spec, uid)
    folder = Path(spec.workdir)
    source = spec.train.source(folder)
    return replace(
        run_created(spec, cloud, uid, work_sha256, clock, persist(lambda: region_of(store))),
        start_sha256=start_sha256,
        revision=revision_of(folder),
        benched=persist(lambda: benched_steps(runs, spec, clock.scale)) or UNSET,
        part_of=part_of or UNSET,
        script_sha256="" if source is None else hashlib.sha256((folder / source).read_bytes()).hexdigest(),
    )


# -- what another process may have written -----------------------------------------------------------------------------


def differences(found: RunCreated, ours: RunCreated) -> list[str]:
    """
    Name all differences between a stored entry 0 (`found`) and the entry that would be written now (`ours`). A
    difference in the work folder comes first.

    Three values always differ, and are ignored: the creation time, the key, and a deadline that is relative to the
    creation time. Work folders are compared by their content, not by their paths.
    """
    job = {**ours.spec, "workdir": found.spec.get("workdir")}
    deadline = RunSpec.from_dict(ours.spec).policy.deadline
    expected = replace(
        ours,
        clock_epoch=found.clock_epoch,
        public_key=found.public_key,
        deadline_at=None if deadline is None else deadline_at(deadline, found.clock_epoch),
        spec=job,
        spec_sha256=sha256_of(job),
    )
    own, theirs = msgspec.to_builtins(expected), msgspec.to_builtins(found)
    own_job, their_job = own.pop("spec"), theirs.pop("spec")
    work = ["work folder"] if own.pop("workdir_sha256") != theirs.pop("workdir_sha256") else []
    keys_of_job = [f"{key} of the job" for key in own_job if own_job[key] != their_job.get(key)]
    added = ["another key of the job"] if their_job.keys() - own_job.keys() else []
    fields = [name for name in RunCreated.__struct_fields__ if own.get(name) != theirs.get(name)]
    return [*work, *keys_of_job, *added, *fields]


def in_what(unlike: Sequence[str]) -> str:
    """
    Return the end of an error message, such as ": it differs in work folder", which names the differences; "" if there
    are none.
    """
    return f": it differs in {', '.join(unlike)}" if unlike else ""


def _try_out(store: Store) -> None:
    """
    Test the store operations that every run needs, before anything is rented. `spotrun doctor` tests further
    operations.
    """
    try:
        race(store, TRIAL)
    except StoreError:
        with contextlib.suppress(StoreError):  # a second error would hide the first
            store.delete(TRIAL)
        raise
    persist(lambda: store.delete(TRIAL))


def region_of(store: Store) -> str:
    """
    Return the region of a run's bucket, which determines the price of outgoing traffic. Return "" if the store is a
    folder, or does not report a region.
    """
    found = store.region() if isinstance(store, Located) else ""
    return found if isinstance(found, str) else ""


def newborn(
    spec: RunSpec,
    cloud: Cloud,
    clock: ScaledClock,
    region: str = "",
    benched: Mapping[str, float] = MappingProxyType({}),
) -> RunState:
    """
    Return the state that a run of `spec` on `cloud` would have just after its creation, without creating it. The run's
    bucket is in `region`. `benched` are the seconds per step that `spotrun bench` measured, by kind of accelerator.
    """
    event = replace(run_created(spec, cloud, "unborn", "", clock, region), benched=dict(benched) or UNSET)
    return fold.begin(Entry(number=0, run=event.uid, nonce="", at=clock.now(), writer="", event=event))


def run_created(
    spec: RunSpec, cloud: Cloud, uid: str, workdir_sha256: str, clock: ScaledClock, region: str = ""
) -> RunCreated:
    """
    Return the event of entry 0 for a run of `spec` on `cloud`, whose bucket is in `region`. `clock` is the run's clock,
    and its `epoch` is the time at which the run begins.

    Raises:
        SpecInvalid: the job names places that its cloud does not have.
    """
    began_at = clock.epoch - clock.ahead
    cloud.require_known(spec)
    return RunCreated(
        uid=uid,
        name=spec.name,
        ledger_version=version_for(spec.num_nodes, elastic=spec.elastic is not None),
        spec=spec.to_dict(),
        spec_sha256=spec.spec_sha256,
        workdir_sha256=workdir_sha256,
        clock_epoch=began_at,
        time_scale=clock.scale,
        price_cap_usd_per_hour=spec.resources.max_price,
        budget_usd=spec.budget.max_usd,
        storage=storage_prices(spec.checkpoint.place, region, home=spec.home is not None),
        interruption_bands=cloud.interruption_rates(spec),
        billing=cloud.billing(spec),
        simulated=cloud.simulated,
        deadline_at=None if spec.policy.deadline is None else deadline_at(spec.policy.deadline, began_at),
        epochs_end=EpochsEnd.FINISHED,
        spotrun=__version__,
    )
