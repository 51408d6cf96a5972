"""
Stores the files of a checkpoint. All files are in the store before an entry in the ledger names them.

Files that have not changed since the last commit are neither read nor sent.

The agent reads the changed files while the training goes on. If the training changes a file again before the agent has
read it, the snapshot is torn: it never becomes a commit. At the next step boundary, the trainer then makes a copy of
that file, which the agent can read undisturbed. If a file of a training cannot be stored at all, the checkpoint is made
without it. In contrast, a command's state is stored completely or not at all.
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from msgspec.structs import replace

from spotrun.agent.agent_context import AgentContext
from spotrun.agent.files.content_store import (
    LEFT_OUT_NAMED_MAX,
    RESTLESS,
    SECRET_NAME,
    TOO_MANY,
    ContentStore,
    PieceUpload,
    Refused,
    over_limits,
)
from spotrun.agent.files.outputs import SENDERS, SENDERS_AT_THE_END, output_file
from spotrun.agent.snapshots.frozen import Frozen, TornFile
from spotrun.checkpoint.upload import Abandoned, UploadControl
from spotrun.folder.frozen_files import ContentSource, FrozenFile
from spotrun.folder.status_objects import StateStored
from spotrun.folder.stored_files import (
    FILES_MAX,
    PIECE_MAX_BYTES,
    STATE_FILES_MAX,
    Folder,
    LeftOut,
    Link,
    Listing,
    OutputFile,
    RankFiles,
)
from spotrun.folder.work_files import FileVersion, LinkTo, Stamp
from spotrun.run.events import CommittedFiles

StateVersions = Mapping[str, FileVersion | LinkTo]
"""State files and links, each in a certain version, keyed by path."""
NOTHING: StateVersions = {}
TRIES_AT_THE_END = 5
"""
How often the agent tries to read a file for a final snapshot, if the file changes each time while it is read. A few
tries are enough, because a training that makes no more steps hardly ever writes files.
"""


class FilesTorn(Exception):
    """
    The files at `paths` were changed before they were read, so the snapshot must not become a commit. The trainer has
    to copy these files at a later step boundary.
    """

    def __init__(self, paths: tuple[str, ...]) -> None:
        super().__init__(", ".join(paths[:5]))
        self.paths = paths


class StateRefused(Exception):
    """
    The refusal to store a command's state, because one of its files cannot be stored. The other files would be useless
    without it.
    """


class StoredFile(NamedTuple):
    """
    A file of a commit. `entry` describes the file in the commit's list. `version` is the file's version in the work
    folder: once the work folder has another version, the file has changed.
    """

    version: FileVersion
    entry: OutputFile | LeftOut


class StoredFiles(NamedTuple):
    """
    The files of a snapshot, all of them in the store. `name` identifies the list of these files. The caller still has
    to write it to the ledger.
    """

    name: CommittedFiles
    listing: Listing
    known: dict[str, StoredFile]


class StateOfMember(NamedTuple):
    """The state files that the gang member of rank `rank` has stored, because the lead's list lacks them."""

    rank: int
    listing: Listing
    stored: StateStored


