"""What stands between the Trainer of transformers and the port, part by part, without transformers."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

from spotrun.folder import start_file
from spotrun.training.taps import Taps
from spotrun.training.weights import Misfit, check_base
from spotrun.transformers import adapter, entry, names, refusals
from spotrun.transformers import state as trainer_state
from spotrun.transformers.base_model import BaseModel

MODULE = ModuleType("transformers.trainer")
AGENT = "SPOTRUN_AGENT"


class PeftModel(nn.Module):
    """Known by its name."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.base, self.adapter = nn.Linear(3, 3), nn.Linear(3, 3)
        self.base.requires_grad_(False)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([1])


def trainer(arguments: dict[str, Any] | None = None, **changes: Any) -> Any:
    args = {
        "parallel_mode": SimpleNamespace(name="NOT_PARALLEL"),
        "device": torch.device("cpu"),
        "n_gpu": 1,
        "world_size": 1,
        "optim": "adamw_torch",
        "auto_find_batch_size": False,
        **(arguments or {}),
    }
    told = {
        "is_deepspeed_enabled": False,
        "is_fsdp_enabled": False,
        "hp_search_backend": None,
        "accelerator": SimpleNamespace(parallelism_config=None),
        "train_dataset": [],
    }
    return SimpleNamespace(args=SimpleNamespace(**args), **(told | changes))


@pytest.fixture(autouse=True)
def _nothing_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "moved", lambda module: ["Trainer._run_epoch"] if module is not MODULE else [])


