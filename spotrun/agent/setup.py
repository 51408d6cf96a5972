"""
Prepares an instance for training: unpacks the work folder, and makes the environment with the job's `setup` command. If
the machine image has no PyTorch, PyTorch is installed into that environment.

    start the container, if any -> empty the folders
        -> result of `setup` in the cache:  unpack it
        -> otherwise:                       run `setup`, pack its result, and store it while the training begins

spotrun/folder/setup_cache.py keeps the result of `setup` for the next instances, so that the user does not pay for
running the command again. If the cached result cannot be used, the command runs again in clean folders, and the log
says so.

A training can exchange the cached result, so the digest of the result is in the ledger before the training begins. What
an earlier trial of a sweep has cached, and what the user's own machine takes from the cache, must have such a digest
(protocol 31).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import msgspec
from msgspec.structs import replace

from spotrun.agent import container, diff_archive
from spotrun.agent.agent_context import AgentContext
from spotrun.agent.container import ContainerEffects
from spotrun.agent.machine import environment, process_groups
from spotrun.agent.machine.side_effects import SideEffects
from spotrun.agent.processes.trainer_process import NEVER_STARTS, environment_of, in_container, not_started
from spotrun.clouds.registry import cloud_named
from spotrun.errors import SpotrunError, StoreError
from spotrun.folder import setup_cache, start_file, workdir
from spotrun.folder.setup_cache import PackedSetup
from spotrun.run.events import PackDigest, SetUp
from spotrun.run.reasons import reason_in
from spotrun.store.atomic_write import write_atomically
from spotrun.store.retrying import through_faults

SETUP_MAX_S = 3600.0
"""Maximum seconds of system time for the job's `setup` command."""
FETCH_WITHIN_S = 300.0
"""Maximum seconds of system time for retries while the store has a fault."""
PACKED_MAX_BYTES = 16 << 30
OUTPUT_BYTES = 64 << 10
"""Number of bytes, at the end of the output of a failed `setup`, that are searched for the reason."""
FOLDERS = (environment.FOLDER, "work")
"""Folders in which the changes made by `setup` are packed for the next instance."""


class SetupFailed(SpotrunError):
    """The job's `setup` command failed."""


class NotInstalled(SpotrunError):
    """
    A package that a training needs could not be installed on this instance. Another instance may be able to install it.
    """


def prepare(context: AgentContext) -> SetUp:
    """
    Unpack the work folder, fetch the run's start file, and run the job's `setup` or unpack its cached result. If that
    was already done on this instance, return the earlier result. If `setup` has changed files of the container, it
    runs again in each new container.

    Raises:
        SetupFailed: the command ended with an error, or did not end within an hour.
        NotInstalled: a package that a training needs cannot be installed on this instance.
        NoImageNow: the image cannot be pulled on this instance.
        SpotrunError: the work folder cannot be fetched.
    """
    done = context.assignment.folder / "setup-done"
    began_s = context.clock.monotonic()
    if not done.exists():
        context.status.change(phase="setup")
    if context.spec.image is not None:
        container.start(context)
    if done.exists():
        return msgspec.json.decode(done.read_bytes(), type=SetUp)
    through_faults(FETCH_WITHIN_S)(_fetch, context)
    before = (
        ContainerEffects(context.container) if context.container is not None and _has_environment(context) else None
    )
    made = _environment(context) if _has_environment(context) else SetUp(seconds=0, how="none")
    found = replace(made, seconds=context.clock.monotonic() - began_s)
    if before is None or not before.since():  # a new container would lack the changes that `setup` made in this one
        write_atomically(done, msgspec.json.encode(found))
    return found


def _fetch(context: AgentContext) -> None:
    """Fetch the files into clean folders, because an earlier agent may have died during its fetch."""
    shutil.rmtree(context.assignment.work, ignore_errors=True)
    workdir.fetch(context.store, context.created.workdir_sha256, context.assignment.work)
    if context.created.start_sha256 is not None:
        start_file.fetch(context.store, context.created.start_sha256, context.assignment.folder)
    if not _has_environment(context):
        return
    if context.container is None:
        environment.make(context.assignment.folder)
    else:
        container.make_environment(context.container, context.assignment.folder / environment.FOLDER)