class CommitFiles:
    """
    Stores the files of snapshots, for the thread that saves snapshots. Call `begin` before each trainer's first
    snapshot.
    """

    def __init__(self, context: AgentContext, pieces: ContentStore) -> None:
        self._context = context
        self._pieces = pieces
        self._attempt = -1
        self.known: dict[str, StoredFile] = {}
        self._of_others: StateVersions = {}
        self.is_joined = False
        """True if the newest checkpoint has state files of several members of a gang."""

    def begin(self, attempt: int, known: dict[str, StoredFile], of_others: StateVersions = NOTHING) -> None:
        """
        Prepare for a new trainer. When it starts, the work folder contains the `known` files, and no others. Those in
        `of_others` were written by other members of the gang. As long as they are unchanged, they do not belong to this
        member's state.
        """
        self._attempt, self.known, self._of_others = attempt, known, of_others
        self.is_joined = bool(of_others)

    @property
    def need_no_copy(self) -> StateVersions:
        """The versions of files that need not be read for the next checkpoint."""
        return {**self._of_others, **{path: known.version for path, known in self.known.items()}}

    @contextlib.contextmanager
    def stored(
        self, frozen: Frozen | None, control: UploadControl, *, final: bool = False
    ) -> Iterator[StoredFiles | None]:
        """
        Store the files of a snapshot, and yield the stored files, or None if the snapshot has no files. Within the
        `with` block, the caller has to write the ledger's entry that names the files. After the block, other threads
        are free to delete any stored file that the ledger does not name.

        Raises:
            FilesTorn: the training changed some files before they were read.
            StateRefused: a file of a command's state cannot be stored.
            Abandoned: the upload was cancelled, or a command's state was restored after the copy.
            StoreError: not all files could be stored.
        """
        if frozen is None:
            yield None
            return

        def go_on() -> None:
            if control.cancelled:
                raise Abandoned

        with self._pieces.sending(go_on) as sending:
            storing = _Storing(
                self._context, self._pieces, sending, self._attempt, frozen, self.known, self._of_others, final=final
            )
            known = storing.all_files(hurried=control.hurried)
            listing, left_out = storing.listing(known)
            self._pieces.tell(left_out)
            stored = self._pieces.put_list(sending, listing)
            name = CommittedFiles(
                key=stored.key,
                blake3=stored.blake3,
                files=len(listing.files) + len(listing.links),
                size_bytes=sum(file.size_bytes for file in listing.files),
                objects=len(stored.sent),
                sent_bytes=sum(stored.sent.values()),
                stored_bytes=stored.stored_bytes,
                left_out=len(left_out),
            )
            yield StoredFiles(name, listing, known)

    def joined(self, stored: StoredFiles, others: Sequence[StateOfMember]) -> StoredFiles:
        """
        Return `stored` together with the state files of other members. Call this within the `with` block of `stored`.

        Raises:
            StoreError: the list of all files could not be stored.
        """
        if not others:
            return stored
        parts = tuple(RankFiles(rank=rank, files=each.files, links=each.links) for rank, each, _ in others)
        listing = replace(stored.listing, others=parts)
        with self._pieces.sending(lambda: None) as sending:
            put = self._pieces.put_list(sending, listing)
        name, files = stored.name, [file for part in parts for file in part.files]
        name = replace(
            name,
            key=put.key,
            blake3=put.blake3,
            files=name.files + sum(len(part.files) + len(part.links) for part in parts),
            size_bytes=name.size_bytes + sum(file.size_bytes for file in files),
            objects=name.objects + len(put.sent) + sum(each.stored.objects for each in others),
            sent_bytes=name.sent_bytes + sum(put.sent.values()) + sum(each.stored.sent_bytes for each in others),
            stored_bytes=put.stored_bytes,
        )
        return StoredFiles(name, listing, stored.known)

    def committed(self, stored: StoredFiles) -> None:
        """Record that these files are in the ledger."""
        self.known, self.is_joined = stored.known, bool(stored.listing.others)
        self._pieces.named(stored.name.key, stored.listing)

    def sweep(self) -> None:
        self._pieces.sweep()