class TestRefusals:
    def test_an_ordinary_trainer_has_no_problem(self) -> None:
        assert not refusals.problems(trainer(), MODULE, "5.10.1")

    @pytest.mark.parametrize(
        ("one", "said", "advice"),
        [
            (trainer(is_deepspeed_enabled=True), "DeepSpeed", "torchrun"),
            (trainer(is_fsdp_enabled=True), "FSDP", "torchrun"),
            (trainer(accelerator=SimpleNamespace(parallelism_config=SimpleNamespace(tp_size=2))), "split", "torchrun"),
            (trainer({"device": SimpleNamespace(type="xla")}), "TPU", "GPU"),
            (trainer({"parallel_mode": SimpleNamespace(name="SAGEMAKER_MODEL_PARALLEL")}), "SageMaker", "torchrun"),
            (trainer({"n_gpu": 2}), "DataParallel", "CUDA_VISIBLE_DEVICES=0"),
            (trainer({"auto_find_batch_size": True}), "auto_find_batch_size", "per_device_train_batch_size"),
            (trainer(hp_search_backend="optuna"), "hyperparameter_search", "each trial"),
            (trainer({"optim": "adalomo"}), "backward", "adamw_torch"),
            (trainer({"world_size": 2}, train_dataset=Stream()), "IterableDataset", "map-style"),
        ],
    )
    def test_each_has_a_sentence_and_a_way_out(self, one: Any, said: str, advice: str) -> None:
        (problem,) = refusals.problems(one, MODULE, "5.24.0")
        assert said in problem.reason
        assert advice in problem.hint

    def test_a_checkpoint_of_lightning_is_nothing_to_begin_with(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(start_file.VARIABLE, "/run/start.ckpt")
        (problem,) = refusals.problems(trainer(), MODULE, "5.24.0")
        assert "--init-from" in problem.hint

    @pytest.mark.parametrize("version", ["4.57.1", "5.0.0", "5.9.3"])
    def test_an_old_version_is_refused_before_one_looks_at_its_trainer(self, version: str) -> None:
        (problem,) = refusals.problems(SimpleNamespace(), MODULE, version)
        assert version in problem.reason
        assert f"install transformers {names.KNOWN}" in problem.hint

    def test_version_that_moved_a_private_name_is_refused_by_that_name(self) -> None:
        (problem,) = refusals.problems(SimpleNamespace(), ModuleType("another"), "6.1.0")
        assert problem.reason == "transformers 6.1.0 has moved Trainer._run_epoch"


def test_without_an_agent_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(AGENT, raising=False)
    module = ModuleType("transformers.trainer")
    entry.install(module)
    assert not vars(module).keys() - vars(ModuleType("other")).keys()


def test_a_trainer_is_watched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(AGENT, "/nowhere")
    module: Any = ModuleType("transformers.trainer")
    module.Trainer = type("Trainer", (), {"train": lambda self: None})
    module.skip_first_batches = lambda dataloader, num_batches=0: (dataloader, num_batches)
    entry.install(module)
    watched = module.Trainer.train, module.skip_first_batches
    entry.install(module)
    assert (module.Trainer.train, module.skip_first_batches) == watched
    loader = SimpleNamespace()
    assert module.skip_first_batches(loader, 3) == (loader, 3), "of a loader that is not ours"


class TestTaps:
    def test_a_tap_is_called_with_what_was_there_and_leaves_nothing(self) -> None:
        class Counter:
            def count(self, step: int) -> int:
                return step + 1

        one, other, taps = Counter(), Counter(), Taps()
        taps.around(one, "count", lambda original, step: original(step) * 10)
        taps.around(one, "count", lambda original, step: -original(step))
        assert (one.count(1), other.count(1)) == (-20, 2)
        taps.close()
        taps.close()
        assert one.count(1) == 2
        assert not vars(one)

    def test_methods_that_the_script_set_on_an_object_come_back(self) -> None:
        one, taps = SimpleNamespace(log=len), Taps()
        taps.around(one, "log", lambda original, text: original(text) + 1)
        assert one.log("ab") == 3
        taps.close()
        assert one.log is len


class TestBaseModel:
    def test_it_is_the_frozen_part_of_a_model_with_adapters(self) -> None:
        assert {*BaseModel(PeftModel()).digests()} == {"base.weight", "base.bias"}
        assert not BaseModel(nn.Sequential(PeftModel())).digests()

    def test_changed_or_trained_parameter_is_no_longer_a_base(self) -> None:
        model = PeftModel()
        base = BaseModel(model)
        with torch.no_grad():
            model.base.bias.add_(1)
        assert {*base.digests()} == {"base.weight"}
        model.base.weight.requires_grad_(True)
        assert not base.digests()

    def test_the_same_weights_have_the_same_digests_and_one_bit_shows(self) -> None:
        first, same, other = (BaseModel(PeftModel(seed)).digests() for seed in (1, 1, 2))
        assert first == same
        check_base(first, same)
        with pytest.raises(Misfit, match=r"base\.weight, base\.bias") as raised:
            check_base(first, other)
        assert "revision" in raised.value.hint


def test_optimizers_are_reported_wherever_gradients_are_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The port is asked before there is a loader; a stream's pass may end within the batches of one step."""
    monkeypatch.setattr(adapter, "version", lambda: "5.24.0")
    arguments = {"gradient_accumulation_steps": 3, "process_index": 0, "seed": 1}
    framework = adapter.TransformersFramework(trainer(arguments), MODULE)
    assert (framework.steps_optimizers, framework.leaves_gradients) == (True, True)
    framework._loaders._outer = range(8)
    assert (framework.steps_optimizers, framework.leaves_gradients) == (True, False)


def test_the_state_of_a_scaler_goes_with_that_of_the_trainer() -> None:
    def made() -> Any:
        optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)
        counts = dict.fromkeys(trainer_state.COUNTED, 0)
        return SimpleNamespace(
            state=SimpleNamespace(**counts, log_history=[]),
            lr_scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 2),
            accelerator=SimpleNamespace(scaler=torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)),
        )

    first, second = made(), made()
    scaler = first.accelerator.scaler
    scaler.scale(torch.ones(1))
    scaler.update(4.0)
    first.state.log_history.append({"loss": 1.0})
    saved = trainer_state.dump(first)
    first.state.log_history.append({"loss": 2.0})
    trainer_state.load_counts(second, saved)
    trainer_state.load_helpers(second, saved)
    assert second.state.log_history == [{"loss": 1.0}], "a snapshot does not grow"
    assert second.accelerator.scaler.state_dict() == scaler.state_dict()
    assert second.accelerator.scaler.get_scale() == 4.0
