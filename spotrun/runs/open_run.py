"""Finds the runs of a store by name, and opens each with its cloud and its clock."""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from spotrun import address
from spotrun.address import DEFAULT_STORE
from spotrun.clock import ScaledClock
from spotrun.clouds.cloud import Cloud
from spotrun.clouds.driver import CloudDriver
from spotrun.clouds.last_words import LastWords
from spotrun.clouds.registry import cloud_of
from spotrun.errors import LedgerDamaged, RunCopied, RunMisnamed, RunNotFound, StoreError, StoreUnavailable
from spotrun.folder.attendance import UNATTENDED_AFTER, UNATTENDED_AFTER_MAX, has_died, lasts
from spotrun.folder.bench_record import FOLDER as BENCH
from spotrun.folder.final_status import RunStatus, read_final_status
from spotrun.folder.keys import FOLDER as KEYS
from spotrun.folder.keys import OwnersKey
from spotrun.folder.ledger import Ledger, first_object
from spotrun.folder.market_record import FOLDER as MARKET
from spotrun.folder.market_record import MarketRecord
from spotrun.folder.night_record import FOLDER as NIGHTS
from spotrun.folder.pace import ALL_THE_TIME, PollIntervals
from spotrun.folder.status_objects import RUNNER_KEY, RunnerStatus, read_status
from spotrun.folder.sweep_record import FOLDER as SWEEPS
from spotrun.folder.sweep_record import find_sweep
from spotrun.run.events import RunCreated
from spotrun.run.fold import begin
from spotrun.run.state import RunState
from spotrun.runner.runner import Runner
from spotrun.runs.asking import say
from spotrun.runs.known_record import KnownRecord, known_addresses
from spotrun.spec.model import RunSpec
from spotrun.spec.values import NAME_PATTERN
from spotrun.store.opening import open_store
from spotrun.store.port import Store
from spotrun.store.retrying import persist
from spotrun.units import shown

OPENERS = 8
"""
Maximum number of runs that are opened at the same time. Opening a run is mostly waiting for the store.
"""
_UID = re.compile(r"[0-9a-z]{1,32}", re.ASCII)
NO_RUNS = frozenset({MARKET, KEYS, BENCH, SWEEPS, NIGHTS})
"""Names of the folders in a store that are not folders of runs."""
LISTED_MAX = 10
"""Maximum number of matching runs that an error lists if a reference is ambiguous."""


class OpenRun:
    """An existing run, with everything that a command needs to read it or take care of it."""

    def __init__(self, uri: str, writer: str) -> None:
        self.store: Store = open_store(uri)
        self.uri = self.store.uri
        first, self.first = first_object(self.store)
        self.created: RunCreated = begin(first).created
        self.first_sha256 = hashlib.sha256(self.first).hexdigest()
        _require_its_name(self.uri, self.created)
        self.known = KnownRecord(self.created.uid, self.first_sha256, self.uri)
        self.clock = ScaledClock(self.created.clock_epoch, self.created.time_scale)
        self._key = OwnersKey(lambda: self.runs, self.created.uid, self.created.public_key)
        self.ledger = Ledger(
            self.store,
            self.created.uid,
            writer,
            self.clock,
            first=(first, self.first),
            sign=self._key,
            witness=self.known,
        )

    @property
    def id(self) -> str:
        return f"{self.created.name}-{self.created.uid}"

    @property
    def owner(self) -> OwnersKey | None:
        """The key with which runners sign as the run's owner; None for a run of ledger version 2, which has no key."""
        return self._key if self.created.public_key else None

    @property
    def typed(self) -> str:
        """A reference to the run, quoted for a shell, with which the user can name the run in other commands."""
        return reference(self.id, self.uri)

    def read_whole_part(self) -> tuple[RunState, LedgerDamaged | None]:
        """
        Return the run's state and an error. The error is None if all entries could be read. If an entry is damaged,
        return the state before that entry, so that a command can show it before it raises the error.
        """
        try:
            return self.ledger.refresh(), None
        except LedgerDamaged as damage:
            what = f"{damage.message}; only the entries before it are shown"
            return self.ledger.state, LedgerDamaged(what, hint=damage.hint)

    def final_status(self) -> RunStatus | None:
        """
        Return the stored final status; None if there is none that can be trusted.

        Raises:
            StoreUnavailable: the store does not answer now.
        """
        return read_final_status(self.store, self.created, self.known.newest())

    @cached_property
    def runs(self) -> Store:
        """The store that contains the folder of this run, and those of other runs."""
        return open_store(self.uri.rpartition("/")[0] or "/")

    @cached_property
    def spec(self) -> RunSpec:
        return RunSpec.from_dict(self.created.spec)

    @property
    def cloud(self) -> Cloud:
        return cloud_of(self.spec)

    @property
    def trains_here(self) -> bool:
        """True if instances of the run can be processes of this machine, with the rights of this user."""
        home = self.spec.home
        return self.cloud.here or (home is not None and home.is_here)

    @cached_property
    def driver(self) -> CloudDriver:
        return self.cloud.driver(self.spec, self.clock)

    @cached_property
    def runner(self) -> Runner:
        return self.runner_at(ALL_THE_TIME)

    def runner_at(self, pace: PollIntervals) -> Runner:
        return Runner(
            self.ledger,
            self.store,
            self.driver,
            self.clock,
            self.spec,
            self.uri,
            MarketRecord(self.runs, pace.market_every),
            self.cloud.guards(self.spec, self.clock),
            self.cloud.identities(self.spec, self.clock),
            pace=pace,
            last_words=LastWords(self.cloud, self.store),
        )


