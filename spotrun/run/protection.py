"""The warning about a command that trains without checkpoints."""

from __future__ import annotations

UNPROTECTED = (
    "the command runs Python, but no training in it has connected to spotrun's agent yet: an interruption would lose "
    "all its work"
)
PROTECT = (
    "spotrun saves a training with Lightning, transformers or a Loop once it begins, unless python has -I, -E or -S; "
    "train: {state: [out/]} keeps the files of any command"
)
