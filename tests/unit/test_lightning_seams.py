"""Where spotrun touches Lightning and the process that it is in, read off its own text."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest

import spotrun
from spotrun.lightning import launched, unsupported
from spotrun.lightning.connectors import names
from spotrun.training import ddp_buckets
from spotrun.training.unsupported import TrainingUnsupported
from tests.support.repository import ROOT as REPOSITORY

ROOT = Path(spotrun.__file__).parent
LIGHTNING, TRAINING = ROOT / "lightning", ROOT / "training"
OF_TORCH = {
    "_buffers", "_device", "_foreach_norm", "_indices", "_non_persistent_buffers_set", "_parameters", "_values",
    "_version", "_optimizer_load_state_dict_post_hooks", "_optimizer_load_state_dict_pre_hooks",
}  # fmt: skip
OF_TORCHMETRICS = {"_computed", "_defaults", "_forward_cache", "_to_sync", "_update_count"}
OF_MLFLOW = {"_metric_objs"}
THERE_LATER = {"_accumulate_grad_batches"}
"""StochasticWeightAveraging has it from its last epoch on, so nobody can ask for it before."""


def private_names(paths: Iterator[Path]) -> dict[str, str]:
    """Where each is used that is not `self`'s own, be it only by its text."""
    used, own = {}, {"_exit", "_inner"}  # `os._exit`, and what a stand-in stands for
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
                own.add(node.attr)
            elif isinstance(node, ast.Attribute):
                used[node.attr] = f"{path.relative_to(ROOT)}:{node.lineno}"
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
                used[ast.unparse(node.args[1]).strip("\"'")] = f"{path.relative_to(ROOT)}:{node.lineno}"
    private = {name for name in used if name.startswith("_") and not name.startswith("__")}
    return {name: used[name] for name in private - own}


@pytest.mark.exhaustive
def test_private_names_of_lightning_are_used_in_one_place() -> None:
    """Training knows the loggers' own as well, as a checkpoint holds their files."""
    of_torch = OF_TORCH | OF_TORCHMETRICS | {*ddp_buckets.PRIVATE_NAMES}
    loggers = (each for cls, each in names.OF_PARTS.items() if cls.endswith("Logger"))
    of_loggers = {*chain.from_iterable(loggers)} | OF_MLFLOW
    for paths, allowed in (
        (LIGHTNING.glob("*.py"), set()),
        ((TRAINING / "log_files").glob("*.py"), of_loggers),
        ((path for path in TRAINING.rglob("*.py") if path.parent.name != "log_files"), of_torch),
    ):
        elsewhere = private_names(paths)
        assert {name: place for name, place in elsewhere.items() if name not in allowed} == {}


def test_every_private_name_is_checked_before_a_training_starts() -> None:
    tables = names.OF_TRAINER, names.OF_MODULES, names.OF_PARTS
    paths = [*names.OF_TRAINER, *chain.from_iterable(each for table in tables for each in table.values())]
    asked = {part for path in paths for part in path.split(".")} | THERE_LATER | OF_TORCHMETRICS
    used = private_names((LIGHTNING / "connectors").glob("*.py"))
    assert {name: place for name, place in used.items() if name not in asked} == {}


@pytest.mark.exhaustive
def test_no_signal_has_a_handler() -> None:
    """Nothing, and no collective call least of all, may happen between any two instructions of a training."""
    for path in [*LIGHTNING.rglob("*.py"), *TRAINING.rglob("*.py")]:
        text = path.read_text()
        tree = ast.parse(text if "signal" in text else "")
        imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
        assert "signal" not in [alias.name for node in imported for alias in node.names], path


def test_the_entry_points_cost_nothing_elsewhere() -> None:
    code = """if True:
        import sys, spotrun.lightning
        from spotrun.lightning.factory import for_lightning, for_pytorch_lightning
        assert for_lightning() == for_pytorch_lightning() == []
        assert not {"torch", "numpy", "lightning", "pytorch_lightning", "msgspec"} & set(sys.modules)
    """
    environment = {"PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@pytest.mark.parametrize(("job", "script"), [("2", 1), ("2", 3), (None, 2)])
def test_another_number_of_nodes_is_refused_before_their_processes_meet(
    monkeypatch: pytest.MonkeyPatch, job: str | None, script: int
) -> None:
    monkeypatch.delenv("SPOTRUN_NUM_NODES", raising=False)
    if job is not None:
        monkeypatch.setenv("SPOTRUN_NUM_NODES", job)
    with pytest.raises(TrainingUnsupported, match=f"num_nodes is {script}, and the job's is {job or 1}") as refused:
        launched.refuse_others(SimpleNamespace(num_nodes=script, strategy=SimpleNamespace(launcher=None)))
    assert 'num_nodes=int(os.environ["SPOTRUN_NUM_NODES"])' in (refused.value.hint or "")
    launched.refuse_others(SimpleNamespace(num_nodes=int(job or 1), strategy=SimpleNamespace(launcher=None)))


@pytest.mark.parametrize("finder", ["BatchSizeFinder", "LearningRateFinder"])
def test_a_tuner_is_known_by_the_callback_that_it_gives_the_trainer(
    monkeypatch: pytest.MonkeyPatch, finder: str
) -> None:
    monkeypatch.setattr(names, "moved", lambda trainer: [])
    trainer = SimpleNamespace(
        num_nodes=1,
        strategy=type("SingleDeviceStrategy", (), {})(),
        callbacks=[type(finder, (), {})()],
        _val_check_time_interval=None,
        lightning_module=SimpleNamespace(training_step=lambda batch: None),
    )
    (problem,) = unsupported.problems(trainer)
    assert "a tuner callback runs trainings of its own" in problem.reason
    assert "run the tuner once" in problem.hint
