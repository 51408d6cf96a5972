"""
Prepares a training: the work folder, and the environment that the user's own set-up command makes. PyTorch is a part of
that environment if the image has none.

    (container) -> clean folders -> unpack what an earlier instance made -> ready
                  -> or run `setup` -> pack what it made, and store that while the training begins

A set-up is paid for once; spotrun/folder/setup_cache.py keeps it. If anything is wrong with the cached one, the command
runs again in clean folders, and the log says so.
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

from spotrun.agent import container, diff_archive, environment, groups
from spotrun.agent.container import ContainerEffects
from spotrun.agent.node import Node
from spotrun.agent.side_effects import SideEffects
from spotrun.agent.trainer_process import NEVER_STARTS, environment_of, in_container, not_started
from spotrun.clouds.registry import cloud_named
from spotrun.errors import SpotrunError, StoreError
from spotrun.folder import setup_cache, start_file, workdir
from spotrun.run.events import SetUp
from spotrun.run.reasons import reason_in
from spotrun.store.retrying import through_faults

SETUP_MAX_S = 3600.0
"""Maximum system seconds of a set-up command."""
FETCH_WITHIN_S = 300.0
"""Maximum system seconds that a passing fault of the store may last."""
PACKED_MAX_BYTES = 16 << 30
OUTPUT_BYTES = 64 << 10
"""Bytes of a failed setup's output that are searched for the reason."""
FOLDERS = (environment.FOLDER, "work")
"""Folders that a set-up may change, and all that is packed of it."""


class SetupFailed(SpotrunError):
    """The user's set-up command failed."""


class NotInstalled(SpotrunError):
    """
    A part that a training needs could not be had here. The user has nothing to correct, and another instance may have
    it.
    """


def prepare(node: Node) -> SetUp:
    """
    Unpack the work folder, fetch what the run begins from, and set up; once in the life of an instance, or of its
    container if set-up has changed that.

    Raises:
        SetupFailed: the command ended with an error, or not within an hour.
        NotInstalled, NoImageNow
        SpotrunError: the work folder cannot be had.
    """
    done = node.assignment.folder / "setup-done"
    began_s = node.clock.monotonic()
    if not done.exists():
        node.status.change(phase="setup")
    if node.spec.image is not None:
        container.start(node)
    if done.exists():
        return msgspec.json.decode(done.read_bytes(), type=SetUp)
    through_faults(FETCH_WITHIN_S)(_fetch, node)
    before = ContainerEffects(node.container) if node.container is not None and _has_environment(node) else None
    how, size_bytes = _environment(node) if _has_environment(node) else ("none", 0)
    found = SetUp(seconds=node.clock.monotonic() - began_s, how=how, packed_bytes=size_bytes)
    if before is None or not before.since():  # else a new container would lack what set-up has put into this one
        temporary = done.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.encode(found))
        temporary.replace(done)
    return found


def _fetch(node: Node) -> None:
    """Fetch into clean folders: an agent before this one may have died halfway through."""
    shutil.rmtree(node.assignment.work, ignore_errors=True)
    workdir.fetch(node.store, node.created.workdir_sha256, node.assignment.work)
    if node.created.start_sha256 is not None:
        start_file.fetch(node.store, node.created.start_sha256, node.assignment.folder)
    if not _has_environment(node):
        return
    if node.container is None:
        environment.make(node.assignment.folder)
    else:
        container.make_environment(node.container, node.assignment.folder / environment.FOLDER)


def _has_environment(node: Node) -> bool:
    return node.spec.setup is not None or _lacks_torch(node)


def _lacks_torch(node: Node) -> bool:
    """Return True if PyTorch has to be installed. A container has that of its image, or none."""
    return node.container is None and environment.lacks_torch()


def _environment(node: Node) -> tuple[str, int]:
    """Make the environment. Return how, and the size of its packed files, 0 if none are packed."""
    if not node.spec.pack_setup:
        _run(node)
        return "run", 0
    offering = node.recorder.state.launches[node.assignment.launch].intent.offering
    key = environment.key_of(node.spec, node.created.workdir_sha256, offering.accelerators)
    size_bytes = _unpacked(node, key)
    if size_bytes is not None:
        return "unpacked", size_bytes
    return "run", _run_and_pack(node, key, watched=not cloud_named(offering.cloud).here)


# -- from the cache -----------------------------------------------------------------------------------------------


