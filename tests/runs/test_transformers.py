"""
Trainings with the Trainer of transformers, of every kind that its arguments know, are killed and end with the bits of a
training in peace. The contract of frameworks has the kills at each boundary.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from spotrun.checkpoint.snapshot import read_image
from spotrun.exactness.comparison import differences
from spotrun.exactness.difference import DifferenceKind, gathered
from spotrun.exactness.trace import Improved, Trace, Validated
from spotrun.exactness.trace_file import read_ranks
from spotrun.lightning.checkpoint_file import export
from spotrun.trainer_link import FitBegins, Progress, Refused, SnapshotTaken
from tests.support.repository import EXAMPLES, ROOT
from tests.support.trainings.agent import Agent
from tests.support.trainings.comparison import assert_same
from tests.support.trainings.trainers import Zygote

SCRIPTS = ROOT / "tests" / "batteries" / "of_transformers"
BY_EPOCH = {"eval_strategy": "epoch", "logging_strategy": "epoch"}
BEST = {"save_strategy": "epoch", "load_best_model_at_end": True, "save_total_limit": 1}
ACCUMULATED = {"max_epochs": 2, "accumulate_grad_batches": 3}
KINDS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "evaluated after each epoch's own callbacks": (
        {"arguments": BY_EPOCH},
        ["batch:0:8", "epoch_end:0", "validation:0:8", "start:1:0", "validation:1:8", "train_end"],
    ),
    "the best of them, stopped early": (
        {"arguments": {**BY_EPOCH, **BEST}, "patience": 1, "trainer": {"max_epochs": 6}},
        ["validation:0:8", "start:1:5", "train_end"],
    ),
    "ends within an epoch, begins with an evaluation": (
        {"arguments": {"max_steps": 13, "eval_on_start": True, "eval_steps": 5}},
        ["validation:-1:0", "start:0:3", "validation:1:2", "train_end"],
    ),
    "a stream, and accumulation that does not divide it": (
        {"loader": "stream", "trainer": ACCUMULATED, "arguments": {"max_steps": 9, "eval_steps": 2}},
        ["batch:0:2", "start:0:7", "start:1:0", "start:1:4", "validation:3:6"],
    ),
    "sorted by length, read by workers": (
        {"own_data": True, "arguments": {"train_sampling_strategy": "group_by_length", "dataloader_num_workers": 2}},
        ["start:0:4", "start:1:1", "validation:1:8"],
    ),
    "a plateau, and workers that stay": (
        {
            "own_data": True,
            "arguments": {
                "lr_scheduler_type": "reduce_lr_on_plateau",
                "dataloader_num_workers": 1,
                "dataloader_persistent_workers": True,
                "eval_steps": 3,
            },
        },
        ["validation:0:3", "start:0:7", "start:2:1"],
    ),
    "autocast, input that is counted, noise on no embedding": (
        {"arguments": {"bf16": True, "include_num_input_tokens_seen": "no", "max_grad_norm": 0.1}},
        ["start:0:6", "start:2:0"],
    ),
}


def job_of(**job: Any) -> dict[str, Any]:
    return {"package": "transformers", **job}


TOGETHER: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a plateau, evaluated at an epoch's end, sorted by length, read by a worker that stays": (
        {
            "own_data": True,
            "arguments": {
                "lr_scheduler_type": "reduce_lr_on_plateau",
                "train_sampling_strategy": "group_by_length",
                "dataloader_num_workers": 1,
                "dataloader_persistent_workers": True,
                **BY_EPOCH,
            },
        },
        ["start:0:4", "validation:0:8", "start:2:1"],
    ),
    "autocast, ends within an epoch, begins with an evaluation, a collate function that counts": (
        {
            "counts": True,
            "arguments": {
                "bf16": True,
                "include_num_input_tokens_seen": "no",
                "max_grad_norm": 0.1,
                "max_steps": 13,
                "eval_on_start": True,
                "eval_steps": 5,
            },
        },
        ["start:0:6", "validation:1:2", "train_end"],
    ),
    "a stream, and accumulation that does not divide it": (
        KINDS["a stream, and accumulation that does not divide it"][0],
        ["start:0:7", "start:1:0", "validation:3:6"],
    ),
}


@pytest.mark.parametrize("kind", TOGETHER)
def test_a_training_of_many_kinds_that_is_killed_ends_with_the_bits_of_one_in_peace(
    zygote: Zygote, tmp_path: Path, kind: str
) -> None:
    """What a training of `KINDS` has is in one of these too, and in those whose traces are compared below."""
    job, kills = TOGETHER[kind]
    straight = Agent(zygote, job_of(**job), tmp_path / "straight").run()
    agent = Agent(zygote, job_of(**job), tmp_path / "killed", every_steps=1)
    assert_same(straight, agent.run(kills))


@pytest.mark.nightly
@pytest.mark.pattern("exact", "transformers")
@pytest.mark.parametrize("kind", KINDS)
def test_a_training_that_is_killed_ends_with_the_bits_of_one_in_peace(
    zygote: Zygote, tmp_path: Path, kind: str
) -> None:
    """Weights, optimizer, schedule, all that was logged, `train_loss`, the best metric, and each batch."""
    job, kills = KINDS[kind]
    straight = Agent(zygote, job_of(**job), tmp_path / "straight").run()
    agent = Agent(zygote, job_of(**job), tmp_path / "killed", every_steps=1)
    assert_same(straight, agent.run(kills))


def traced(zygote: Zygote, folder: Path, job: dict[str, Any], kills: Sequence[str] = ()) -> dict[int, Trace]:
    """What `spotrun verify-resume` reads of a training."""
    agent = Agent(zygote, job_of(**job, traced_to=str(folder / "record")), folder, every_steps=1)
    agent.run(list(kills))
    return read_ranks(folder / "record")


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        pytest.param("the best of them, stopped early", {"own_generators": True}, marks=pytest.mark.nightly),
        ("the best of them, stopped early", {"own_generators": True, "own_data": True}),
        pytest.param("a stream, and accumulation that does not divide it", {}, marks=pytest.mark.nightly),
    ],
)
def test_the_trace_of_a_training_is_the_same_after_kills(
    zygote: Zygote, tmp_path: Path, kind: str, data: dict[str, Any]
) -> None:
    """What generators of a data set's own are at the end is in it too."""
    job, kills = KINDS[kind]
    job = {**job, **data}
    straight, killed = traced(zygote, tmp_path / "straight", job), traced(zygote, tmp_path / "killed", job, kills)
    assert list(differences(straight, killed)) == []
    assert len(straight[0].begun) == 1
    assert len(killed[0].begun) == 1 + len(kills)
    assert sum(each.step > 0 for each in killed[0].begun) >= len(kills) - 1, "one is killed before its first snapshot"
    assert [each.position for _, each in straight[0].trained()] == sorted(
        {each.position for _, each in killed[0].trained()}
    )
    assert len(straight[0].all_of(Validated)) >= 3
    assert bool(straight[0].all_of(Improved)) == ("patience" in job)


