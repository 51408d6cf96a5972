"""Checks paths of files in a folder: whether they are inside the folder, and whether they may belong to results."""

from __future__ import annotations

_NAME_MAX_BYTES, _PATH_MAX_BYTES = 255, 4000
NEVER = frozenset(
    {
        *(".git", ".venv", "venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", "node_modules"),
        ".spotrun.schema.json",
    }
)
"""Names that no rule includes: caches, environments, version control, and `spotrun init`'s schema for editors."""


def is_path_inside(path: str) -> bool:
    """Return True if the path always names a file below the folder that it is joined to."""
    parts = path.split("/")
    plain = "\0" not in path and not {"", ".", ".."} & set(parts)
    sizes = [len(part.encode(errors="surrogatepass")) for part in parts]
    return plain and max(sizes) <= _NAME_MAX_BYTES and sum(sizes) + len(sizes) <= _PATH_MAX_BYTES


def leads_inside(path: str, target: str) -> bool:
    """Return True if a link at `path` to `target` stays inside the folder, at any place of the folder."""
    depth = path.count("/")
    parts = target.split("/")
    size_bytes = len(target.encode(errors="surrogatepass"))
    if not target or target.startswith("/") or "\0" in target or size_bytes > _PATH_MAX_BYTES:
        return False
    for part in parts:
        depth += {"..": -1, "": 0, ".": 0}.get(part, 1)
        if depth < 0:
            return False
    return True


def is_nameable(path: str) -> bool:
    """Return True if the path can be written in a list of files."""
    return is_path_inside(path) and is_text(path)


def is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