def _has_environment(context: AgentContext) -> bool:
    return context.spec.setup is not None or _lacks_torch(context)


def _lacks_torch(context: AgentContext) -> bool:
    """
    Return True if PyTorch has to be installed on this instance. In a container it is never installed: the user's image
    has the PyTorch that the user wants, or none.
    """
    return context.container is None and environment.lacks_torch()


def _environment(context: AgentContext) -> SetUp:
    """Make the environment: unpack it from the setup cache, or run `setup`. The result does not contain the time."""
    if not context.spec.pack_setup:
        _run(context)
        return SetUp(seconds=0, how="run")
    offering = context.recorder.state.launches[context.assignment.launch].intent.offering
    key = environment.key_of(context.spec, context.created.workdir_sha256, offering.accelerators)
    packed = _unpacked(context, key, own=offering.is_own)
    if packed is not None:
        return _set_up("unpacked", key, packed)
    return _set_up("run", key, _run_and_pack(context, key, watched=not cloud_named(offering.cloud).here))


def _set_up(how: str, key: str, packed: PackedSetup | None) -> SetUp:
    if packed is None:
        return SetUp(seconds=0, how=how)
    return SetUp(seconds=0, how=how, packed_bytes=packed.size_bytes, pack=packed.digest(key))


# -- from the cache -----------------------------------------------------------------------------------------------


def _unpacked(context: AgentContext, key: str, *, own: bool) -> PackedSetup | None:
    """
    Unpack the environment from the setup cache, and return its description. Return None if `setup` has to run, because
    the cache has no environment for this `key`, or it cannot be used here. `own` is True on the user's own machine.
    """
    began_s = time.monotonic()
    try:
        packed = setup_cache.find(context.store, key)
        if packed is None:
            return None
        if not _is_trusted(context, packed.digest(key), own=own):
            context.note("setup runs again: the ledger does not contain the digest of this setup cache")
            return None
        _unpack(context, key, packed)
    except setup_cache.SetupUnusable as damage:
        context.note(f"the setup cache is damaged: {damage.message}; setup runs again")
        with contextlib.suppress(StoreError):
            setup_cache.discard(context.store, key)
    except SpotrunError as error:
        context.note(f"the setup cache cannot be used here: {error.message}; setup runs again")
    else:
        seconds = time.monotonic() - began_s
        context.note(
            f"setup: cache of launch {packed.launch} unpacked in {seconds:.1f} s ({_megabytes(packed.size_bytes)})"
        )
        return packed
    through_faults(FETCH_WITHIN_S)(_fetch, context)
    return None


def _is_trusted(context: AgentContext, pack: PackDigest, *, own: bool) -> bool:
    """
    Return True if this instance may run what is in the packed set-up. If the ledger does not vouch for it, this run's
    instances have made it, or its training. Then only the rented instances of this run use it, unless entry 0 names
    another one of this key.
    """
    if pack in context.recorder.state.vouched_packs:
        return True
    return not own and all(pack.key != copied.key for copied in context.created.copied_packs)


def _unpack(context: AgentContext, key: str, packed: PackedSetup) -> None:
    archive = context.assignment.folder / "setup-fetched.tar"
    try:
        setup_cache.fetch(context.store, key, packed, archive)
        made_in = diff_archive.unpack(archive, context.assignment.folder, FOLDERS).made_in
    finally:
        archive.unlink(missing_ok=True)
    environment.relocate(context.assignment.folder, made_in)


# -- by the command --------------------------------------------------------------------------------------------------