def test_the_trace_shows_the_first_thing_that_differs(zygote: Zygote, tmp_path: Path) -> None:
    one, other = (
        traced(zygote, tmp_path / f"{rate}", {"arguments": {"lr_scheduler_type": rate}})
        for rate in ("linear", "cosine")
    )
    found = gathered(differences(one, other))
    assert found.first is not None
    assert (found.first.kind, found.first.epoch, found.first.batch) == (DifferenceKind.LR, 0, 1)
    assert {DifferenceKind.LOSS, DifferenceKind.VALIDATION, DifferenceKind.WEIGHTS} <= found.counts.keys()


def test_unlogged_values_of_a_library_trainer_are_carried(zygote: Zygote, tmp_path: Path) -> None:
    """The work folder is another one, so that its class is none of the script's."""
    arguments = {"logging_steps": 5, "eval_steps": 7}
    job = job_of(own_data=True, of_a_library=True, folder=str(tmp_path), arguments=arguments)
    straight = Agent(zygote, job, tmp_path / "straight").run()
    assert any("twice" in logs for logs in straight["history"])
    agent = Agent(zygote, job, tmp_path / "killed", every_steps=1)
    assert_same(straight, agent.run(["start:0:3", "start:1:4", "validation:1:6"]))


def test_each_of_two_trainings_of_a_script_is_resumed(zygote: Zygote, tmp_path: Path) -> None:
    """The second goes on with the weights of the first; epochs count on in the job's own callback."""
    job = job_of(fits=2, trainer={"max_epochs": 2})
    straight = Agent(zygote, job, tmp_path / "straight").run()
    agent = Agent(zygote, job, tmp_path / "killed", every_steps=1)
    assert_same(straight, agent.run(["start:1:2", "start:2:1", "validation:3:8"]))
    assert [each.fit for each in agent.told(FitBegins)] == [2, 2, 2]


