"""Jobs on several instances whose state is spread over them are refused before anything is rented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spotrun.errors import SpecInvalid
from spotrun.runs.job_checks import check_script
from spotrun.spec.model import RunSpec
from spotrun.spec.spread_state import require_whole_state

RUN = "torchrun --nnodes $SPOTRUN_NUM_NODES train.py"


def job(
    folder: Path, files: dict[str, str], *, nodes: int = 2, envs: dict[str, str] | None = None, **train: Any
) -> RunSpec:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    how = {"run": RUN, "state": ["ckpt/"]} | train
    words = {name: value for name, value in how.items() if value is not None}
    return RunSpec.from_dict(
        {"name": "j", "workdir": str(folder), "train": words, "num_nodes": nodes, "envs": envs or {}}
    )


def refusal(spec: RunSpec) -> SpecInvalid:
    with pytest.raises(SpecInvalid) as refused:
        require_whole_state(spec)
    return refused.value


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import torch\nfrom torch.distributed.fsdp import fully_shard as spread", "line 2: torch.distributed.fsdp"),
        ("import torch.distributed.checkpoint as dcp\ndcp.save({}, 'ckpt')", "line 1: torch.distributed.checkpoint"),
        ("from torch.distributed import checkpoint as c\nc.save({})", "line 1: torch.distributed.checkpoint"),
        ("import torch.distributed as dist\n\ndist.checkpoint.save({})", "line 3: torch.distributed.checkpoint"),
        ("import torch\ntorch.distributed.checkpoint.async_save({})", "line 2: torch.distributed.checkpoint"),
        ("from importlib import import_module as i\ni('torch.distributed.checkpoint')", "line 2: torch.distributed"),
        ("from lib import *\nmodel = FullyShardedDataParallel(model)", "line 2: FullyShardedDataParallel"),
        ("from torch.distributed._composable import fully_shard", "line 1: torch.distributed._composable.fully_shard"),
        (
            "from accelerate import FullyShardedDataParallelPlugin as P",
            "line 1: accelerate.FullyShardedDataParallelPlugin",
        ),
        ("import deepspeed\nengine = deepspeed.initialize()", "line 1: deepspeed"),
        ("Trainer(strategy='fsdp')", "line 1: strategy='fsdp'"),
        ("TrainingArguments('out', fsdp='full_shard auto_wrap')", "line 1: fsdp="),
        ("from inner.model import build", "inner/model.py, line 2: torch.distributed.fsdp"),
        ("import inner", "inner/model.py, line 2: torch.distributed.fsdp"),
    ],
)
def test_a_script_that_names_what_spreads_the_state_is_refused_with_its_line(
    tmp_path: Path, source: str, told: str
) -> None:
    inner = {
        "inner/__init__.py": "from . import model",
        "inner/model.py": "import torch\nimport torch.distributed.fsdp",
    }
    error = refusal(job(tmp_path, {"train.py": source} | inner))
    assert told in error.message
    assert error.key == ("train", "state")
    assert "num_nodes: 1" in (error.hint or "")


@pytest.mark.parametrize(
    ("run", "files", "told"),
    [
        (
            "accelerate launch --config_file conf/a.yaml t.py",
            {"conf/a.yaml": "x: 1\ndistributed_type: FSDP"},
            "a.yaml, line 2",
        ),
        ("accelerate launch --use_fsdp t.py", {}, "--use_fsdp"),
        ("deepspeed t.py", {}, "deepspeed"),
        ("torchrun t.py --deepspeed ds.json", {}, "--deepspeed"),
        ("torchrun t.py --config ds.json", {"ds.json": '{"zero_optimization": {"stage": 3}}'}, "ds.json, line 1"),
        ("torchrun t.py args.json", {"args.json": '{\n "fsdp": "full_shard"}'}, "args.json, line 2"),
        ("torchrun t.py trainer.strategy=fsdp", {}, "strategy=fsdp"),
        ("cd sub && torchrun t.py", {"sub/t.py": "import torch.distributed.fsdp"}, "sub/t.py, line 1"),
        ("torchrun -m pkg.go", {"pkg/go.py": "import deepspeed"}, "pkg/go.py, line 1"),
        ("torchrun --nnodes 2 --module pkg.go", {"pkg/go.py": "import deepspeed"}, "pkg/go.py, line 1"),
        ("torchrun --nnodes 2 --module=pkg.go", {"pkg/go.py": "import deepspeed"}, "pkg/go.py, line 1"),
        ("python -mpkg.go", {"pkg/go.py": "import deepspeed"}, "pkg/go.py, line 1"),
        ("bash start.sh", {"start.sh": "#!/bin/sh\ntorchrun t.py --fsdp full_shard"}, "start.sh, line 2"),
    ],
)
def test_a_command_that_names_what_spreads_the_state_is_refused(
    tmp_path: Path, run: str, files: dict[str, str], told: str
) -> None:
    assert told in refusal(job(tmp_path, files, run=run)).message


def test_the_check_of_validate_and_launch_refuses_it_too(tmp_path: Path) -> None:
    with pytest.raises(SpecInvalid, match=r"train.py, line 1: torch.distributed.fsdp spreads the state"):
        check_script(job(tmp_path, {"train.py": "import torch.distributed.fsdp"}), here=False)


def test_a_switch_of_accelerate_in_the_environment_is_refused(tmp_path: Path) -> None:
    assert "ACCELERATE_USE_FSDP" in refusal(job(tmp_path, {}, envs={"ACCELERATE_USE_FSDP": "true"})).message


def test_a_script_that_writes_into_the_folder_of_the_state_needs_no_word_in_the_job(tmp_path: Path) -> None:
    source = "import os, torch.distributed.checkpoint\nfolder = os.environ['SPOTRUN_STATE_DIR']"
    assert refusal(job(tmp_path, {"train.py": source}, state=None)).key == ("train", "run")


@pytest.mark.parametrize(
    ("files", "more"),
    [
        ({"train.py": "import torch.distributed.checkpoint"}, {"nodes": 1}),
        ({"train.py": "import torch.distributed.checkpoint"}, {"state": None}),
        (
            {"train.py": '"""Trains without FSDP."""\n# no fully_shard here\nimport torch.nn.parallel'},
            {},
        ),
        ({"train.py": "p.add_argument('--strategy', choices=['ddp', 'fsdp'])\nTrainingArguments(deepspeed=None)"}, {}),
        ({"train.py": "pass", "other.py": "import deepspeed"}, {}),
        (
            {"a.yaml": "distributed_type: MULTI_GPU\nfsdp_config: {}\ndeepspeed_config: {}\nfsdp: false"},
            {"run": "x a.yaml"},
        ),
        ({"train.py": "def broken(:"}, {}),
    ],
)
def test_other_jobs_are_taken(tmp_path: Path, files: dict[str, str], more: dict[str, Any]) -> None:
    require_whole_state(job(tmp_path, files, **more))
