"""A grid as it is typed, and the job of a trial: where its parameters go."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from spotrun.errors import SpecInvalid
from spotrun.spec.file import load_spec
from spotrun.spec.model import RunSpec
from spotrun.spec.trials import combinations, read_grid, trial_spec, with_params

ARGPARSE = 'parser.add_argument("--learning-rate", "-r")\nparser.add_argument("--width")\n'


def job(folder: Path, script: str, args: str = "[]", more: str = "") -> RunSpec:
    (folder / "train.py").write_text(script)
    path = folder / "job.yaml"
    path.write_text(f"train: {{script: train.py, args: {args}}}\n{more}")
    return load_spec(path)


def test_a_grid_is_names_with_their_values_as_typed() -> None:
    grid = read_grid(["lr=1e-3, 3e-4", "size=small,large"])
    assert grid == {"lr": ("1e-3", "3e-4"), "size": ("small", "large")}
    assert combinations(grid) == 4


def test_a_comma_in_brackets_belongs_to_its_value() -> None:
    grid = read_grid(["layers=[64,64], [128]", "betas=(0.9,0.99)"])
    assert grid == {"layers": ("[64,64]", "[128]"), "betas": ("(0.9,0.99)",)}


def test_a_value_that_begins_with_a_dash_is_not_read_as_the_next_flag(tmp_path: Path) -> None:
    spec = with_params(job(tmp_path, ARGPARSE), {"width": "-best"})
    assert spec.train.args == ("--width=-best",)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["lr="], "'lr=' has no value"),
        (["lr"], "'lr' has no value"),
        (["=1"], "'' is not the name"),
        (["l r=1"], "'l r' is not the name"),
        (["lr=1,,2"], "has an empty value"),
        (["lr=1e-3,0.001"], "the same value twice: 1e-3 and 0.001"),
        (["batch-size=1", "batch_size=2"], "names batch-size twice"),
        ([], "a sweep needs a grid"),
        ([f"a{n}=1,2,3,4,5,6,7,8,9,10" for n in range(5)], "100,000 combinations"),
    ],
)
def test_a_grid_with_a_typo_is_refused_with_what_to_type(texts: list[str], said: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        read_grid(texts)
    assert said in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize(
    ("args", "becomes"),
    [
        ("[--width, 8, --learning_rate, 0.1, -v]", ("--width", "8", "--learning_rate", "3e-4", "-v")),
        ("[--learning-rate=0.1]", ("--learning-rate=3e-4",)),
        ("[--learning-rate, '-1e-3']", ("--learning-rate", "3e-4")),
        ("[--learning-rate, --width, 8]", ("--learning-rate", "3e-4", "--width", "8")),
        ("[learning_rate=0.1]", ("learning_rate=3e-4",)),
        ("[--width, 8]", ("--width", "8", "--learning-rate", "3e-4")),
    ],
)
def test_a_parameter_replaces_the_argument_of_the_job_or_is_added(
    tmp_path: Path, args: str, becomes: tuple[str, ...]
) -> None:
    spec = job(tmp_path, ARGPARSE, args.replace(", 8", ", '8'").replace("0.1", "'0.1'").replace("='0.1'", "=0.1"))
    assert with_params(spec, {"learning_rate": "3e-4"}).train.args == becomes


def test_a_parameter_may_be_a_variable_or_an_override_of_hydra(tmp_path: Path) -> None:
    spec = with_params(job(tmp_path, ARGPARSE, more="envs: {LR: '1'}\n"), {"LR": "2"})
    assert (spec.envs, spec.train.args) == ({"LR": "2"}, ())
    hydra = job(tmp_path, "@hydra.main(config_name='c')\ndef main(cfg): ...\n")
    assert with_params(hydra, {"model.width": "8"}).train.args == ("model.width=8",)


def test_unknown_argument_is_refused_and_an_uncertain_one_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(SpecInvalid, match="no argument --learnin-rate") as refused:
        with_params(job(tmp_path, ARGPARSE), {"learnin-rate": "1"})
    assert refused.value.hint == "did you mean learning-rate?"
    with pytest.raises(SpecInvalid) as refused:
        with_params(job(tmp_path, ARGPARSE), {"gamma": "1"})
    assert refused.value.hint == "its arguments are --learning-rate, --width, -r"
    for script in ("LightningCLI(Net)", "def main(gamma: float): ...", f"import options\n{ARGPARSE}"):
        (tmp_path / "options.py").write_text('add("--gamma")')
        assert with_params(job(tmp_path, script), {"gamma": "1"}).train.args == ("--gamma", "1")


def test_a_command_takes_parameters_by_its_variables_alone(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("run: python train.py --lr $LR\nenvs: {LR: '1'}\n")
    assert with_params(load_spec(path), {"LR": "2"}).envs == {"LR": "2"}
    with pytest.raises(SpecInvalid, match="the job runs a command") as refused:
        with_params(load_spec(path), {"lr": "2"})
    assert "use $lr in the command" in str(refused.value.hint)


def test_the_job_of_a_trial_has_its_share_and_the_time_that_is_left(tmp_path: Path) -> None:
    spec = job(tmp_path, ARGPARSE, more="budget: {max_usd: 99, warn_at: 0.5}\nmax_duration: 30h\n")
    hours = timedelta(hours=1)
    trial = trial_spec(spec, "sweep-1", Decimal(4), work=2 * hours, time_left=20 * hours)
    assert (trial.name, trial.budget.max_usd, trial.budget.warn_at) == ("sweep-1", Decimal(4), Decimal("0.5"))
    assert (trial.policy.deadline, trial.policy.expected_work) == (20 * hours, 2 * hours)
    assert trial.max_duration == 20 * hours
    assert RunSpec.from_dict(trial.to_dict()) == trial
    spot = spec.model_copy(update={"resources": spec.resources.model_copy(update={"spot_policy": "spot"})})
    assert trial_spec(spot, "sweep-1", Decimal(4), time_left=20 * hours).policy.deadline is None
