"""
A trainer of a gang without torch: agent_trainer.py whose ranks meet where their agents say, and do each step together.
As with gloo, whoever loses the connection to another rank fails at once. Rank R fails at `fail_at[R]`. With `alone`
ranks other than 0 have nothing to do, and end at once. With `writes` each rank has a file of its own.

    python gang_trainer.py '{"steps": 40, …}'

Each rank writes a line of the file `trace` for each step ("PID STEP").
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path

from agent_trainer import Trainer

from spotrun.trainer_link import GANG, RANKS_SECRET

MEETS_WITHIN_S = 60.0
RANK, SIZE = int(os.environ["SPOTRUN_NODE_RANK"]), int(os.environ["SPOTRUN_NUM_NODES"])
KNOWN = f"{os.environ[GANG]} {os.environ[RANKS_SECRET]}"
PLACE = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def fails(job: dict, step: int) -> None:
    if job.get("fail_at", {}).get(str(RANK)) == step:
        raise RuntimeError(f"rank {RANK} has a mistake of its own")


class Lead(Trainer):
    """Rank 0. It does no step before the others have said that they are there, and none without them."""

    others: tuple[socket.socket, ...] = ()

    def run(self) -> None:
        if not self.job.get("alone"):
            self.meet()
        super().run()
        for other in self.others:
            other.sendall(b"end\n")

    def meet(self) -> None:
        with socket.create_server(PLACE) as server:
            server.settimeout(MEETS_WITHIN_S)
            self.others = tuple(server.accept()[0] for _ in range(SIZE - 1))
        for other in self.others:
            assert other.recv(1000).decode() == KNOWN, "not of this gang"

    def do_step(self) -> None:
        for other in self.others:
            other.sendall(f"{self.step + 1}\n".encode())
        for other in self.others:
            if not other.recv(100):
                raise ConnectionError("Connection closed by peer")
        super().do_step()

    def go_wrong(self, step: int) -> None:
        fails(self.job, step)
        super().go_wrong(step)


def follow(job: dict) -> None:
    lead = _connected()
    lead.sendall(KNOWN.encode())
    for line in lead.makefile():
        if line == "end\n":
            return
        fails(job, int(line))
        with open(job["trace"], "a") as trace:
            trace.write(f"{os.getpid()} {int(line)}\n")
        lead.sendall(b"done")
    raise ConnectionError("Connection closed by peer")


def _connected() -> socket.socket:
    give_up_at = time.monotonic() + MEETS_WITHIN_S
    while True:
        try:
            return socket.create_connection(PLACE, MEETS_WITHIN_S)
        except ConnectionError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.02)


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    if arguments.get("writes"):
        Path(f"of-rank-{RANK}.txt").write_text("a line\n")
    if RANK and not arguments.get("alone"):
        follow(arguments)
    elif RANK == 0:
        Lead(arguments).run()
