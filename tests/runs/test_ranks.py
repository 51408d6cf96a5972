"""Ranks of a training meet by gloo: they believe no stranger, and run nothing that others send."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from spotrun.autoload import FOLDER
from spotrun.trainer_link import AGENT
from tests.support.object_stores import free_ports
from tests.support.repository import ROOT

WITHIN_S = 120
UNKNOWN = "does not know the secret of this training"
LATE = "the processes that met belong to different attempts of a run: one came too late"
LISTENS = """
import json, sys
import psutil
from torch import distributed

ports = {}
for address, port in zip(sys.argv[1::2], map(int, sys.argv[2::2])):
    first, again = (distributed.TCPStore(address, port, 1, True, multi_tenant=True) for _ in range(2))
    first.set("said", "by the first")
    assert again.get("said") == b"by the first" and isinstance(again, distributed.TCPStore)
    free = distributed.TCPStore(address, 0, 1, True, use_libuv=False)
    distributed.TCPStore(address, free.port, 1, False).set("to", "it")
    ports |= {port: first, free.port: free}
distributed.init_process_group("gloo", init_method=f"tcp://{address}:{port}", rank=0, world_size=1)
found = [each.laddr for each in psutil.Process().net_connections("inet") if each.status == psutil.CONN_LISTEN]
print(json.dumps([len(ports), sorted(each.ip for each in found if each.port in ports), [each.ip for each in found]]))
"""


def met(scenario: str, folder: Path) -> dict[int, dict[str, Any]]:
    """Return what each rank has come to in a scenario of rank_processes.py. One that crashed has come to nothing."""
    (port,) = free_ports(1)
    subprocess.run(
        [sys.executable, "-m", "tests.support.rank_processes", scenario, str(port), str(folder)],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        timeout=WITHIN_S,
        check=False,
    )
    return {int(path.stem): json.loads(path.read_text()) for path in folder.glob("*.json")}


def test_stranger_that_sends_an_object_runs_nothing(tmp_path: Path) -> None:
    found = met("attacked", tmp_path)
    assert found[0]["error"]
    assert not (tmp_path / "evil").exists()


def test_stranger_that_does_not_know_the_secret_is_refused(tmp_path: Path) -> None:
    found = met("posed", tmp_path)
    assert found[0]["error"].startswith("RanksUnrelated: ")
    assert f"the process that joined as rank 1 of 2 {UNKNOWN}" in found[0]["error"]
    assert "SPOTRUN_RANKS_SECRET" in found[0]["error"]


def test_stranger_in_the_place_of_rank_0_is_refused_before_lightning_believes_it(tmp_path: Path) -> None:
    found = met("before_lightning", tmp_path)
    assert not (tmp_path / "evil").exists()
    assert f"the process that joined as rank 0 of 2 {UNKNOWN}" in found[1]["error"]


def test_ranks_of_one_training_share_and_gather_and_refuse_those_of_another(tmp_path: Path) -> None:
    found = met("together", tmp_path)
    lead, other = found[0], found[1]
    assert (
        (lead["resume"], lead["nothing"], lead["agreed"]) == (other["resume"], other["nothing"], 5) == (True, None, 5)
    )
    assert lead["gathered"] == [[["a", "b", False], rank] for rank in (0, 1)]
    assert lead["states"] == [
        f"{{'mode': <Mode.WARM: 1>, 'buffer': tensor([{rank}., {rank}., {rank}.]), "
        f"'half': tensor([1., 1.], dtype=torch.bfloat16), 'n': {{1: ({rank},)}}}}"
        for rank in (0, 1)
    ]
    assert (other["gathered"], other["states"]) == ([], [])
    assert lead["unsavable"] == "Unsavable: spotrun.ranks.1.of.mine is a builtins.object"
    assert lead["late"] == other["late"] == f"RanksUnrelated: {LATE}"
    assert f"rank 1 of 2 {UNKNOWN}" in lead["without"]
    assert f"rank 0 of 2 {UNKNOWN}" in other["without"]


def test_stores_of_torch_listen_at_their_own_address_alone(tmp_path: Path) -> None:
    addresses = ("127.0.0.1", "localhost", "127.77.1.2")
    words = [word for pair in zip(addresses, map(str, free_ports(3)), strict=True) for word in pair]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": FOLDER, AGENT: str(tmp_path / "agent")}
    said = subprocess.run(
        [sys.executable, "-c", LISTENS, *words],
        env=environment | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    count, stores, everything = json.loads(said.stdout)
    assert count == 6
    assert stores == ["127.0.0.1"] * 4 + ["127.77.1.2"] * 2
    assert {*everything} == {*stores}, "gloo listens too"
