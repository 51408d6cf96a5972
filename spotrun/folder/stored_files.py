"""
The files that a script wrote, stored by content next to the checkpoints, and the lists of these files.

    outputs/ATTEMPT/list-BLAKE3.json    the files at one moment: the path and the pieces of each, in order
    outputs/ATTEMPT/BLAKE3              a piece, of at most 16 MiB, under the digest of its bytes

Files count as stored only once an `OutputsStored` entry in the ledger names their list and the list's digest. A list
may refer to pieces that an earlier attempt has uploaded.

Each attempt writes only into the folder with its own number. So if an agent still uploads or deletes pieces after its
attempt was replaced, it does not change the pieces of another attempt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from posixpath import dirname, join, normpath
from typing import Annotated, NamedTuple

import msgspec

from spotrun.folder.paths import is_path_inside, leads_inside
from spotrun.run.bounds import Count, Nanoseconds

FOLDER = "outputs/"
FORMAT = 1
PIECE_MAX_BYTES = 16 << 20
FILES_MAX = 10_000
STATE_FILES_MAX = 100_000
"""
Maximum files of a command's state. If the state has more files, nothing is stored, because a state is useless if any of
its files is missing.
"""
LINKS_IN_A_PATH_MAX = 40
"""Maximum links in a path, as on Linux: https://man7.org/linux/man-pages/man7/path_resolution.7.html"""
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


Mode = Annotated[int, msgspec.Meta(ge=0, le=0o7777)]
"""Permissions as in chmod(2)."""


Content = tuple[str, int]
"""The digest of some bytes, and how many bytes there are."""


