"""
`python -m tests.support.trainings.zygote FD [MODULE...]` imports everything once, and forks a trainer for each job.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Iterable
from typing import NoReturn

from spotrun import trainer_link
from spotrun.exactness import trace_file
from spotrun.training.python_state.script import Script
from tests.support.trainings.loggers import slow_down

TRANSFORMERS = "tests.support.trainings.of_transformers"
"""It takes seconds to import. A test that needs it asks for it."""
IMPORTED = (
    "torch",
    "pytorch_lightning",
    "pytorch_lightning.demos",
    "lightning.pytorch",
    "numpy",
    "torchmetrics",
    "omegaconf",  # Lightning imports it when it writes its first checkpoint
    "spotrun.lightning.callback",
    "tests.support.toy_framework",
    "tests.support.trainings.loop_script",
    "tests.support.trainings.training",
)

OTHERS = {
    "toy": "tests.support.toy_framework",
    "loop": "tests.support.trainings.loop_script",
    "transformers": TRANSFORMERS,
}
"""The modules that train the jobs of a package that is no Lightning."""


def _serve(sock: socket.socket, more: list[str]) -> None:
    _import((*IMPORTED, *more))
    importlib.import_module("torch").set_num_threads(1)  # threads would not survive the fork
    Script.of_this_process().modules  # noqa: B018  (the paths of all modules stay resolved)
    sock.sendall(b"ready\n")
    unread = b""
    while data := sock.recv(1 << 16):
        unread += data
        while b"\n" in unread:
            line, unread = unread.split(b"\n", 1)
            request = json.loads(line)
            sock.sendall(f"{_answer(request, sock)}\n".encode())


def _answer(request: dict, sock: socket.socket) -> int:
    if "import" in request:
        _import(request["import"])
        return 0
    return _wait(request["wait"]) if "wait" in request else _fork(request, sock)


def _import(modules: Iterable[str]) -> None:
    gc.disable()  # what is imported stays
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # what was imported is not looked at again in each fork
    gc.enable()


def _fork(request: dict, sock: socket.socket) -> int:
    pid = os.fork()
    if pid == 0:
        sock.close()
        _be_trainer(request)
    return pid


def _be_trainer(request: dict) -> NoReturn:
    """What a forked process does: run the job, write its output to the job's log, exit."""
    code = 1
    try:
        os.setpgid(0, 0)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if request["address"]:
            os.environ[trainer_link.AGENT] = request["address"]
        os.environ["SPOTRUN_RUN_UID"] = "of-these-tests"
        os.environ.pop("PL_GLOBAL_SEED", None)
        if request["job"].get("ranks"):
            run_ranks(request["job"])
        else:
            run(request["job"])
        code = 0
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status)


def run_ranks(job: dict) -> None:
    """A training on several processes, with what Lightning's launcher sets for each. The first ends last."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    size = str(job["ranks"])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": size, "NODE_RANK": "0"}
    others = []
    for rank in range(1, job["ranks"]):
        os.environ["LOCAL_RANK"] = str(rank)
        if not (other := os.fork()):
            run(job | {"trace": f"{job['trace']}-{rank}", "result": f"{job['result']}-{rank}"})
            return
        others.append(other)
    os.environ["LOCAL_RANK"] = "0"
    run(job)
    for other in others:
        os.waitpid(other, 0)


def run(job: dict) -> None:
    """The training of a job; or a script of its own, or a question about the packages."""
    if trainer := sys.modules.get("transformers.trainer"):
        importlib.import_module("spotrun.transformers.entry").install(trainer)
    if "call" in job:
        questions = importlib.import_module("tests.support.trainings.questions")
        getattr(questions, job["call"])(job)
        return
    change_constants(job)
    if "traced_to" in job:
        os.environ[trace_file.FILE_VARIABLE] = job["traced_to"]
    os.chdir(job.get("folder", "."))
    if "script" in job:
        sys.argv = [job["script"], *job.get("args", [json.dumps(job)])]
        runpy.run_path(job["script"], run_name="__main__")
    elif job.get("package") in OTHERS:
        importlib.import_module(OTHERS[job["package"]]).train(job)
    else:
        training = importlib.import_module("tests.support.trainings.training")
        training.train(importlib.import_module(job.get("package", "pytorch_lightning")), job)


def change_constants(job: dict) -> None:
    """Change sizes and waits of spotrun's, and a writer's pace, so that these small models meet what large ones do."""
    overlap = importlib.import_module("spotrun.training.overlap")
    overlap.FROM_BYTES, overlap.PIECE_FROM_BYTES = job.get("overlap_from", (0, 0))  # all their tensors are small
    if "agent_gone_s" in job:
        importlib.import_module("spotrun.training.session").AGENT_GONE_EXIT_S = job["agent_gone_s"]
    if "local" in job:
        importlib.import_module("spotrun.training.local_folder").EVERY_S = 0.0
    if "logs_max_bytes" in job:
        importlib.import_module("spotrun.training.log_files.text_logs").CARRIED_MAX_BYTES = job["logs_max_bytes"]
    if job.get("mlflow_by_client"):  # as if its folder were a server: by MLflow's client alone
        importlib.import_module("spotrun.training.log_files.mlflow_files").store_folder = lambda logger: None
    if "slow_events_s" in job:
        slow_down(importlib.import_module("tensorboardX.event_file_writer").EventsWriter, job["slow_events_s"])


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