def _require_its_name(uri: str, created: RunCreated) -> None:
    """
    Check that a run's folder has the name that entry 0 gives the run.

    Without this check, another user with write access to the store could make a folder that poses as another run: by
    the uid in its entry 0, or by its name.

    Raises:
        RunMisnamed: the folder's name differs from the name in its entry 0, or is not a valid name of a run.
    """
    run_id = f"{created.name}-{created.uid}"
    if uri.rpartition("/")[2] != run_id:
        raise RunMisnamed(f"{uri} contains the ledger of the run {run_id}", hint=f"a run's folder is called {run_id}")
    if not re.fullmatch(NAME_PATTERN, created.name) or not _UID.fullmatch(created.uid):
        hint = "delete the folder: spotrun did not make it"
        raise RunMisnamed(
            f"{uri} contains the ledger of the run {run_id}, which is not a valid name of a run", hint=hint
        )


def default_store() -> str:
    """Return the store to use if neither a flag nor a job file names one."""
    return os.environ.get("SPOTRUN_STORE") or DEFAULT_STORE


def reference(run_id: str, uri: str) -> str:
    """
    Return the shortest reference to the run that works in this shell: the run's id if the run is in the default store,
    otherwise its address.
    """
    return run_id if uri.rpartition("/")[0] == address.absolute(default_store()).rstrip("/") else quote(uri)


def who() -> str:
    """
    Return the user's name and host, for entries of the ledger. For a user without a name, as in some containers, use
    the user's number.
    """
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        name = f"uid-{os.getuid()}"
    return f"{name}@{socket.gethostname()}"


def writer(role: str) -> str:
    return f"{role}:{socket.gethostname()}:{os.getpid()}"


def open_run(reference: str | None, store: str | None, role: str = "cli", *, to_end: bool = False) -> OpenRun:
    """
    Return the run that `reference` names. A reference is an address, an id, or a name. An unambiguous beginning of an
    id or a name is enough. A name stands for the newest run with that name. If a run with that name is known on this
    machine, the name stands for the newest known one, so that another writer of the store cannot put a newer run in
    front of it.

    `to_end` is True for a command that only ends the run. Such a command also opens a run of which another folder has a
    copy, if the reference is the id or the name of one of the two folders.

    Raises:
        RunNotFound: no run matches, or several do. The message says where spotrun looked.
        RunCopied: the run is in more than one folder, and none of them is known on this machine.
    """
    reference = or_newest_here(reference, store)
    if "/" in reference:
        run = OpenRun(reference, writer(role))
    else:
        meant = _runs_meant_by(reference, store, to_end=to_end)
        chosen = next((run for run in reversed(meant) if run.known.is_known()), meant[-1])
        if chosen is not meant[-1]:
            say(f"note: this is {chosen.id}; {meant[-1].id} is newer, and not known on this machine: name it by its id")
        run = OpenRun(chosen.uri, writer(role))
    if to_end and run.known.original is not None:
        say(f"note: {run.uri} is a copy of {run.known.original}; the run's instances belong to the run there")
    if to_end and run.known.is_of_another():
        say(f"note: this machine knows another run with the uid {run.created.uid}; the instances may be that run's")
    return run


