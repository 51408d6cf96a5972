"""The warning about a command that trains without checkpoints."""

from __future__ import annotations

UNPROTECTED = (
    "the command runs Python, but no training in it has connected to spotrun's agent yet: an interruption would lose "
    "all its work"
)
PROTECT = (
    "spotrun saves what Lightning, transformers or a Loop trains, once that begins; python -I, -E and -S hide it from "
    "them; train: {state: [out/]} keeps the files of any command"
)