class _Storing:
    """Stores the files of one snapshot, and makes their list."""

    def __init__(
        self,
        context: AgentContext,
        pieces: ContentStore,
        sending: PieceUpload,
        attempt: int,
        frozen: Frozen,
        known: Mapping[str, StoredFile],
        of_others: StateVersions,
        *,
        final: bool,
    ) -> None:
        self._of_others = of_others
        self._work = context.assignment.work
        self._max_gb = math.inf if frozen.is_whole else context.spec.checkpoint.files.max_gb
        self._pieces = pieces
        self._sending = sending
        self._attempt = attempt
        self._frozen = frozen
        self._is_whole = frozen.is_whole
        self._is_final = final
        self._known = known
        self._files_max = STATE_FILES_MAX if self._is_whole else FILES_MAX

    def all_files(self, *, hurried: bool) -> dict[str, StoredFile]:
        """
        Store the files that have changed. Return all files of the snapshot, changed or not, keyed by path.

        Raises:
            FilesTorn: the training changed some files before they were read. The next snapshot has to copy only these
                files, because all others were read.
            StateRefused: a file of a command's state cannot be stored.
            Abandoned: the copy of a command's state cannot be used, because another state was restored after the copy.
        """
        done: dict[str, StoredFile] = {}
        torn: list[str] = []
        # A command's state usually consists of many small files, so most of the time is spent waiting for the store.
        # More threads shorten the wait.
        senders = SENDERS_AT_THE_END if self._is_whole or self._is_final or hurried else SENDERS
        with ThreadPoolExecutor(senders, "files") as pool:
            coming = {file.path: pool.submit(self._one, file) for file in self._changed(done)}
            for path, future in coming.items():
                try:
                    done[path] = future.result()
                except TornFile:
                    torn.append(path)
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
        if torn:
            raise Abandoned if self._is_whole else FilesTorn(tuple(torn))
        return done

    def _changed(self, done: dict[str, StoredFile]) -> list[FrozenFile]:
        """
        Return the files to read, smallest first: those that have changed and are within the checkpoint's limits on
        number and size. Add all others to `done`; those that exceed the limits are recorded there as left out. Files of
        other members are in neither.
        """
        files, changed = [file for file in self._frozen.folder.files if self._is_own(file.path, file.version)], []
        sizes = (file.stamp.size_bytes for file in files)
        limits = over_limits(sizes, self._files_max, self._max_gb, "checkpoint.files.max_gb")
        for file, limit in zip(files, limits, strict=True):
            known = self._known.get(file.path)
            if limit is not None:
                done[file.path] = self._without(file, limit)
            elif file.source is ContentSource.KNOWN and known is not None and known.version == file.version:
                done[file.path] = known
            else:
                changed.append(file)
        return changed

    def _is_own(self, path: str, seen: FileVersion | LinkTo) -> bool:
        return self._of_others.get(path) != seen

    def _one(self, file: FrozenFile) -> StoredFile:
        """
        Store one file, or record that it is left out.

        Raises:
            TornFile: the file was changed before it was read.
        """
        if self._pieces.names_secret(file.path):
            return self._without(file, SECRET_NAME)
        try:
            return self._sent(file)
        except TornFile:
            if self._is_whole or not self._is_final:
                raise
            return self._at_rest(file)

    def _at_rest(self, file: FrozenFile) -> StoredFile:
        """
        Store the file as it is now in the work folder, although it has changed since the snapshot. This is correct for
        a final snapshot: training has stopped, so the file still belongs to the training's last step.
        """
        for _ in range(TRIES_AT_THE_END):
            try:
                stamp = Stamp.of(os.stat(self._work / file.place, follow_symlinks=False))
                return self._sent(FrozenFile(file.path, file.place, stamp, ContentSource.PLACE))
            except TornFile:
                continue
            except OSError:
                break
        return self._without(file, RESTLESS)

    def _sent(self, file: FrozenFile) -> StoredFile:
        try:
            with self._frozen.open(file, self._work) as whole:
                pieces = self._sending.pieces(whole.pieces(PIECE_MAX_BYTES))
        except Refused as refused:
            return self._without(file, str(refused))
        except OSError as error:
            if file.source is ContentSource.PLACE and not self._is_final:
                raise TornFile from error  # the file was removed, and no process keeps it open
            return self._without(file, f"it cannot be read: {error.strerror}")
        mode = stat.S_IMODE(file.stamp.mode) if self._is_whole else None
        return StoredFile(file.version, output_file(file.path, file.stamp, self._attempt, pieces, mode))

    def _without(self, file: FrozenFile, reason: str) -> StoredFile:
        return StoredFile(file.version, self._left_out(file.path, reason, file.stamp.size_bytes))

    def _left_out(self, path: str, reason: str, size_bytes: int = 0) -> LeftOut:
        """
        Return the record of a file that is left out of the checkpoint.

        Raises:
            StateRefused: the file belongs to a command's state, which is stored completely or not at all.
        """
        left_out = self._pieces.left_out(path, size_bytes, reason)
        if self._is_whole:
            raise StateRefused(f"{left_out.path} cannot be stored: {reason}")
        return left_out

    def listing(self, known: Mapping[str, StoredFile]) -> tuple[Listing, list[LeftOut]]:
        """
        Return the list of the snapshot's files, and the records of all files that were left out. The list also names
        the first LEFT_OUT_NAMED_MAX of these. Pipes and other files that are not regular are always left out; a
        command's state can be stored without them.
        """
        folder, names_secret = self._frozen.folder, self._pieces.names_secret
        entries = [each.entry for _, each in sorted(known.items())]
        refused = [self._pieces.left_out(path, 0, why) for path, why in sorted(folder.refused.items())]
        links, unkept = self._links()
        left_out = [*(each for each in entries if isinstance(each, LeftOut)), *refused, *unkept]
        listing = Listing(
            files=tuple(each for each in entries if isinstance(each, OutputFile)),
            left_out=tuple(left_out[:LEFT_OUT_NAMED_MAX]),
            removed=tuple(path for path in folder.gone if not names_secret(path)),
            folders=self._folders(),
            links=links,
        )
        return listing, left_out

    def _folders(self) -> tuple[Folder, ...]:
        """
        Return the folders to list, at most `_files_max`. The others are not reported as left out, because a restore
        creates the folders of all files anyway.
        """
        folders = self._frozen.folder.folders
        secret = {path for path in folders if self._pieces.names_secret(path)}
        for path in secret:
            self._left_out(path, SECRET_NAME)
        named = sorted(folders.keys() - secret)
        return tuple(Folder(path, folders[path]) for path in named[: self._files_max])

    def _links(self) -> tuple[tuple[Link, ...], list[LeftOut]]:
        """Return the links to put into the list, and the records of the links that are left out."""
        kept: list[Link] = []
        left_out: list[LeftOut] = []
        for path, to in sorted(self._frozen.folder.links.items()):
            if not self._is_own(path, to):
                continue
            if any(map(self._pieces.names_secret, (path, to.target))):
                left_out.append(self._left_out(path, SECRET_NAME))
            elif len(kept) == self._files_max:
                left_out.append(self._left_out(path, TOO_MANY))
            else:
                kept.append(Link(path, *to))
        return tuple(kept), left_out