def _unpacked(node: Node, key: str) -> int | None:
    """Return the size of the packed set-up that the environment now comes from; None if it has to be made."""
    began_s = time.monotonic()
    try:
        packed = setup_cache.find(node.store, key)
        if packed is None:
            return None
        _unpack(node, key, packed)
    except setup_cache.SetupUnusable as damage:
        node.note(f"the setup cache is damaged: {damage.message}; setup runs again")
        with contextlib.suppress(StoreError):
            setup_cache.discard(node.store, key)
    except SpotrunError as error:
        node.note(f"the setup cache cannot be used here: {error.message}; setup runs again")
    else:
        seconds = time.monotonic() - began_s
        node.note(f"setup: {_megabytes(packed.size_bytes)} unpacked in {seconds:.1f} s, made by launch {packed.launch}")
        return packed.size_bytes
    through_faults(FETCH_WITHIN_S)(_fetch, node)
    return None


def _unpack(node: Node, key: str, packed: setup_cache.PackedSetup) -> None:
    archive = node.assignment.folder / "setup-fetched.tar"
    try:
        setup_cache.fetch(node.store, key, packed, archive)
        made_in = diff_archive.unpack(archive, node.assignment.folder, FOLDERS).made_in
    finally:
        archive.unlink(missing_ok=True)
    environment.relocate(node.assignment.folder, made_in)


# -- by the command --------------------------------------------------------------------------------------------------


def _run_and_pack(node: Node, key: str, *, watched: bool) -> int:
    """
    Run the command. Return the size of the packed set-up that is on its way into the store; 0 if there is none.

    `watched`: what the command leaves elsewhere on this machine will not be on the next one.
    """
    side_effects = _surroundings(node, watched=watched)
    before = diff_archive.survey(node.assignment.folder, FOLDERS)
    began_s = time.monotonic()
    _run(node)
    took_s = time.monotonic() - began_s
    changed = diff_archive.between(node.assignment.folder, before, diff_archive.survey(node.assignment.folder, FOLDERS))
    why_not = _why_not_packed(node, changed, side_effects)
    if why_not:
        node.note(f"setup took {took_s:.1f} s, and runs on each instance: {why_not}")
        return 0
    archive = node.assignment.folder / "setup.tar"
    diff_archive.pack(changed, archive)
    size_bytes = archive.stat().st_size
    node.note(f"setup took {took_s:.1f} s; {_megabytes(size_bytes)} are packed for the next instance")
    threading.Thread(target=_store, args=(node, key, archive), name="setup-cache", daemon=True).start()
    return size_bytes


def _surroundings(node: Node, *, watched: bool) -> SideEffects | ContainerEffects | None:
    if node.container is not None:
        return ContainerEffects(node.container)
    return SideEffects(Path.home()) if watched else None


def _why_not_packed(node: Node, changed: diff_archive.Diff, side_effects: SideEffects | ContainerEffects | None) -> str:
    if not changed:
        return "it has changed nothing in its environment and its work folder"
    if left := groups.carrying(node.assignment.instance_id):
        return f"it has left processes behind ({', '.join(map(str, left))})"
    if elsewhere := side_effects.since() if side_effects is not None else []:
        more = f" and {len(elsewhere) - 3} more" if len(elsewhere) > 3 else ""
        return f"it has changed what cannot be packed: {', '.join(elsewhere[:3])}{more}"
    size_bytes = sum(path.lstat().st_size for path in map(node.assignment.folder.joinpath, changed.written))
    return f"{_megabytes(size_bytes)} are too much to pack" if size_bytes > PACKED_MAX_BYTES else ""


def _store(node: Node, key: str, archive: Path) -> None:
    """Store the packed set-up during the training. If the instance ends first, the next one has to set up again."""
    try:
        stored = setup_cache.upload(node.store, key, node.assignment.launch, archive)
    except StoreError as error:
        node.note(f"the setup cache could not be stored, so the next instance runs setup again: {error.message}")
    else:
        node.note("the setup cache is stored" if stored else "another instance has stored the same setup cache")
    archive.unlink(missing_ok=True)


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"


def _run(node: Node) -> None:
    """Run the set-up. PyTorch comes first: the user's command may build on it."""
    if _lacks_torch(node) and (failure := _failure_of(node, environment.torch_command())):
        raise NotInstalled(f"the installation of PyTorch {failure}")
    if node.spec.setup is not None and (failure := _failure_of(node, node.spec.setup)):
        raise SetupFailed(f"setup {failure}", hint="correct setup, then launch again")


def _failure_of(node: Node, command: str) -> str:
    """Return how a command has failed; "" if it ended well."""
    before = node.console.size_bytes()
    output = node.console.open()
    try:
        process = subprocess.Popen(
            in_container(node, ["bash", "-c", command]),
            cwd=node.assignment.work,
            env=environment_of(node),
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
    watchdog = threading.Timer(SETUP_MAX_S, groups.kill_group, (process.pid,))
    watchdog.daemon = True
    watchdog.start()
    exit_code = process.wait()
    watchdog.cancel()
    if exit_code == 0:
        return ""
    reason = reason_in(node.console.tail(OUTPUT_BYTES, since=before)) or "it printed nothing"
    return f"ended with exit code {exit_code}: {reason}"