def _run_and_pack(context: AgentContext, key: str, *, watched: bool) -> PackedSetup | None:
    """
    Run the command, and pack what it has changed in FOLDERS. Return the description of the archive, which a thread then
    uploads. Return None if nothing is packed.

    If `watched` is True, check whether the command also changed anything outside of FOLDERS. If it did, nothing is
    packed, because an instance that unpacks the archive would lack these changes.
    """
    side_effects = _surroundings(context, watched=watched)
    before = diff_archive.survey(context.assignment.folder, FOLDERS)
    began_s = time.monotonic()
    _run(context)
    took_s = time.monotonic() - began_s
    changed = diff_archive.between(
        context.assignment.folder, before, diff_archive.survey(context.assignment.folder, FOLDERS)
    )
    why_not = _why_not_packed(context, changed, side_effects)
    if why_not:
        context.note(f"setup took {took_s:.1f} s; it will run again on each instance: {why_not}")
        return None
    archive = context.assignment.folder / "setup.tar"
    diff_archive.pack(changed, archive)
    packed = setup_cache.describe(context.assignment.launch, archive)
    size = _megabytes(packed.size_bytes)
    context.note(f"setup took {took_s:.1f} s; its result is packed for the next instance ({size})")
    threading.Thread(target=_store, args=(context, key, packed, archive), name="setup-cache", daemon=True).start()
    return packed


def _surroundings(context: AgentContext, *, watched: bool) -> SideEffects | ContainerEffects | None:
    if context.container is not None:
        return ContainerEffects(context.container)
    return SideEffects(Path.home()) if watched else None


def _why_not_packed(
    context: AgentContext, changed: diff_archive.Diff, side_effects: SideEffects | ContainerEffects | None
) -> str:
    if not changed:
        return "it has changed nothing in the environment and the work folder"
    if left := process_groups.carrying(context.assignment.instance_id):
        return f"it has left processes running ({', '.join(map(str, left))})"
    if elsewhere := side_effects.since() if side_effects is not None else []:
        more = f" and {len(elsewhere) - 3} more" if len(elsewhere) > 3 else ""
        return f"it has changed files that cannot be packed: {', '.join(elsewhere[:3])}{more}"
    size_bytes = sum(path.lstat().st_size for path in map(context.assignment.folder.joinpath, changed.written))
    return f"{_megabytes(size_bytes)} are too much to pack" if size_bytes > PACKED_MAX_BYTES else ""


def _store(context: AgentContext, key: str, packed: PackedSetup, archive: Path) -> None:
    """Upload the archive while the training begins. If that fails, the next instance runs the `setup` command."""
    try:
        stored = setup_cache.upload(context.store, key, packed, archive)
    except StoreError as error:
        context.note(f"the setup cache could not be stored, so the next instance runs setup again: {error.message}")
    else:
        context.note("the setup cache is stored" if stored else "another instance has stored the same setup cache")
    archive.unlink(missing_ok=True)


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"


def _run(context: AgentContext) -> None:
    """Install PyTorch if this instance lacks it, and then run the job's `setup`, which may depend on PyTorch."""
    if _lacks_torch(context) and (failure := _failure_of(context, environment.torch_command())):
        raise NotInstalled(f"the installation of PyTorch {failure}")
    if context.spec.setup is not None and (failure := _failure_of(context, context.spec.setup)):
        raise SetupFailed(f"setup {failure}")


def _failure_of(context: AgentContext, command: str) -> str:
    """Run a command. Return "" if it ends with exit code 0; otherwise describe the failure."""
    before = context.console.size_bytes()
    output = context.console.open()
    try:
        process = subprocess.Popen(
            in_container(context, ["bash", "-c", command]),
            cwd=context.assignment.work,
            env=environment_of(context),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    except OSError as error:
        if error.errno not in NEVER_STARTS:
            raise
        return f"did not begin: {not_started('bash', error)}"
    finally:
        os.close(output)
    watchdog = threading.Timer(SETUP_MAX_S, process_groups.kill_group, (process.pid,))
    watchdog.daemon = True
    watchdog.start()
    exit_code = process.wait()
    watchdog.cancel()
    if exit_code == 0:
        return ""
    reason = reason_in(context.console.tail(OUTPUT_BYTES, since=before)) or "it printed nothing"
    return f"ended with exit code {exit_code}: {reason}"
