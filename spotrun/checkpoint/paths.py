"""Adapts the paths in a saved state to a new work folder."""

from __future__ import annotations

from spotrun.checkpoint.tree import Json


def moved(node: Json, old: str, new: str) -> Json:
    """Return the state with `new` in place of `old` in each path that is the folder `old` or is below it."""
    if isinstance(node, str):
        return new + node[len(old) :] if node == old or node.startswith(old + "/") else node
    if isinstance(node, list):
        return [moved(item, old, new) for item in node]
    if isinstance(node, dict):
        return {key: moved(item, old, new) for key, item in node.items()}
    return node
