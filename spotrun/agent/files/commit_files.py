"""
Stores the files of a checkpoint: what the trainer froze at its boundary is stored before the ledger's entry names it.

What has not changed since the last boundary that became a commit is neither read nor sent. A file that was written to
before it was read makes its snapshot torn: no commit comes of it, and the trainer copies that file at the next one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

from spotrun.agent.files.frozen import Frozen, TornFile
from spotrun.agent.files.outputs import SENDERS, SENDERS_AT_THE_END, opened, output_file
from spotrun.agent.files.pieces import LEFT_OUT_NAMED_MAX, RESTLESS, SECRET_NAME, TOO_MANY, Pieces, Refused, Sending
from spotrun.agent.node import Node
from spotrun.agent.snapshots import Snapshot
from spotrun.agent.state_commit import Known, StateStoring
from spotrun.checkpoint.upload import Abandoned, UploadControl
from spotrun.folder.frozen_files import FrozenFile, Held
from spotrun.folder.stored_files import FILES_MAX, PIECE_MAX_BYTES, Folder, LeftOut, Link, Listing, OutputFile
from spotrun.folder.work_files import LinkTo, Seen, Stamp
from spotrun.run.events import CommittedFiles

TRIES_AT_THE_END = 5
"""Maximum reads of a file at the end. A training that does no step any more hardly writes any more."""


class FilesTorn(Exception):
    """The snapshot must not become a commit: these paths need copies, made at another boundary."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        super().__init__(", ".join(paths[:5]))
        self.paths = paths


class Stored(NamedTuple):
    """The files of a snapshot that are all in the store; `name` is not in the ledger yet."""

    name: CommittedFiles
    listing: Listing
    known: dict[str, Known]


class CommitFiles:
    """Stores the files of snapshots, in the thread that saves. `begin` comes before each trainer's first snapshot."""

    def __init__(self, node: Node, pieces: Pieces) -> None:
        self._node = node
        self._pieces = pieces
        self._attempt = -1
        self.known: dict[str, Known] = {}

    def begin(self, attempt: int, known: dict[str, Known]) -> None:
        """Note that the folder of the new trainer has the `known` files, and no others."""
        self._attempt, self.known = attempt, known

    @contextlib.contextmanager
    def stored(self, snapshot: Snapshot, control: UploadControl) -> Iterator[Stored | None]:
        """
        Yield the files of the snapshot, which are all in the store; None if none belong to it. The ledger has to name
        them inside of this block: what it does not name may be deleted from the block's end on.

        Raises:
            FilesTorn, StateRefused, Abandoned
            StoreError: not all of it could be stored.
        """
        if snapshot.frozen is None and snapshot.state is None:
            yield None
            return

        def go_on() -> None:
            if control.cancelled:
                raise Abandoned

        with self._pieces.sending(go_on) as sending:
            known, listing, left_out = self._sent(sending, snapshot, hurried=control.hurried)
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
            yield Stored(name, listing, known)

    def _sent(
        self, sending: Sending, snapshot: Snapshot, *, hurried: bool
    ) -> tuple[dict[str, Known], Listing, list[LeftOut]]:
        if snapshot.state is not None:
            state = StateStoring(sending, self._pieces, self._attempt, snapshot.state)
            known = state.all_files(self.known)
            return (known, *state.listing(known))
        assert snapshot.frozen is not None
        storing = _Storing(self._node, sending, self._attempt, snapshot, self.known)
        known = storing.all_files(SENDERS_AT_THE_END if snapshot.taken.final or hurried else SENDERS)
        return (known, *self._listing(snapshot.frozen, known))

    def committed(self, stored: Stored) -> None:
        """Note that the ledger names these files."""
        self.known = stored.known
        self._pieces.named(stored.name.key, stored.listing)

    def sweep(self) -> None:
        self._pieces.sweep()

    def _listing(self, frozen: Frozen, known: Mapping[str, Known]) -> tuple[Listing, list[LeftOut]]:
        """Return the list, which names the first of the files that were left out, and next to it all of those."""
        entries = [each.entry for _, each in sorted(known.items())]
        links, unkept = self._links(frozen.folder.links)
        refused = [LeftOut(path=path, size_bytes=0, reason=why) for path, why in sorted(frozen.folder.refused.items())]
        unstored = [*(each for each in entries if isinstance(each, LeftOut)), *refused, *unkept]
        left_out = [self._pieces.left_out(each.path, each.size_bytes, each.reason) for each in unstored]
        files = tuple(each for each in entries if isinstance(each, OutputFile))
        gone = tuple(path for path in frozen.folder.gone if not self._pieces.names_secret(path))
        shown = tuple(left_out[:LEFT_OUT_NAMED_MAX])
        folders = self._folders(frozen.folder.folders)
        return Listing(files=files, left_out=shown, removed=gone, folders=folders, links=links), left_out

    def _folders(self, found: Mapping[str, int]) -> tuple[Folder, ...]:
        """
        Return the folders to list. Files make their folders anyway, so a report of missing files need not name the
        others.
        """
        named = (path for path in sorted(found) if not self._pieces.names_secret(path))
        return tuple(Folder(path, found[path]) for path in islice(named, FILES_MAX))

    def _links(self, found: Mapping[str, LinkTo]) -> tuple[tuple[Link, ...], list[LeftOut]]:
        """Return the links that a list may name, and the others as left out."""
        secret = {path for path, to in found.items() if any(map(self._pieces.names_secret, (path, to.target)))}
        kept = sorted(path for path in found if path not in secret)
        left_out = [LeftOut(path=path, size_bytes=0, reason=SECRET_NAME) for path in sorted(secret)]
        left_out += [LeftOut(path=path, size_bytes=0, reason=TOO_MANY) for path in kept[FILES_MAX:]]
        return tuple(Link(path, *found[path]) for path in kept[:FILES_MAX]), left_out


