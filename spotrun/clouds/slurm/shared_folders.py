"""
Guesses whether the nodes of a cluster can access a given folder of this machine. The guess is based on the file systems
mounted here.
"""

from __future__ import annotations

from pathlib import Path

MOUNTS = Path("/proc/self/mounts")
OF_ONE_MACHINE = frozenset(
    {"bcachefs", "btrfs", "devtmpfs", "ext2", "ext3", "ext4", "overlay", "ramfs", "tmpfs", "vfat", "xfs", "zfs"}
)
"""
File systems on a disk or in the memory of one machine. That machine may nevertheless export them to other machines.
"""


def file_system_of(path: Path, mounts: Path = MOUNTS) -> str:
    """Return the kind of file system at `path`, such as `nfs4`, `lustre` or `ext4`. `path` need not exist."""
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
    """
    Return the folder and the file system type of each mount. The newest mount comes first, because it hides earlier
    mounts on the same folder. The file `mounts` has the format of /proc/mounts (proc(5)), which writes a space in a
    name as \\040.
    """
    rows = [line.split() for line in mounts.read_text(errors="replace").splitlines()]
    return [(Path(row[1].replace("\\040", " ")), row[2]) for row in reversed(rows) if len(row) > 2]
