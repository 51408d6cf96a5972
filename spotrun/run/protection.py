"""The warning about a command that trains without checkpoints."""

from __future__ import annotations

UNPROTECTED = (
    "the command runs Python, but no training in it has connected to spotrun: an interruption would lose all its work"
)
KEEP = "add train: {state: [out/]} to save the files that it writes into out/"
PROTECT = (
    "spotrun saves a training with Lightning, transformers or a Loop once it begins, unless python runs with -I, -E or "
    f"-S; {KEEP}"
)