class _Storing:
    """The files of one snapshot."""

    def __init__(
        self, node: Node, sending: Sending, attempt: int, snapshot: Snapshot, known: Mapping[str, Known]
    ) -> None:
        assert snapshot.frozen is not None
        self._node = node
        self._sending = sending
        self._attempt = attempt
        self._frozen = snapshot.frozen
        self._is_final = snapshot.taken.final
        self._known = known
        self._max_gb = node.spec.checkpoint.files.max_gb

    def all_files(self, senders: int) -> dict[str, Known]:
        """
        Store the files, and return what is known of each.

        Raises:
            FilesTorn: a file was torn; all others were read, so that the next snapshot tears at no second one.
        """
        done: dict[str, Known] = {}
        torn: list[str] = []
        with ThreadPoolExecutor(senders, "files") as pool:
            coming = {file.path: pool.submit(act, file) for file, act in self._planned()}
            for path, future in coming.items():
                try:
                    done[path] = future.result()
                except TornFile:
                    torn.append(path)
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
        if torn:
            raise FilesTorn(tuple(torn))
        return done

    def _planned(self) -> list[tuple[FrozenFile, Callable[[FrozenFile], Known]]]:
        """Return each file with the function that handles it: the small ones come first, until a limit is reached."""
        planned: list[tuple[FrozenFile, Callable[[FrozenFile], Known]]] = []
        left_bytes = self._max_gb * 1e9
        for count, file in enumerate(self._frozen.folder.files):
            left_bytes -= file.stamp.size_bytes
            if count >= FILES_MAX:
                planned.append((file, lambda file: _left_out(file, TOO_MANY)))
            elif left_bytes < 0:
                planned.append((file, self._too_large))
            elif self._node.console.redaction.is_in(file.path):
                planned.append((file, lambda file: _left_out(file, SECRET_NAME)))
            else:
                planned.append((file, self._one))
        return planned

    def _too_large(self, file: FrozenFile) -> Known:
        return _left_out(file, f"checkpoint.files.max_gb is {self._max_gb:g}, and the smaller files go first")

    def _one(self, file: FrozenFile) -> Known:
        """
        Raises:
            TornFile
        """
        seen = Seen(file.place, file.stamp)
        if file.held is Held.KNOWN:
            known = self._known.get(file.path)
            if known is not None and known.seen == seen:
                return known
            if not self._is_final:
                raise TornFile
            return self._at_rest(file)
        try:
            return Known(seen, self._sent(file))
        except TornFile:
            if not self._is_final:
                raise
            return self._at_rest(file)

    def _at_rest(self, file: FrozenFile) -> Known:
        """Read the file at its own place: no other boundary follows, and training stands still."""
        for _ in range(TRIES_AT_THE_END):
            try:
                with opened(self._node.assignment.work, file.place) as fd:
                    stamp = Stamp.of(os.fstat(fd))
                return Known(Seen(file.place, stamp), self._sent(FrozenFile(file.path, file.place, stamp, Held.PLACE)))
            except TornFile:
                continue
            except OSError:
                break
        return _left_out(file, RESTLESS)

    def _sent(self, file: FrozenFile) -> OutputFile | LeftOut:
        try:
            with self._frozen.open(file, self._open_at) as whole:
                pieces = self._sending.pieces(whole.pieces(PIECE_MAX_BYTES))
        except Refused as refused:
            return _left_out(file, str(refused)).entry
        except OSError as error:
            if file.held is Held.PLACE and not self._is_final:
                raise TornFile from error  # it was removed since, and no process held it open
            return _left_out(file, f"it cannot be read: {error.strerror}").entry
        return output_file(file.path, file.stamp, self._attempt, pieces)

    def _open_at(self, place: str) -> int:
        with opened(self._node.assignment.work, place) as fd:
            return os.dup(fd)


def _left_out(file: FrozenFile, reason: str) -> Known:
    left = LeftOut(path=file.path, size_bytes=file.stamp.size_bytes, reason=reason)
    return Known(Seen(file.place, file.stamp), left)
