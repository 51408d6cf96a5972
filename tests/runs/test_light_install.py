"""spotrun without any extra: what can be imported, and what each verb says of what it lacks."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from spotrun.errors import NotInstalled
from tests.support.light import STORES, furnish
from tests.support.repository import ROOT

NEEDS_AN_EXTRA = (
    *(
        "training/",
        "lightning/",
        "loop/",
        "transformers/",
        "checkpoint/snapshot.py",
        "checkpoint/staging.py",
        "checkpoint/accelerator.py",
    ),
    "forecast/",
    *("sweep/rungs.py", "sweep/attending.py", "sweep/starting.py", "sweep/shown.py", "sweep/report.py"),
    *("metrics/figures.py", "metrics/telemetry.py", "metrics/endpoint.py", "metrics/watched_runs.py"),
    *("container/ecr.py", "container/artifact_registry.py"),
    *("store/s3", "store/http.py", "store/gcs.py", "clouds/aws/", "clouds/gcp/"),
    *("secrets/parameter_store.py", "secrets/secret_manager.py"),
)
"""Where packages of an extra may be imported at module level. Not all of it does."""
LIGHT_ALL_THE_SAME = (
    *("clouds/aws/cloud.py", "clouds/aws/notices.py", "clouds/gcp/cloud.py", "clouds/gcp/notices.py"),
    *("lightning/factory.py", "lightning/__init__.py", "loop/__init__.py", "transformers/__init__.py"),
)
"""Every reader of a job imports the first four, and every Lightning script the others."""


@pytest.fixture(scope="module")
def without_extras(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("light")
    furnish(folder)
    command = [sys.executable, "-m", "tests.support.light", str(folder)]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_nothing_but_what_an_extra_is_for_imports_its_packages(without_extras: Any) -> None:
    missing = without_extras["missing"]
    assert {place: name for place, name in missing.items() if not place.startswith(NEEDS_AN_EXTRA)} == {}
    assert not missing.keys() & set(LIGHT_ALL_THE_SAME)
    assert {name.partition(".")[0] for name in missing.values()} >= {"torch", "numpy", "botocore"}, "absent they are"


def test_no_verb_ends_in_a_traceback(without_extras: Any) -> None:
    for words, code, said in without_extras["calls"]:
        assert code != "traceback", f"{words}\n{said}"
        assert "Traceback" not in said, words


def test_missing_package_is_reported_by_one_command_to_type(without_extras: Any) -> None:
    lacking = [call for call in without_extras["calls"] if "needs the Python package" in call[2]]
    for words, code, said in lacking:
        hint = said.partition("  try: ")[2]
        assert " install " in hint, words
        assert "install spotrun" not in hint
        assert "install 'spotrun" not in hint, f"{words}: a package of that name is not ours"
        assert code == NotInstalled.exit_code, words
    lacked = {words[0] for words, *_ in lacking}
    verbs = "bill checkpoints doctor launch metrics offers plan reap simulate spans status"
    assert lacked >= set(verbs.split())
    for store in STORES:
        assert any(store in words for words, *_ in lacking)


def test_a_script_that_needs_torch_is_refused_before_anything_starts(without_extras: Any) -> None:
    said = {" ".join(words): (code, said) for words, code, said in without_extras["calls"]}
    for call in ("launch script.yaml -y", "launch train.py -y", "verify-resume train.py", "verify-resume script.yaml"):
        code, words = said[call]
        assert "error: train.py imports torch, which is not installed for" in words, call
        assert code == NotInstalled.exit_code


def test_the_doctor_of_a_machine_that_only_launches_warns(without_extras: Any) -> None:
    (code, said) = next((code, said) for words, code, said in without_extras["calls"] if words == ["doctor"])
    assert code == 0, said
    assert "warned  lightning: not installed" in said
