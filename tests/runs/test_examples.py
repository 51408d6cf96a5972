"""The example is what it says it is: a real ResNet-50, which learns, in a script that does not know spotrun."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spotrun.spec.file import load_spec
from tests.support.repository import EXAMPLES

SCRIPT = EXAMPLES / "resnet50.py"
OF_AN_EXAMPLE = pytest.mark.checks("examples")


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{path.stem}_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return loaded(SCRIPT)


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    return loaded(EXAMPLES / "demo.py")


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def test_the_network_is_resnet_50_in_full(example: ModuleType):
    """25,557,032 parameters with 1,000 classes, as torchvision counts them; 23,528,522 with 10."""
    network = example.ResNet50(classes=10)
    on_the_main_path = [m for name, m in network.named_modules() if "shortcut" not in name]
    assert sum(isinstance(module, nn.Conv2d | nn.Linear) for module in on_the_main_path) == 50
    assert sum(p.numel() for p in network.parameters()) == 23_528_522
    assert sum(p.numel() for p in example.ResNet50(classes=1000).parameters()) == 25_557_032


def test_a_narrower_network_is_as_deep(example: ModuleType):
    network = example.ResNet50(classes=10, width=0.125)
    assert sum(p.numel() for p in network.parameters()) == 376722
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 10)


IDLE = {1.0: (0.33, 0.5), 0.5: (0.12, 0.2)}
FAST = {1.0: (0.05, 0.1)}
BUSY = {1.0: (2.0, 7.0), 0.5: (0.95, 2.0), 0.25: (0.25, 0.55), 0.125: (0.15, 0.3)}


@pytest.mark.parametrize(
    ("takes", "start_s", "width", "scale"), [(IDLE, 3.0, 1.0, 20), (FAST, 1.5, 1.0, 60), (BUSY, 11.0, 0.25, 20)]
)
def test_the_demo_is_as_wide_and_as_fast_as_the_machine_allows(
    demo: ModuleType, takes: dict[float, tuple[float, float]], start_s: float, width: float, scale: int
):
    fit = demo.choose(demo.Fit(width, 1, step_s, save_s, start_s) for width, (step_s, save_s) in takes.items())
    assert (fit.width, fit.time_scale) == (width, scale)
    assert fit.lasts_s <= demo.ENDS_WITHIN_S
    assert fit.time_scale * demo.STEPS * fit.step_s > 1000, "the training is there when the market moves"
    assert fit.time_scale * (1.5 * fit.save_s + fit.step_s) < demo.SAVES_WITHIN * demo.NOTICE_S
    assert ("of an idle machine" in demo.said(fit)) == (takes is not IDLE), (
        "it says so where figures follow the machine"
    )


def test_the_demos_job_is_the_example_with_what_was_chosen(demo: ModuleType, tmp_path: Path):
    path = tmp_path / "demo.yaml"
    path.write_text(demo.fitted(demo.JOB.read_text(), demo.Fit(0.25, 1, 0.25, 3.5, 11.0)))
    job, whole = load_spec(path), load_spec(demo.JOB)
    assert (job.train.script, list(job.train.args)) == ("resnet50.py", ["--epochs", "6", "--width", "0.25"])
    assert (job.envs, job.local.time_scale, Path(job.workdir)) == ({"OMP_NUM_THREADS": "1"}, 7.0, EXAMPLES)
    assert (job.name, job.local.script, job.policy) == (whole.name, whole.local.script, whole.policy)


@pytest.mark.parametrize("size", [32, 48])
def test_images_become_one_logit_for_each_class(example: ModuleType, size: int):
    network = example.ResNet50(classes=10).eval()
    with torch.inference_mode():
        assert network(torch.randn(2, 3, size, size)).shape == (2, 10)


@OF_AN_EXAMPLE
def test_a_few_steps_on_one_batch_reduce_its_loss(example: ModuleType):
    train_loader, _ = example.make_loaders(image_size=32, batch_size=16, workers=0)
    x_BCHW, label_B = next(iter(train_loader))
    network = example.ResNet50(classes=10)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for _ in range(6):
        loss = F.cross_entropy(network(x_BCHW), label_B)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_all_digits_are_used_and_none_both_to_learn_and_to_judge(example: ModuleType):
    train_loader, val_loader = example.make_loaders(image_size=32, batch_size=32, workers=0)
    train_set, val_set = train_loader.dataset, val_loader.dataset
    assert (len(train_set), len(val_set)) == (1497, 300)
    both = torch.cat([train_set.images_NCHW, val_set.images_NCHW])
    everything, _ = example.load_images(32)
    assert torch.equal(both.sum(dim=(1, 2, 3)).sort().values, everything.sum(dim=(1, 2, 3)).sort().values)


def test_training_images_change_each_time_and_judged_ones_never(example: ModuleType):
    train_loader, val_loader = example.make_loaders(image_size=32, batch_size=32, workers=0)
    assert not torch.equal(train_loader.dataset[0][0], train_loader.dataset[0][0])
    assert torch.equal(val_loader.dataset[0][0], val_loader.dataset[0][0])


def test_the_script_knows_nothing_of_spotrun():
    code = SCRIPT.read_text().split('"""', 2)[2]
    assert "spotrun" not in code


@OF_AN_EXAMPLE
def test_the_script_explains_itself_and_leaves_nothing_behind(tmp_path: Path):
    shown = subprocess.run(
        [sys.executable, SCRIPT, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    for flag in (
        "--epochs",
        "--batch-size",
        "--image-size",
        "--lr",
        "--precision",
        "--width",
        "--workers",
        "--seed",
        "--save",
    ):
        assert flag in shown
    assert not list(tmp_path.iterdir())