def or_newest_here(reference: str | None, store: str | None) -> str:
    """
    Return `reference`. If it is None, return the address of the newest run that this user has launched on this machine
    from the current folder, or whose work folder it is, and name the run to the user. If `store` is given, only runs in
    this store count.

    Raises:
        RunNotFound: there is no such run.
        StoreError: a run cannot be read.
    """
    if reference is not None:
        return reference
    for uri in known_addresses():
        if store is not None and uri.rpartition("/")[0] != address.absolute(store).rstrip("/"):
            continue
        with suppress(RunNotFound):  # it was removed, or moved
            run = OpenRun(uri, writer("cli"))
            if run.known.is_known() and str(Path.cwd()) in (run.known.launch_folder(), run.created.spec["workdir"]):
                say(f"note: {run.id} is the newest run of this folder")
                return run.uri
    raise RunNotFound(
        f"no RUN was given, and no run is known that was launched from {Path.cwd()}",
        hint="name one; `spotrun status` lists the runs",
    )


def runs_named(reference: str, store: str | None) -> list[OpenRun]:
    """
    Return all runs that `reference` names, oldest first.

    Raises:
        RunNotFound: no run matches, or `reference` matches several names.
    """
    return _runs_meant_by(reference, store)


def namesakes(reference: str, store: str | None, run: OpenRun) -> list[OpenRun]:
    """Return the other runs of a name with which a user named `run`; none if `reference` is an id or an address."""
    if "/" in reference:
        return []
    return [each for each in _runs_meant_by(reference, store, to_end=True) if each.id != run.id]


def newest_of(name: str, store: str, role: str) -> tuple[OpenRun, bool] | None:
    """
    Return the newest run with exactly this name; None if there is none. If a run of this name that is known on this
    machine has not finished, return the newest known one instead, so that another writer of the store cannot put a
    newer run in front of it. Also return whether any run of this name is known here.

    Raises:
        StoreError: there are runs with this name, but none can be read.
    """
    runs, unreadable = look_in(store)
    named = [run for run in runs if run.created.name == name]
    if not named:
        _refuse(each for each in unreadable if name in each.words and not isinstance(each.error, RunMisnamed))
        return None
    first = ours_first(named)[0]
    known = first.known.is_known()
    if not known or first.ledger.refresh().terminal is not None:
        first = max(named, key=lambda run: run.created.clock_epoch)
    return OpenRun(first.uri, writer(role)), known


def attended(run: OpenRun) -> bool:
    """Return True if a runner has updated its status object recently, and there is no sign that it has died since."""
    statuses = persist(lambda: run.store.list(RUNNER_KEY))
    # A time in the future, which a file can have, is as far from now as one in the past.
    silent = abs(datetime.now(UTC) - statuses[0].modified_at) if statuses else UNATTENDED_AFTER_MAX
    if silent >= UNATTENDED_AFTER_MAX:
        return False
    status = read_status(run.store, RUNNER_KEY, RunnerStatus)
    if status is None:
        return silent < UNATTENDED_AFTER
    return silent < lasts(status) and not has_died(status)


def _runs_meant_by(reference: str, store: str | None, *, to_end: bool = False) -> list[OpenRun]:
    """
    Return all runs with the id or name `reference`, oldest first. If there are none, return those whose id or name
    begins with `reference`. If there are none either, and `store` is None, look among the runs that this machine knows
    in other stores. Raise RunNotFound if there are none at all, or if several ids or names begin with `reference`.
    `to_end` is as in `open_run`.
    """
    folder = store or DEFAULT_STORE
    runs, unreadable = look_in(folder)
    found = [run for run in runs if reference in (run.id, run.created.uid, run.created.name)]
    if to_end:
        copied = [each.copied for each in unreadable if each.copied is not None]
        found += [run for run in copied if reference in (run.id, run.created.name)]
    if not (found and to_end) and not any(run.known.is_known() for run in found):
        _refuse(each for each in unreadable if reference in each.words and isinstance(each.error, RunCopied))
    if not found:
        _refuse(each for each in unreadable if reference in each.words)
        _refuse_sweep(reference, folder)
        found = _begin_with(reference, runs)
    if not found:
        _refuse(each for each in unreadable if reference and any(word.startswith(reference) for word in each.words))
        if store is None and reference:
            found = known_elsewhere(reference)
        if not found:
            raise _not_found(reference, folder, runs)
    return sorted(found, key=lambda run: run.created.clock_epoch)


