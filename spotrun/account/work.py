"""Describes the work that a run did, so that only bills for the same work are compared. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from spotrun.run.state import RunState
from spotrun.units import count_of


@dataclass(frozen=True)
class Work:
    """
    The work of a run.

    `command` is the script, or the command line; `args` are the script's arguments. `script_sha256` is the digest of
    the script, "" if it is unknown. `start_sha256` is the digest of the checkpoint from which training began. `epochs`
    and `steps` count the completed epochs, and the steps up to the newest checkpoint. `nodes` is the job's `num_nodes`,
    on which the size of a step's batch depends.
    """

    command: str
    args: tuple[str, ...]
    script_sha256: str
    start_sha256: str | None
    epochs: int
    steps: int
    nodes: int

    def unlike(self, other: Work) -> list[str]:
        """Return the known differences between this work and `other`; [] if none is known."""
        found = []
        if self.command != other.command:
            found.append("another command")
        elif self.script_sha256 and other.script_sha256 and self.script_sha256 != other.script_sha256:
            found.append("another version of the script")
        if self.args != other.args:
            found.append("other arguments")
        if self.nodes != other.nodes:
            found.append(f"num_nodes {self.nodes} instead of {other.nodes}")
        if self.start_sha256 != other.start_sha256:
            found.append("another checkpoint to begin from")
        if self.epochs != other.epochs:
            found.append(f"{count_of(self.epochs, 'epoch')} instead of {other.epochs:,}")
        elif self.steps != other.steps:
            found.append(f"{count_of(self.steps, 'step')} instead of {other.steps:,}")
        return found


def work_of(state: RunState, epochs: int) -> Work:
    """Return the work of a run that has completed `epochs` epochs."""
    created = state.created
    train, args = created.job("train"), created.job("train").get("args")
    commits = (each.event.step for each in state.commits if not each.cut_off and not each.event.suspect)
    return Work(
        command=str(train.get("script") or train.get("run") or ""),
        args=tuple(map(str, args if isinstance(args, list) else ())),
        script_sha256=created.script_sha256,
        start_sha256=created.start_sha256,
        epochs=epochs,
        steps=max(commits, default=0),
        nodes=created.size,
    )