def test_a_script_that_resumes_by_itself_does_so_on_a_fresh_start_alone(zygote: Zygote, tmp_path: Path) -> None:
    """What it looks for may be newer than the checkpoint of the run, or older."""
    before = Agent(zygote, job_of(arguments={"save_strategy": "epoch"}), tmp_path / "before")
    before.run()
    job = job_of(resume_from=str(tmp_path / "before" / "out" / "checkpoint-8"))
    straight = Agent(zygote, job, tmp_path / "straight").run()
    assert straight["step"] == 24
    assert len([line for line in straight["trace"] if line.startswith('["train"')]) == 16, "it did begin at step 8"
    agent = Agent(zygote, job, tmp_path / "killed", every_steps=1)
    assert_same(straight, agent.run(["start:0:3", "validation:1:8"]))


@pytest.mark.pattern("refused", "transformers")
@pytest.mark.parametrize(
    ("arguments", "said", "advice"),
    [
        ({"auto_find_batch_size": True}, "auto_find_batch_size", "per_device_train_batch_size"),
        ({"optim": "galore_adamw_layerwise"}, "inside the backward pass", "adamw_torch"),
    ],
    ids=["auto_find_batch_size", "an optimizer that steps within the backward pass"],
)
def test_training_that_cannot_be_exact_is_refused_before_the_first_step(
    zygote: Zygote, tmp_path: Path, arguments: dict[str, Any], said: str, advice: str
) -> None:
    agent = Agent(zygote, job_of(arguments=arguments), tmp_path)
    assert agent.attempt() == "refused"
    assert not agent.told(Progress)
    (refused,) = agent.told(Refused)
    assert said in refused.reason
    assert advice in refused.hint


@pytest.mark.pattern("exact", "transformers", text="two processes")
def test_two_processes_are_resumed_together(zygote: Zygote, tmp_path: Path) -> None:
    job = job_of(ranks=2, own_data=True, trainer={"max_epochs": 2}, arguments={"eval_steps": 2})
    straight = Agent(zygote, job, tmp_path / "straight").run()
    assert straight["step"] == 8, "each has half of the batches"
    agent = Agent(zygote, job, tmp_path / "killed", every_steps=1)
    assert_same(straight, agent.run(["start:0:2", "validation:0:2", "start:1:1"]))


@pytest.mark.parametrize("name", [pytest.param("checkpointing", marks=pytest.mark.nightly), "seq2seq"])
def test_nothing_of_a_whole_script_is_named_as_lost(zygote: Zygote, tmp_path: Path, name: str) -> None:
    """With `exact: require` that would end it. Its Trainer and the settings of its model are among its variables."""
    work = tmp_path / "work"
    work.mkdir()
    shutil.copy(SCRIPTS / f"{name}.py", work)
    job = {"script": str(work / f"{name}.py"), "folder": str(work), "args": []}
    agent = Agent(zygote, job, tmp_path, every_steps=1, exact="require")
    assert agent.attempt() == "finished", agent.log.read_text()[-2000:]
    assert "is in no checkpoint" not in agent.log.read_text()