def known_elsewhere(reference: str) -> list[OpenRun]:
    """
    Return the runs in other stores that this machine knows, such as those in the bucket that a job names, and whose id
    or name is `reference` or, if there are none, begins with it. Other runs than these are not opened.

    Raises:
        RunNotFound: several names or ids begin with `reference`.
        StoreError: a run cannot be read.
    """
    opened = []
    for uri in known_addresses():
        name, _, uid = uri.rpartition("/")[2].rpartition("-")
        if reference == uid or f"{name}-{uid}".startswith(reference):
            with suppress(RunNotFound):  # it was removed, or moved
                opened.append(OpenRun(uri, writer("cli")))
    known = [run for run in opened if run.known.is_known()]  # another writer may have put something else there
    exact = [run for run in known if reference in (run.id, run.created.uid, run.created.name)]
    return exact or _begin_with(reference, known)


def _refuse_sweep(reference: str, folder: str) -> None:
    """
    Refuse a reference that is the name of a sweep. It names no run, even if the sweep has only one run so far.

    Raises:
        RunNotFound: `reference` is the name of a sweep.
    """
    if not re.fullmatch(NAME_PATTERN, reference, re.ASCII) or absent(folder):
        return
    record = find_sweep(open_store(folder), reference)
    if record is not None:
        last = record.run_name(record.trials)
        raise RunNotFound(
            f"{reference} is a sweep, whose runs are {record.run_name(1)}"
            + (f" to {last}" if record.trials > 1 else ""),
            hint="name one of these runs; to continue the sweep, repeat the command that began it",
        )


def _begin_with(reference: str, runs: list[OpenRun]) -> list[OpenRun]:
    """
    Return the runs whose name or id begins with `reference`. If `reference` is the beginning of a name, the result is
    all runs with that name. If it is the beginning of an id, the result is the one run with that id. The result is
    empty if no name or id begins with `reference`.

    Raises:
        RunNotFound: several names or ids begin with `reference`.
    """
    if not reference:
        return []
    names = {run.created.name for run in runs if run.created.name.startswith(reference)}
    by_id = [run for run in runs if run.created.name not in names and _id_begins(run, reference)]
    if len(names) + len(by_id) > 1:
        listed = [*sorted(names), *sorted(run.id for run in by_id)]
        more = f" and {len(listed) - LISTED_MAX} more" if len(listed) > LISTED_MAX else ""
        raise RunNotFound(
            f"{reference!r} is ambiguous: it may mean {', '.join(listed[:LISTED_MAX])}{more}",
            hint="type more of the name or the id",
        )
    return by_id or [run for run in runs if run.created.name in names]


def _id_begins(run: OpenRun, reference: str) -> bool:
    return run.id.startswith(reference) or run.created.uid.startswith(reference)


class Unreadable(NamedTuple):
    """
    A folder that cannot be used as a run. Its entry 0 is damaged or cannot be read, or another folder contains the same
    run.
    """

    name: str
    uri: str
    error: StoreError
    words: tuple[str, ...]
    """
    The references by which a user may name this run in a command. They are taken from the folder's name, NAME-UID,
    because the folder cannot be read.
    """
    copied: OpenRun | None = None
    """The run, if it could be read, and it is unknown which of its folders is the right one."""


def runs_in(folder: str) -> list[OpenRun]:
    """Return all readable runs in a store, in no particular order."""
    return look_in(folder)[0]


def ours_first(runs: Iterable[OpenRun]) -> list[OpenRun]:
    """
    Return the runs that are known on this machine, then the others, so that another writer of the store cannot put runs
    in front of this user's own. Each group is in the order from the newest to the oldest.
    """
    return sorted(runs, key=lambda run: (run.known.is_known(), run.created.clock_epoch), reverse=True)


def look_in(folder: str) -> tuple[list[OpenRun], list[Unreadable]]:
    """
    Return all readable runs in a store, and all folders of runs that cannot be read. Skip folders of other kinds.

    Raises:
        StoreError: the folders cannot be listed.
        StoreUnavailable: a folder cannot be read now, so a run could be missing from the result.
    """
    store = open_store(folder)
    return open_each(store, [name for name in persist(store.folders) if name not in NO_RUNS])


def open_each(store: Store, names: Iterable[str]) -> tuple[list[OpenRun], list[Unreadable]]:
    """Return the readable runs in the folders `names` of a store, and the folders of runs that cannot be read."""
    with ThreadPoolExecutor(OPENERS) as pool:
        found = list(pool.map(lambda name: _try_open(name, f"{store.uri}/{name}"), names))
    runs, copies = set_copies_apart([run for run in found if isinstance(run, OpenRun)])
    return runs, [run for run in found if isinstance(run, Unreadable)] + copies


