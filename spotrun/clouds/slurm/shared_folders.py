"""Whether a folder may be seen by the nodes of a cluster, as far as this machine's mounts tell."""

from __future__ import annotations

from pathlib import Path

MOUNTS = Path("/proc/self/mounts")
OF_ONE_MACHINE = frozenset(
    {"bcachefs", "btrfs", "devtmpfs", "ext2", "ext3", "ext4", "overlay", "ramfs", "tmpfs", "vfat", "xfs", "zfs"}
)
"""What lies on a disk, or in the memory, of the machine that has it mounted. It may lend it to others."""


def file_system_of(path: Path, mounts: Path = MOUNTS) -> str:
    """The kind of the file system that a path is on, whether or not it exists: `nfs4`, `lustre`, `ext4`."""
    wanted = path.expanduser().absolute()
    found = max(
        ((folder, kind) for folder, kind in _mounted(mounts) if wanted.is_relative_to(folder)),
        key=lambda each: len(each[0].parts),
        default=(Path("/"), "an unknown file system"),
    )
    return found[1]


def is_of_one_machine(kind: str) -> bool:
    return kind in OF_ONE_MACHINE


def _mounted(mounts: Path) -> list[tuple[Path, str]]:
    """Later ones hide earlier ones of the same place: proc(5). A space in a name is written as \\040."""
    rows = [line.split() for line in mounts.read_text(errors="replace").splitlines()]
    return [(Path(row[1].replace("\\040", " ")), row[2]) for row in reversed(rows) if len(row) > 2]
