"""
Checks the paths of files in a folder: whether a path stays inside the folder, and whether a list of files may contain
the path.
"""

from __future__ import annotations

_NAME_MAX_BYTES, _PATH_MAX_BYTES = 255, 4000
NEVER = frozenset(
    {
        *(".git", ".venv", "venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", "node_modules"),
        ".spotrun.schema.json",
    }
)
"""
Names of files and folders that are never stored, whatever the user's rules say: caches, environments, version control,
and the schema for editors that `spotrun init` writes.
"""


def is_path_inside(path: str) -> bool:
    """Return True if the path, joined to any folder, always names a file below that folder."""
    parts = path.split("/")
    plain = "\0" not in path and not {"", ".", ".."} & set(parts)
    sizes = [len(part.encode(errors="surrogatepass")) for part in parts]
    return plain and max(sizes) <= _NAME_MAX_BYTES and sum(sizes) + len(sizes) <= _PATH_MAX_BYTES


def leads_inside(path: str, target: str) -> bool:
    """Return True if a link at `path` to `target` stays inside the folder, wherever the folder is."""
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
    """Return True if a list of files may contain this path."""
    return is_path_inside(path) and is_text(path)


def is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