def set_copies_apart(runs: list[OpenRun]) -> tuple[list[OpenRun], list[Unreadable]]:
    """
    Return the runs, and an `Unreadable` for each folder whose run is in another folder too. If a run is in several
    folders, and one of them is known on this machine, that folder is the run. Folders of one store have different
    names, and so different first entries: at most one of them is known. `runs` may be of several stores.
    """
    by_uid: dict[str, list[OpenRun]] = {}
    for run in runs:
        by_uid.setdefault(run.created.uid, []).append(run)
    found, copies = list[OpenRun](), list[Unreadable]()
    for same in by_uid.values():
        known = same if len(same) == 1 else [run for run in same if run.known.is_known()]
        ours = known if len(known) == 1 else []
        found += ours
        copies += [_copy(run, same, ours) for run in same if run not in ours]
    return found, copies


def _copy(run: OpenRun, same: list[OpenRun], ours: list[OpenRun]) -> Unreadable:
    """Describe a folder, `run`, whose uid all runs in `same` have. `ours` is the one of them that is known, if any."""
    if ours:
        what = f"{run.uri} has the uid of {ours[0].id}, which is known on this machine"
        error = RunCopied(what, hint="move the folder out of the store; check who has write access to the store")
        return Unreadable(run.id, run.uri, error, (run.id, run.created.name))
    places = " and ".join(each.uri for each in same)
    error = RunCopied(
        f"the run {same[0].id} is in {len(same)} folders: {places}",
        hint="move the copies out of the store, or give the address of the folder that you mean",
    )
    return Unreadable(run.id, run.uri, error, (run.id, run.created.uid, run.created.name), run)


def _try_open(name: str, uri: str) -> OpenRun | Unreadable | None:
    try:
        return OpenRun(uri, writer("cli"))
    except RunNotFound:
        return None
    except StoreUnavailable:
        raise
    except StoreError as error:
        return Unreadable(shown(name, 200), uri, error, (name, *name.rsplit("-", 1)))


def _refuse(meant: Iterable[Unreadable]) -> None:
    """
    Raise the error of the first folder in `meant`; do nothing if `meant` is empty. Without this, a run that exists but
    cannot be read would be reported as missing.
    """
    for each in meant:
        raise each.error


def _not_found(reference: str, folder: str, runs: list[OpenRun]) -> RunNotFound:
    """Return the error for a reference that names none of the `runs` in `folder`, and no run known on this machine."""
    hint = "`spotrun status` lists the runs; --store names another store"
    if absent(folder):
        where, hint = f": there is no folder {folder}", "use --store to name the runs' store"
    elif not runs:
        where = f": there are no runs in {folder}"
        hint = "start one with `spotrun launch JOB.yaml`, or use --store to name another store"
    else:
        where = f" in {folder}"
    elsewhere = {uri.rpartition("/")[2] for uri in known_addresses()}
    if elsewhere:
        where += ", nor among the runs that this machine knows in other stores"
    ids = elsewhere | {run.id for run in runs}
    near = get_close_matches(reference, sorted(ids | {each.rpartition("-")[0] for each in ids}), 3)
    return RunNotFound(f"no run {reference!r}{where}", hint=f"did you mean {' or '.join(near)}?" if near else hint)


def absent(folder: str) -> bool:
    """
    Return True if `folder` is on this machine and does not exist. Do not open such a folder as a store: that would
    create it. Return False if this user is not allowed to look: the first use of the store then says so.
    """
    place = address.parse(folder)
    try:
        return isinstance(place, str) and not Path(place).expanduser().is_dir()
    except PermissionError:
        return False


def require_store(folder: str) -> None:
    """
    Check that a store on this machine exists. A bucket is not checked, because any read from a missing bucket fails.

    Raises:
        StoreError: `folder` is on this machine and does not exist.
    """
    if not absent(folder):
        return
    path = Path(str(address.parse(folder))).expanduser()
    if path.exists():
        raise StoreError(
            f"{shown(path, 200)} is a file, not a folder of runs", hint="name the folder of the runs instead"
        )
    beside = [each.name for each in path.parent.iterdir() if each.is_dir()] if path.parent.is_dir() else []
    near = get_close_matches(path.name, beside, 1)
    raise StoreError(
        f"there is no folder {shown(path, 200)}",
        hint=f"did you mean {path.parent / near[0]}?"
        if near
        else f"without --store, spotrun looks in {default_store()}",
    )
