"""Recorded markets as SkyPilot publishes them: one zone a file, 1 where it has spot, a figure for each ten minutes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path


def write_record(path: Path, available: Sequence[int]) -> Path:
    path.write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": list(available)}))
    return path


def write_records(folder: Path) -> Path:
    """A zone that has spot for two hours in three, one that never has any, and a file that is no record."""
    folder.mkdir()
    write_record(folder / "comes-and-goes.json", ([1] * 12 + [0] * 6) * 8)
    write_record(folder / "never.json", [0] * 18 * 8)
    (folder / "LICENSE.txt").write_text("none of these are records")
    return folder
