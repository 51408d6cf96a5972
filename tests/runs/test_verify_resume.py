"""`spotrun verify-resume`: what it says of an exact script, and of scripts that no resume can make exact."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from spotrun.errors import SpecInvalid
from spotrun.exactness.difference import NAMED_MAX, Difference, DifferenceKind, Differences, gathered
from spotrun.exactness.scope import ComparedCount, NotCompared
from spotrun.exactness.trace_file import TraceFile
from spotrun.run.events import Uncarried
from spotrun.verify.kills import KillPlan, PlannedKill, checkpoint_every, kill_steps, planned
from spotrun.verify.rehearsal import RehearsalProgress, failure
from spotrun.verify.report import as_json, describe, progress_line, text
from spotrun.verify.verification import Digests, Verification
from tests.support.called_spotrun import Spotrun
from tests.support.eventually import eventually
from tests.support.repository import JOBS
from tests.support.sandbox import environment_of, processes_now

NOT_IDENTICAL = 9
JSON_KEYS = {
    "identical",
    "steps",
    "kills",
    "batches_redone",
    "resumes_from_checkpoint",
    "first_difference",
    "other_differences",
    "compared",
    "not_compared",
    "not_carried",
    "written_outside",
    "straight",
    "interrupted",
    "straight_s",
    "interrupted_s",
    "seed",
    "worlds",
    "folder",
}
DIFFERENCE_KEYS = {
    *("kind", "straight", "interrupted", "likely_cause", "resumed", "trained_before", "epoch", "batch", "step", "name"),
    *("where", "rank"),
}
"""What programs may rely on."""


@pytest.fixture(autouse=True)
def _one_thread_and_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def verify(job: Path, *words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """`spotrun verify-resume JOB …`, which must end with `code`."""
    command = [sys.executable, "-m", "spotrun", "verify-resume", str(job), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def verify_json(job: Path, *words: object, code: int = 0) -> dict[str, Any]:
    seen = json.loads(verify(job, "--json", *words, code=code).stdout)
    assert isinstance(seen, dict)
    return seen


def left_over(folder: Path) -> list[object]:
    """Folders of verifications, and processes that trace into them."""
    return [*folder.glob("spotrun-verify-*"), *left_running(folder)]


def left_running(folder: Path) -> list[int]:
    return [pid for pid in processes_now() if str(folder) in environment_of(pid).get("SPOTRUN_TRACE", "")]


def test_an_exact_script_is_bit_identical_whatever_is_killed(tmp_path: Path) -> None:
    seen = verify_json(JOBS / "quick.py", "--at", "14,30", "--", "--epochs", 3, "--step-s", 0)
    assert seen.keys() == JSON_KEYS
    assert seen["identical"] is True
    assert seen["first_difference"] is None
    assert seen["other_differences"] == {"count": 0, "counts": {}, "named": []}
    assert seen["not_carried"] == []
    assert seen["straight"] == seen["interrupted"]
    assert {len(digest) for digest in seen["straight"].values()} == {64}
    assert seen["steps"] == 36
    assert [(kill["step"], kill["victim"]) for kill in seen["kills"]] == [(14, "instance"), (30, "trainer")]
    assert all(0 < kill["resumed_from"] < kill["step"] for kill in seen["kills"])
    assert seen["resumes_from_checkpoint"] == 2
    assert seen["batches_redone"] == sum(kill["step"] - kill["resumed_from"] for kill in seen["kills"])
    assert seen["straight_s"] > 0
    assert seen["interrupted_s"] > 0
    assert left_over(tmp_path) == []


def test_a_script_with_several_fits_is_killed_in_each_of_them() -> None:
    seen = verify_json(JOBS / "folds.py", "--at", "10,20", "--", "--folds", 2)
    assert seen["first_difference"] is None
    assert seen["steps"] == 24, "12 in each"
    assert [kill["step"] for kill in seen["kills"]] == [10, 20]
    assert seen["kills"][1]["resumed_from"] >= 12
    assert seen["batches_redone"] == sum(kill["step"] - kill["resumed_from"] for kill in seen["kills"])


@pytest.mark.nightly
def test_a_job_in_yaml_is_verified_with_its_own_arguments_and_left_to_look_at(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        f"workdir: {JOBS}\ntrain: {{script: quick.py, args: [--epochs, '1', --step-s, '0']}}\n"
        "resources: {accelerators: 'H100:8'}\nbudget: {max_usd: 0.01}\nlocal: {time_scale: 5}\n"
    )
    told = verify(job, "--kills", 1, "--keep").stdout
    assert told.startswith("bit-identical: 12 steps, killed 1 time,")
    (kept,) = (Path(line.removeprefix("kept: ")) for line in told.splitlines() if line.startswith("kept: "))
    assert TraceFile(kept / "uninterrupted.trace").read().steps == 12
    assert len([folder for folder in (kept / "runs").iterdir() if folder.name != "keys"]) == 2
    assert left_running(tmp_path) == []


@pytest.mark.nightly
def test_a_script_that_owns_its_loop_is_compared_alike(tmp_path: Path) -> None:
    found = verify_json(_loop_job(tmp_path), "--kills", 2)
    assert found["identical"]
    assert found["steps"] == 28
    assert "metrics" in {one["what"] for one in found["compared"]}


def test_loop_that_uses_a_local_variable_differs_and_names_it(tmp_path: Path) -> None:
    found = verify_json(_loop_job(tmp_path, "--local"), "--kills", 1, code=NOT_IDENTICAL)
    assert [one["place"] for one in found["not_carried"]] == ["main().total"]


def _loop_job(folder: Path, *args: str) -> Path:
    """A job whose script changes a local variable in its loop, which only `exact: off` trains."""
    job = folder / "job.yaml"
    train = {"script": "own_loop.py", "args": list(args)}
    job.write_text(json.dumps({"workdir": str(JOBS), "train": train, "checkpoint": {"exact": "off"}}))
    return job


def test_a_script_that_ran_straight_is_not_told_to_train_to_its_end_first() -> None:
    straight = failure("uninterrupted", [], "failed", "exit code 1")
    killed = failure("interrupted", [PlannedKill(step=1234, victim="trainer")], "failed", "FileExistsError: out")
    assert straight.message == "the uninterrupted training failed: exit code 1"
    assert "trains to its end" in str(straight.hint)
    assert str(killed).startswith(
        "the uninterrupted training finished, but the interrupted one failed after a kill "
        "(of the trainer, at step 1,234): FileExistsError: out\n"
        "  try: check what only a restarted script finds"
    )


def test_refused_training_is_reported_with_its_own_advice_alone() -> None:
    told = "a tuner callback runs trainings of its own inside fit(); try: run the tuner once"
    refused = failure("uninterrupted", [], "failed", told)
    assert str(refused) == (
        "spotrun refuses the uninterrupted training: a tuner callback runs trainings of its own inside fit()\n"
        "  try: run the tuner once"
    )
    later = failure("interrupted", [PlannedKill(step=7, victim="trainer")], "failed", told)
    assert later.message.startswith("spotrun refuses the interrupted training after a kill (of the trainer, at step 7)")


@pytest.mark.nightly
def test_a_loss_from_an_unseeded_source_is_found_and_named() -> None:
    seen = verify_json(JOBS / "wayward.py", "--kills", 1, "--", "--how", "entropy", code=NOT_IDENTICAL)
    found = seen["first_difference"]
    assert seen.keys() == JSON_KEYS
    assert found.keys() == DIFFERENCE_KEYS
    assert seen["identical"] is False
    assert (found["kind"], found["step"], found["resumed"]) == ("loss", 1, False)
    assert (found["epoch"], found["batch"]) == (1, 1), "as in all that spotrun prints"
    others = seen["other_differences"]
    assert others["count"] == sum(others["counts"].values()) > others["counts"]["weights"] > 0
    assert (others["named"][0]["kind"], others["named"][0]["step"]) == ("loss", 2)
    assert others["named"][0].keys() == DIFFERENCE_KEYS - {"likely_cause"}
    assert found["straight"] != found["interrupted"]
    assert "random.SystemRandom" in found["likely_cause"]
    assert "before any interruption" in found["likely_cause"]


@pytest.mark.nightly
def test_an_order_from_the_clock_is_found_and_named_for_people() -> None:
    done = verify(JOBS / "wayward.py", "--kills", 1, "--", "--how", "order", code=NOT_IDENTICAL)
    assert done.stdout.startswith("not identical: the first difference is in the sample ids at epoch 1, batch 1")
    assert "likely cause: the data order is not a function of seed and epoch" in done.stdout
    assert "  also different: the content of the samples at epoch 1, batch 1 (step 1); " in done.stdout
    assert " batches with different samples, " in done.stdout
    assert "error: the two trainings are not the same" in done.stderr
    assert "Traceback" not in done.stderr


def test_state_that_no_checkpoint_holds_differs_only_after_a_resume() -> None:
    seen = verify_json(JOBS / "wayward.py", "--at", 16, "--", "--how", "counter", code=NOT_IDENTICAL)
    found = seen["first_difference"]
    assert seen.keys() == JSON_KEYS
    assert found.keys() == DIFFERENCE_KEYS
    assert (found["kind"], found["resumed"]) == ("loss", True)
    assert found["step"] == seen["kills"][0]["resumed_from"] + 1
    assert "state of the script that no checkpoint holds" in found["likely_cause"]
    assert "kernels" not in found["likely_cause"]
    (named,) = seen["not_carried"]
    assert named["place"] == "__main__.seen"
    assert named["what"] in found["likely_cause"]


def test_files_outside_of_the_work_folder_are_named_with_a_difference(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    seen = verify_json(
        JOBS / "wayward.py", "--at", 16, "--", "--how", "outside", "--outside", outside, code=NOT_IDENTICAL
    )
    one, other = seen["written_outside"]
    assert one.startswith(f"{outside}.")
    assert other.startswith(f"{outside}.")
    assert seen["first_difference"]["likely_cause"].endswith(f"and the training wrote {one}, {other}")


def test_training_without_a_step_is_reported_as_such() -> None:
    done = verify(JOBS / "wayward.py", "--", "--how", "counter", "--epochs", 0, code=1)
    assert "the uninterrupted training finished without a step" in done.stderr
    assert done.stderr.count("try:") == 1


def test_a_step_that_the_training_does_not_have_is_refused() -> None:
    assert "has only steps 1 to 24" in verify(JOBS / "wayward.py", "--at", 25, "--", "--how", "counter", code=2).stderr


def test_a_script_that_fails_is_no_difference(tmp_path: Path) -> None:
    assert "planted failure" in verify(JOBS / "wayward.py", "--", "--how", "crash", code=4).stderr
    assert left_over(tmp_path) == []


def test_script_without_a_trainer_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "hello.py"
    script.write_text("print('hello')")
    assert "no Trainer of Lightning or transformers and no Loop" in verify(script, code=1).stderr


def test_a_command_is_compared_by_the_files_that_it_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTRUN_REST_FLOOR_S", "0.2")
    (tmp_path / "count.sh").write_text(
        "n=$(cat out/n || echo 0)\nwhile [ $n -lt 5 ]; do n=$((n + 1)); echo $n > out/n; sleep 1; done\n"
        "echo $RANDOM > out/drawn\n"
    )
    job = tmp_path / "job.yaml"
    job.write_text("train: {run: mkdir -p out && bash count.sh, state: [out/]}\n")
    seen = verify_json(job, "--kills", 1)
    assert seen["identical"] is True
    assert (seen["deterministic"], seen["kills"], seen["resumes_from_checkpoint"]) == (False, 1, 1)
    assert seen["compared"] == [{"what": "files", "count": 1}]
    assert [one["name"] for one in seen["not_compared"]] == ["file out/drawn"]
    assert "cannot count the steps of a command" in verify(job, "--at", "3", code=2).stderr
    assert left_over(tmp_path) == []


def test_command_that_saves_nothing_before_its_end_is_not_called_identical(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("train: {run: mkdir -p out && echo 1 > out/n, state: [out/]}\n")
    done = verify(job, "--kills", 1, code=1)
    assert done.stdout.startswith("not compared: ")
    assert "error: no resume could be compared" in done.stderr


def test_a_training_that_lasts_too_long_ends_with_a_letter_and_leaves_nothing(tmp_path: Path) -> None:
    done = verify(JOBS / "quick.py", "--within", "4s", "--", "--epochs", 1000, code=1)
    assert "after 4s, and had not finished" in done.stderr
    assert "--within" in done.stderr
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_that_is_interrupted_leaves_nothing_running_and_nothing_on_disk(tmp_path: Path, number: int) -> None:
    command = [sys.executable, "-m", "spotrun", "verify-resume", str(JOBS / "quick.py"), "--", "--epochs", "1000"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    eventually(lambda: any(tmp_path.glob("*/uninterrupted.trace")), within_s=60)
    child.send_signal(number)
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 128 + number, output
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("words", [("--at", "3,x"), ("--within", "soon")])
def test_flags_that_cannot_be_read_are_refused_before_anything_starts(words: tuple[str, str], spotrun: Spotrun) -> None:
    said = spotrun("verify-resume", JOBS / "quick.py", *words)
    assert (said.code, words[0] in said.err) == (2, True)


def test_kills_are_drawn_from_the_seed_within_the_training() -> None:
    drawn = [kill_steps(120, plan(seed=seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(len(set(steps)) == 4 and min(steps) >= 14 and max(steps) <= 120 for steps in drawn)


def test_a_short_training_is_killed_as_often_as_it_has_steps() -> None:
    assert kill_steps(3, plan(kills=10)) == [2, 3]
    assert kill_steps(1, plan(kills=10)) == [1]


def test_named_steps_are_taken_in_order_and_once() -> None:
    assert kill_steps(50, plan(at=(40, 7, 40))) == [7, 40]
    with pytest.raises(SpecInvalid, match="0,51"):
        kill_steps(50, plan(at=(0, 51, 3)))


def test_one_kill_takes_the_instance_soon_after_the_best_epoch() -> None:
    for seed in range(20):
        kills = planned(120, [20, 40, 80, 120], plan(seed=seed))
        assert len(kills) == 4
        assert [kill.step for kill in kills] == sorted({kill.step for kill in kills})
        (after,) = (kill for kill in kills if kill.step == 90)
        assert after.victim == "instance"


def test_the_kill_after_the_best_epoch_comes_while_there_are_steps() -> None:
    assert [(kill.step, kill.victim) for kill in planned(24, [20], plan(kills=1))] == [(24, "instance")]
    assert [kill.step for kill in planned(24, [24], plan(kills=1))] == kill_steps(24, plan(kills=1))
    assert [kill.step for kill in planned(50, [20], plan(at=(7, 40)))] == [7, 40]


def test_checkpoints_are_seldom_enough_to_lose_steps_and_often_enough_to_lose_few() -> None:
    rng = random.Random(5)
    for steps in (1, 2, 40, 41, *(rng.randrange(1, 10**6) for _ in range(50))):
        assert 2 <= checkpoint_every(steps).count <= max(2, min(25, steps / 20))


@pytest.mark.parametrize(
    ("kind", "straight", "interrupted", "told"),
    [
        (
            DifferenceKind.LOSS,
            (0.5).hex(),
            (0.25).hex(),
            "the loss at epoch 2, batch 1 (step 13): 0.5 uninterrupted, 0.25 interrupted",
        ),
        (DifferenceKind.LOSS, "None", (0.25).hex(), "None uninterrupted, 0.25 interrupted"),
        (DifferenceKind.LR, (0.1).hex(), f"{(0.2).hex()}, {(0.3).hex()}; ", "0.1 uninterrupted, 0.2, 0.3; "),
        (
            DifferenceKind.SAMPLES,
            "[1, 2]",
            "[2, 1]",
            "the sample ids at epoch 2, batch 1 (step 13): [1, 2] uninterrupted, [2, 1] inter",
        ),
        (
            DifferenceKind.DATA,
            "a" * 64,
            "b" * 64,
            "sha256 aaaaaaaaaaaa… uninterrupted, sha256 bbbbbbbbbbbb… interrupted",
        ),
        (
            DifferenceKind.VALIDATION,
            (0.5).hex(),
            "absent",
            "the validation: metric at epoch 2, batch 1 (step 13): 0.5 uninterrupted",
        ),
        (
            DifferenceKind.STEPS,
            "trained",
            "not trained",
            "the steps at epoch 2, batch 1 (step 13): trained uninterrupted",
        ),
    ],
)
def test_difference_is_described_in_decimal_numbers(
    kind: DifferenceKind, straight: str, interrupted: str, told: str
) -> None:
    found = Difference(kind=kind, straight=straight, interrupted=interrupted, epoch=1, batch=0, step=13)
    assert told in describe(found)


def test_differing_object_and_file_are_described_with_their_place() -> None:
    there = {"straight": "3", "interrupted": "4"}
    state = Difference(kind=DifferenceKind.STATE, name="callbacks[0].meters[3].total", rank=1, **there)
    told = (
        "the first difference is in the value at callbacks[0].meters[3].total of rank 1: 3 uninterrupted, 4 interrupted"
    )
    assert describe(state) == told
    file = Difference(kind=DifferenceKind.FILES, name="own.log", where="line 2", **there)
    assert describe(file) == "the first difference is in the file own.log (line 2): 3 uninterrupted, 4 interrupted"


def test_report_lists_what_was_compared_in_identical_trainings() -> None:
    seen = verification(
        compared=(ComparedCount("ranks", 2), ComparedCount("steps", 36), ComparedCount("files", 1)),
        not_compared=tuple(NotCompared(f"file {name}", "W&B's files name each run") for name in "abcdefg"),
    )
    lines = text(seen).splitlines()
    assert lines[0] == "bit-identical: 36 steps, killed 0 times, 2 redone"
    assert lines[1] == "  the same in: 2 processes, 1 file"
    names = "file a, file b, file c, file d, file e and 2 more (--json has all)"
    assert lines[2] == f"  not compared: {names}, as W&B's files name each run"


def test_training_that_never_resumed_is_not_called_identical() -> None:
    told = text(verification(resumes_from_checkpoint=0))
    assert told.startswith("not compared: the interrupted training has resumed from no checkpoint")


def test_state_that_the_run_named_is_shown_with_the_first_difference() -> None:
    gap = Uncarried(place="module.env", what="gymnasium.Env")
    found = gathered(Difference(kind=DifferenceKind.LOSS, straight="1", interrupted="2") for _ in range(2))
    lines = text(verification(found, not_carried=(gap,))).splitlines()
    assert lines[0].startswith("not identical: the first difference is in the loss")
    assert lines[2] == "  in no checkpoint, as the run reported: module.env (gymnasium.Env)"


def test_five_more_differences_are_named_and_the_rest_counted() -> None:
    there = {"straight": "1", "interrupted": "2"}
    losses = [Difference(kind=DifferenceKind.LOSS, epoch=0, batch=batch, step=batch + 1, **there) for batch in range(9)]
    weights = [Difference(kind=DifferenceKind.WEIGHTS, name=str(number), **there) for number in range(200)]
    seen = verification(gathered([*losses, *weights]))
    told = text(seen).splitlines()[1]
    assert told.startswith("  also different: the loss at epoch 1, batch 2 (step 2); the loss at epoch 1, batch 3")
    assert told.endswith("batch 6 (step 6); and 3 losses, 200 weights (--json names more)")
    others = as_json(seen)["other_differences"]
    assert (others["count"], others["counts"]) == (208, {"loss": 8, "weights": 200})
    assert others["named"][0]["batch"] == 2
    assert len(others["named"]) == NAMED_MAX - 1


def test_files_outside_of_the_work_folder_are_told_with_an_identical_verdict_too() -> None:
    outside = tuple(f"/results/{number}" for number in range(7))
    line = "  not compared: 7 files outside the work folder: /results/0, /results/1, /results/2, /results/3, /results/4"
    assert f"{line} and 2 more (--json has all)" in text(verification(written_outside=outside)).splitlines()


def verification(found: Differences | None = None, **changes: Any) -> Verification:
    digests = Digests(weights="a", optimizer="b", rng="c")
    seen = Verification(
        identical=found is None, steps=36, kills=(), batches_redone=2, resumes_from_checkpoint=1,
        differences=found or Differences(), likely_cause=None, compared=(), not_compared=(), not_carried=(),
        written_outside=(), straight=digests, interrupted=digests, straight_s=1, interrupted_s=2, seed=0,
    )  # fmt: skip
    return replace(seen, **changes)


def test_progress_is_one_line() -> None:
    begun = RehearsalProgress(name="straight", step=0, kills=0, kills_planned=0, elapsed_s=0.2)
    assert progress_line(begun) == "straight training, step 0"
    later = RehearsalProgress(
        name="interrupted", step=1200, kills=1, kills_planned=4, elapsed_s=61, held_up="no\x1b[2J spot"
    )
    assert progress_line(later).startswith("interrupted training, step 1,200, 1 of 4 kills, 1m01s, no")
    assert "\x1b" not in progress_line(later), "what others wrote moves no cursor"


def plan(*, kills: int = 4, at: tuple[int, ...] = (), seed: int = 0) -> KillPlan:
    return KillPlan(kills=kills, at=at, seed=seed, within=timedelta(minutes=1))