class Piece(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A piece of a file. `of` is the number of the attempt that uploaded it."""

    of: Count
    blake3: str
    size_bytes: Annotated[int, msgspec.Meta(ge=1, le=PIECE_MAX_BYTES)]

    @property
    def key(self) -> str:
        return f"{FOLDER}{self.of}/{self.blake3}"

    @property
    def content(self) -> Content:
        return self.blake3, self.size_bytes


class OutputFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """
    A stored file. `path` is relative to the work folder. `attempt` is the newest attempt in whose work folder the file
    was seen. `mode` contains the file's permissions; it is set only for the files of a command's state.
    """

    path: str
    size_bytes: Count
    modified_ns: Nanoseconds
    attempt: Count
    pieces: tuple[Piece, ...] = ()
    executable: bool = False
    mode: Mode | None = None


class Folder(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    path: str
    mode: Mode


class Link(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """
    A link at `path` to `target`. `target` is relative to the link's folder, and is inside the work folder.

    `absolute` is True if the script made the link with an absolute path. When such a link is restored, its absolute
    path is computed again, because the work folder may be elsewhere on the new instance.
    """

    path: str
    target: str
    absolute: bool = False


class LeftOut(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str
    size_bytes: Count
    reason: str


class RankFiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The state files and links that the gang member of rank `rank` has written. The lead has rank 0."""

    rank: Count
    files: tuple[OutputFile, ...]
    links: tuple[Link, ...] = ()


class ListingOfRank(NamedTuple):
    """The files with which a gang member begins, and for each path the rank of the member that wrote it."""

    listing: Listing
    writers: Mapping[str, int]


class Listing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """
    A list of stored files. `left_out` are files that were not stored, each with the reason, perhaps not all of them.
    `removed` are files that came with the job and that the script has removed. Only lists for a checkpoint or for a
    command's state have `folders` and `links`. If a gang runs a command, `files` and `links` are the lead's, and
    `others` has what the other members have written, unless the lead has the same.
    """

    files: tuple[OutputFile, ...]
    left_out: tuple[LeftOut, ...] = ()
    removed: tuple[str, ...] = ()
    folders: tuple[Folder, ...] = ()
    links: tuple[Link, ...] = ()
    others: tuple[RankFiles, ...] = ()
    format: int = FORMAT

    @property
    def _by_rank(self) -> tuple[RankFiles, ...]:
        return (RankFiles(rank=0, files=self.files, links=self.links), *self.others)

    @property
    def files_of_all(self) -> tuple[OutputFile, ...]:
        """The files of all ranks. Files of different ranks may have the same path."""
        return tuple(file for each in self._by_rank for file in each.files)

    def keys(self) -> Mapping[str, int]:
        """Return the keys of the list's pieces, each with the piece's size."""
        return {piece.key: piece.size_bytes for file in self.files_of_all for piece in file.pieces}

    def of_rank(self, rank: int) -> ListingOfRank:
        """
        Return the files with which the member of rank `rank` begins. These are its own files and the files that only
        other members have written, because a program may expect all of them in one folder. If several others have
        written different files with the same path, the one of the lowest rank is used.
        """
        files: dict[str, OutputFile] = {}
        links: dict[str, Link] = {}
        writers: dict[str, int] = {}
        for each in sorted(self._by_rank, key=lambda each: (each.rank != rank, each.rank)):
            files |= {file.path: file for file in each.files if file.path not in writers}
            links |= {link.path: link for link in each.links if link.path not in writers}
            writers |= {path: each.rank for path in (*files, *links) if path not in writers}
        flat = msgspec.structs.replace(self, files=tuple(files.values()), links=tuple(links.values()), others=())
        return ListingOfRank(flat, writers)

    @property
    def with_copies(self) -> tuple[OutputFile, ...]:
        """
        The files of the list. Each link to a file is replaced by a copy of the file, because users who fetch files want
        copies instead of links. If several members of a gang have written different files with the same path, the path
        of each file except the first ends in the rank of its member: model.pt, model.pt.rank1.
        """
        files: dict[str, OutputFile] = {}
        for each in self._by_rank:
            for file in each.files:
                path = file.path
                while path in files:
                    path += f".rank{each.rank}"
                files[path] = msgspec.structs.replace(file, path=path)
        whole = self.of_rank(0).listing.links
        links = {link.path: normpath(join(dirname(link.path), link.target)) for link in whole}
        copies = {path: files[place] for path in links if (place := _end_of(path, links)) in files}
        copied = (msgspec.structs.replace(file, path=path) for path, file in sorted(copies.items()))
        return (*files.values(), *copied)

    def flaw(self) -> str | None:
        """
        Return the reason why this list must not be used to fetch files; None if the list is well formed. A list can be
        malicious, because training code can write one.
        """
        if self.format != FORMAT:
            return f"its list has format {self.format}; this spotrun reads {FORMAT}"
        if len({each.rank for each in self._by_rank}) <= len(self.others):
            return "its list has a rank twice"
        for each in self._by_rank:
            if (flaw := _flaw_of(each, self.folders, self.removed)) is not None:
                return flaw
        return None


def _flaw_of(part: RankFiles, folders: Iterable[Folder], removed: Iterable[str]) -> str | None:
    named = [file.path for file in part.files] + [link.path for link in part.links]
    named += [folder.path for folder in folders]
    if len(named) > 2 * STATE_FILES_MAX or len(set(named)) < len(named):
        return "its list has too many files, or has the same file twice"
    for path in (*named, *removed):
        if not is_path_inside(path):
            return f"its list names {path[:200]!r}, which is not a file inside a folder"
    for link in part.links:
        if not leads_inside(link.path, link.target):
            return f"its list names {link.path[:200]!r}, a link that leads out of the folder"
    for file in part.files:
        if not all(_DIGEST.fullmatch(piece.blake3) for piece in file.pieces):
            return "its list names objects outside of its folder"
        if sum(piece.size_bytes for piece in file.pieces) != file.size_bytes:
            return f"the pieces of {file.path[:200]!r} do not add up to its size, {file.size_bytes} B"
    return None


def _end_of(path: str, links: Mapping[str, str]) -> str:
    """Return the path that results if all links in `path` are followed; "" if the links form a loop."""
    for _ in range(LINKS_IN_A_PATH_MAX):
        parts = path.split("/")
        heads = ("/".join(parts[:count]) for count in range(1, len(parts) + 1))
        if (head := next((head for head in heads if head in links), None)) is None:
            return path
        path = normpath(links[head] + path.removeprefix(head))
    return ""


def list_key(attempt: int, digest: str) -> str:
    return f"{FOLDER}{attempt}/list-{digest}.json"


class Outcome(StrEnum):
    """The result of fetching one file."""

    FETCHED = "fetched"
    SAME = "same"
    """An equal file already existed at its path."""
    CHANGED_HERE = "changed_here"
    """
    A different file is at its path on the user's machine, and `fetch` did not write that file. So `fetch` does not
    overwrite it.
    """
    LEFT = "left"
    """
    The file was not fetched and stays in the store. A tool on the user's machine might read a file with this name, and
    obey it. This is not an error: scripts often write such files.
    """
    REFUSED = "refused"
    """
    The file was not fetched, because fetching it would be dangerous. Either the file has a name, such as `.git`, that
    no agent would ever store, or the user's folder at this path belongs to a tool, such as git.
    """
    FAILED = "failed"


class Fetched(NamedTuple):
    """
    A file, and the result of fetching it. `problem` is the reason why it was not fetched. `damaged` is True if the file
    in the store is damaged. If the user's folder already had a longer file at the same path, that file was renamed, and
    `kept_as` is its new name.
    """

    file: OutputFile
    outcome: Outcome
    problem: str = ""
    damaged: bool = False
    kept_as: str = ""