def test_all_processes_report_to_one_folder_of_tensorboard(zygote: Zygote, tmp_path: Path) -> None:
    """Its name has a time in it; here it has the number of the process, which is another one each time."""
    job = job_of(arguments={"report_to": ["tensorboard"]}, log_folder_by_process=True)
    agent = Agent(zygote, job, tmp_path, every_steps=1)
    agent.run(["start:0:4", "start:1:4"])
    (folder,) = (tmp_path / "out" / "runs").iterdir()
    assert len(list(folder.iterdir())) == 3, "each has a file of its own"


def test_a_checkpoint_is_exported_as_a_file_that_torch_reads(zygote: Zygote, tmp_path: Path) -> None:
    agent = Agent(zygote, job_of(trainer={"max_epochs": 1}), tmp_path)
    agent.run()
    facts = export(bytearray(agent.image), tmp_path / "out.pt")
    assert (facts.step, facts.epoch, facts.has_optimizer) == (8, 0, True)
    read = torch.load(tmp_path / "out.pt", weights_only=True)
    assert "net.0.weight" in read["state_dict"]
    assert read["trainer_state"]["global_step"] == 8


def test_a_private_name_that_is_gone_is_noticed(zygote: Zygote, tmp_path: Path) -> None:
    now, later = zygote.alone({"call": "moved_in_transformers"}, tmp_path)
    assert now == [], "the version that is installed has them all"
    assert {*later} == {"Trainer._run_epoch", "Trainer.get_batch_samples", "Trainer._evaluate(skip_scheduler)"}


@pytest.mark.parametrize(
    ("script", "words", "steps", "result"),
    [
        (EXAMPLES / "hf_trainer.py", ["--epochs", "0.2", "--width", "8"], [3], "walks/best/model.safetensors"),
        (SCRIPTS / "remembering.py", [], [5, 13], "result.json"),
    ],
)
def test_a_whole_script_leaves_the_bits_of_one_in_peace(
    zygote: Zygote, tmp_path: Path, script: Path, words: list[str], steps: list[int], result: str
) -> None:
    def trained(name: str, left: list[int]) -> bytes:
        """What the script has written, killed when these steps are in a snapshot."""

        def kill(agent: Agent, message: object) -> None:
            if isinstance(message, SnapshotTaken) and left and message.step >= left[0]:
                left.pop(0)
                agent.kill()

        work, wanted = tmp_path / name, ["killed"] * len(left) + ["finished"]
        work.mkdir()
        job = {"script": str(script), "folder": str(work), "args": words}
        agent = Agent(zygote, job, work, every_steps=1, on_message=kill)
        assert [agent.attempt() for _ in wanted] == wanted, agent.log.read_text()[-2000:]
        return (work / result).read_bytes()

    assert trained("killed", steps) == trained("straight", [])


class TestAdapters:
    """PEFT: a model of which a small part is trained."""

    @pytest.mark.pattern("exact", "transformers", text="adapters of peft on a frozen base")
    def test_the_base_is_in_no_checkpoint_and_the_bits_are_those_of_peace(self, zygote: Zygote, tmp_path: Path) -> None:
        straight = Agent(zygote, job_of(adapters=1), tmp_path / "straight").run()
        agent = Agent(zygote, job_of(adapters=1), tmp_path / "killed", every_steps=1)
        assert_same(straight, agent.run(["start:0:5", "start:1:1"]))
        state, _ = read_image(bytearray(agent.image))
        weights = {*state["state_dict"], *state["spotrun_weights"]["own"]}
        assert weights
        assert not {name for name in weights if "base_layer" in name}
        assert {name for name in state["spotrun_weights"]["base"] if "base_layer" in name}

    def test_another_base_is_refused(self, zygote: Zygote, tmp_path: Path) -> None:
        agent = Agent(zygote, job_of(adapters=1), tmp_path, every_steps=1)
        assert agent.attempt(kill="start:0:5") == "killed"
        assert agent.told(SnapshotTaken)
        agent.job = job_of(adapters=2)
        assert agent.attempt() == "refused"
        (refused,) = agent.told(Refused)
        assert (
            "the model's base differs from the checkpoint's base: base_model.model.net.0.base_layer" in refused.reason
        )
        assert "revision" in refused.hint
