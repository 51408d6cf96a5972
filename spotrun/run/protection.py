"""The warning about a command that trains without checkpoints."""

from __future__ import annotations

UNPROTECTED = "it runs Python, and no training in it has found its agent so far: an interruption loses all of it"
PROTECT = (
    "spotrun saves what Lightning, transformers or a Loop trains, once that begins; python -I, -E and -S hide it from "
    "them; train: {state: [out/]} keeps the files of any command"
)
