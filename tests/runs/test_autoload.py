"""What a program on an instance draws that seeds nothing: the same each time, and other programs other numbers."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import textwrap
import tomllib
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import pytest

import spotrun
from spotrun.agent.machine import seeding
from spotrun.autoload import FOLDER, SEED_VARIABLE
from spotrun.trainer_link import AGENT
from tests.support.repository import ROOT

DRAWS = """
import random
first = random.random()
import numpy, torch
print(first, random.random(), numpy.random.rand(), torch.rand(1).item(), numpy.random.mtrand.rand())
"""
PURE = "import random; print(random.random())"


DRAWS_AND_LOADS = (
    DRAWS
    + """
class Drawn(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, n):
        return torch.tensor([random.random(), numpy.random.rand(), torch.rand(1).item()], dtype=torch.float64)
print(*[x for batch in torch.utils.data.DataLoader(Drawn(), 1, num_workers=2) for x in batch[0].tolist()])
"""
)


def variables(run: str = "run", given: dict[str, str] | None = None, **environment: str) -> dict[str, str]:
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment = {**inherited, **(given or {}), **environment}
    return environment | seeding.variables(environment, given or {}, run, datetime(2026, 1, 31, 12, tzinfo=UTC))


def said(
    folder: Path, code: str, *arguments: str, name: str = "script.py", flags: tuple[str, ...] = (), **options
) -> str:
    environment = options.pop("environment", None) or variables()
    (folder / name).write_text(textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, *flags, name, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def drawn_twice(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """What a program draws and what its workers draw, each time that it is run."""
    folder = tmp_path_factory.mktemp("draws")
    return [said(folder, DRAWS_AND_LOADS).splitlines() for _ in range(2)]


def test_generators_of_a_program_that_seeds_nothing_are_those_of_the_run(drawn_twice: list[list[str]]) -> None:
    once, again = (drawn for drawn, _ in drawn_twice)
    assert len(set(once.split())) == 5
    assert again == once


def test_another_run_has_other_generators(tmp_path: Path) -> None:
    code = "import random, numpy\nprint(random.random())\nprint(numpy.random.rand())"
    one, other = (said(tmp_path, code, environment=variables(run)).splitlines() for run in ("run", "another run"))
    assert not {*one} & {*other}
    assert said(tmp_path, code).splitlines() == one


@pytest.mark.nightly
def test_another_run_has_another_generator_of_torch(tmp_path: Path) -> None:
    once = said(tmp_path, DRAWS)
    assert said(tmp_path, DRAWS, environment=variables("another run")) != once


def test_a_program_that_seeds_itself_has_its_own_numbers(tmp_path: Path) -> None:
    code = "import random, numpy\nrandom.seed(1); numpy.random.seed(1)\nprint(random.random(), numpy.random.rand())"
    without = said(tmp_path, code, environment={"PATH": os.environ["PATH"]})
    assert said(tmp_path, code) == without
    assert said(tmp_path, f"import torch, random, numpy\n{code}\n") == without


def test_sets_of_texts_have_one_order(tmp_path: Path) -> None:
    code = "print(list(set('a vocabulary over a set of words'.split())))"
    assert len({said(tmp_path, code) for _ in range(3)}) == 1
    assert len({said(tmp_path, code, environment=variables(run)) for run in "abcdef"}) > 1


def test_programs_and_arguments_of_a_run_differ_and_instances_do_not(tmp_path: Path) -> None:
    shards = [said(tmp_path, PURE, f"--shard={n}") for n in (0, 1, 0)]
    assert shards[0] == shards[2] != shards[1]
    assert said(tmp_path, PURE, name="other.py") != said(tmp_path, PURE)
    seen = set()
    for instance in ("i-1", "i-2"):
        (tmp_path / instance / "work").mkdir(parents=True)
        environment = variables(SPOTRUN_INSTANCE_DIR=str(tmp_path / instance))
        seen.add(said(tmp_path / instance / "work", PURE, f"{tmp_path}/{instance}/work/x", environment=environment))
    assert len(seen) == 1


def test_ranks_that_were_started_by_a_path_draw_what_the_first_does(tmp_path: Path) -> None:
    code = """
        import random, subprocess, sys, os
        print(random.random(), flush=True)
        if "RANK" not in os.environ:
            command = [sys.executable, "-u", os.path.abspath(sys.argv[0])]
            subprocess.run(command, env=os.environ | {"RANK": "1"})
    """
    first, second = said(tmp_path, code).split()
    assert first == second


def test_forked_processes_draw_the_same_each_time_and_each_its_own(tmp_path: Path) -> None:
    code = """
        import os, random, sys
        for _ in range(3):
            if (pid := os.fork()) == 0:
                print(random.random(), flush=True)
                if os.fork() == 0:
                    print(random.random(), flush=True)
                    os._exit(0)
                os.wait()
                os._exit(0)
            os.waitpid(pid, 0)
        print(random.random())
    """
    once = said(tmp_path, code)
    assert len(set(once.split())) == 7
    assert said(tmp_path, code) == once


def test_processes_that_import_numpy_after_a_fork_draw_each_its_own(tmp_path: Path) -> None:
    code = """
        import os
        for _ in range(2):
            if os.fork() == 0:
                import numpy
                print(numpy.random.rand(), flush=True)
                os._exit(0)
            os.wait()
    """
    once = said(tmp_path, code)
    assert len(set(once.split())) == 2
    assert said(tmp_path, code) == once


def test_workers_that_load_data_draw_the_same_each_time_and_each_its_own(drawn_twice: list[list[str]]) -> None:
    once, again = (loaded for _, loaded in drawn_twice)
    assert len(set(once.split())) == 12, once
    assert again == once


def test_spawned_processes_have_numbers_of_their_own(tmp_path: Path) -> None:
    code = """
        import multiprocessing, random
        def draw(queue):
            queue.put(random.random())
        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            queue = context.Queue()
            for _ in range(2):
                process = context.Process(target=draw, args=(queue,))
                process.start()
                process.join()
            print(queue.get(), queue.get())
    """
    assert len(set(said(tmp_path, code).split())) == 2


@pytest.mark.parametrize("flags", [("-I",), ("-E",), ("-S",)])
def test_python_in_isolated_mode_loads_nothing_of_spotrun(tmp_path: Path, flags: tuple[str, ...]) -> None:
    code = f"import sys\n{PURE}\nprint(any('spotrun' in str(each) for each in sys.meta_path))"
    first, second = (said(tmp_path, code, flags=flags) for _ in range(2))
    assert first != second


def test_without_the_variable_nothing_happens(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(FOLDER)}
    code = "import sys; print([type(each).__name__ for each in sys.meta_path], 'random' in sys.modules)"
    assert "Acts" not in said(tmp_path, code, environment=environment)
    assert said(tmp_path, PURE, environment=environment) != said(tmp_path, PURE, environment=environment)


def test_it_imports_nothing_that_the_program_did_not(tmp_path: Path) -> None:
    code = "import sys; print({'random', 'numpy', 'torch', 'hashlib', 'spotrun'} & set(sys.modules) or 'nothing')"
    environment = variables()
    assert said(tmp_path, code, environment=environment) == "nothing\n"


# --- it finds what makes a training survive -------------------------------------------------------------------------


def bare(folder: Path) -> Path:
    """An interpreter that has no package at all."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "bare"], check=True)
    return folder / "bare" / "bin" / "python"


def of_a_training(**more: str) -> dict[str, str]:
    return variables(**{AGENT: "/nowhere"}, **more)


def test_a_python_without_any_package_finds_the_agent_s_spotrun(tmp_path: Path) -> None:
    code = """
        import importlib.metadata, sys
        import spotrun, spotrun.trainer_link
        from importlib.metadata import distributions, entry_points, version
        assert "msgspec" not in sys.modules
        print(spotrun.__file__, version("spotrun"))
        for group in ("pytorch_lightning.callbacks_factory", "lightning.pytorch.callbacks_factory"):
            print(*entry_points(group=group))
        print(list(distributions(path=["elsewhere"])), [each.files for each in distributions(name="spotrun")])
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(code))
    done = subprocess.run(
        [bare(tmp_path), "script.py"], cwd=tmp_path, env=of_a_training(), capture_output=True, text=True
    )
    where, first, second, last = done.stdout.splitlines()
    assert where == f"{spotrun.__file__} {spotrun.__version__}", done.stderr
    assert "for_pytorch_lightning" in first
    assert "for_lightning" in second
    assert last == "[] [None]"


def test_entry_points_are_found_once_and_are_those_of_the_package(tmp_path: Path) -> None:
    code = """
        from importlib.metadata import entry_points
        for kind in ("pytorch_lightning", "lightning.pytorch"):
            (only,) = entry_points(group=f"{kind}.callbacks_factory")
            print(only.group, only.name, only.value)
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    told = [f"{group} {name} {value}" for group, each in project.items() for name, value in each.items()]
    assert said(tmp_path, code, environment=of_a_training()).splitlines() == told
    assert set(said(tmp_path, code, environment=variables()).splitlines()) == set(told), "as installed"


def test_install_function_is_called_with_its_module_after_the_import(tmp_path: Path) -> None:
    (tmp_path / "hydra" / "core").mkdir(parents=True)
    for name in ("", "core/"):
        (tmp_path / "hydra" / name / "__init__.py").touch()
    (tmp_path / "hydra" / "core" / "utils.py").write_text(
        "class OmegaConf:\n    @staticmethod\n    def register_new_resolver(name, resolve, **options):\n"
        "        print(name, resolve('%Y-%m-%d'), options)\n"
        "def setup_globals(): print('its own')\n"
    )
    code = "from hydra.core.utils import setup_globals\nsetup_globals()"
    assert said(tmp_path, code, environment=of_a_training()).splitlines() == [
        "its own",
        "now 2026-01-31 {'use_cache': True, 'replace': True}",
        "spotrun: Hydra's ${now:…} is the time of the run's first start, so that folders keep their names",
    ]
    assert said(tmp_path, code, environment=variables()) == "its own\n"
    (tmp_path / "hydra" / "core" / "utils.py").write_text("VERSION = 9\n")
    broken = said(tmp_path, "import hydra.core.utils as u; print(u.VERSION)", environment=of_a_training())
    assert broken.startswith("9\nspotrun: hydra.core.utils is used without spotrun's hooks: AttributeError")


ASKS_FOR_HOOKS = """
    from accelerate import Accelerator
    from lightning_fabric import Fabric
    from transformers import Trainer
    print(*(hasattr(Fabric.setup, "is_watched_by_spotrun"), hasattr(Accelerator.prepare, "is_watched_by_spotrun")))
    print(hasattr(Trainer.train, "asks_its_agent"))
"""


def test_script_that_imports_a_framework_gets_its_hooks(tmp_path: Path) -> None:
    told = said(tmp_path, ASKS_FOR_HOOKS, environment=of_a_training())
    assert told.splitlines()[:2] == ["True True", "True"]
    assert told.count("spotrun: ") == 1, "of those that a training by another one imports nothing is said"
    assert "a training by a Trainer of transformers is saved and resumed" in told


@pytest.mark.nightly
def test_script_that_is_no_training_gets_no_hooks(tmp_path: Path) -> None:
    assert said(tmp_path, ASKS_FOR_HOOKS, environment=variables()).splitlines()[:2] == ["False False", "False"]


def test_each_install_function_exists() -> None:
    for function in sitecustomize().INSTALLS.values():
        place, _, name = function.partition(":")
        assert callable(getattr(importlib.import_module(place), name))


def test_too_old_python_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = sitecustomize()
    monkeypatch.setattr(module, "OLDEST", (9, 1))
    module.loading()["pytorch_lightning"](sys)
    assert "spotrun needs 9.1 or later" in capsys.readouterr().err


def sitecustomize() -> ModuleType:
    spec = importlib.util.spec_from_file_location("not_sitecustomize", FOLDER / "sitecustomize.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- it breaks nothing ------------------------------------------------------------------------------------------------


def hiding(folder: Path, code: str) -> dict[str, str]:
    """A `sitecustomize` that ours hides."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(textwrap.dedent(code))
    return variables(PYTHONPATH=str(folder / "site"))


def test_the_sitecustomize_that_it_hides_is_run_as_itself(tmp_path: Path) -> None:
    environment = hiding(tmp_path, "import builtins, sys\nbuiltins.met = __name__, __file__\nTHERE = 1")
    code = "import sitecustomize\nprint(met, sitecustomize.THERE)\n" + PURE
    first = said(tmp_path, code, environment=environment)
    assert first.startswith(f"('sitecustomize', '{tmp_path}/site/sitecustomize.py') 1\n")
    assert said(tmp_path, code, environment=environment) == first


def test_an_error_of_the_hidden_one_is_reported_as_python_does(tmp_path: Path) -> None:
    environment = hiding(tmp_path, "raise ValueError('of its own')")
    alone = {**environment, "PYTHONPATH": str(tmp_path / "site")}
    assert said(tmp_path, "print(1)", environment=environment) == said(tmp_path, "print(1)", environment=alone)


def test_a_file_of_the_program_may_be_called_random(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("def choose(): return 'mine'\n")
    assert said(tmp_path, "import random; print(random.choose())") == "mine\n"


def test_failing_hook_prints_one_line_and_the_program_goes_on(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("def manual_seed(seed): raise RuntimeError('not today')\nVERSION = 3\n")
    seen = said(tmp_path, "import torch; print(torch.VERSION)")
    assert sorted(seen.splitlines()) == ["3", "spotrun: random generators are not seeded: RuntimeError: not today"]


def test_source_and_files_of_a_hooked_module_can_be_read(tmp_path: Path) -> None:
    code = """
        import importlib, importlib.util, inspect, pickle, pkgutil, random
        assert importlib.util.find_spec("numpy.random").loader is not None
        import numpy.random
        for module in (random, numpy.random):
            assert "def" in inspect.getsource(module)
            loader = module.__spec__.loader
            assert type(loader).__name__ == "SourceFileLoader" and "exec_module" not in vars(loader)
        importlib.reload(random)
        print("fine")
    """
    assert said(tmp_path, code) == "fine\n"


def test_modules_of_an_archive_share_a_loader(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "lib.zip", "w") as archive:
        archive.writestr("torch.py", "SEEDS = []\nmanual_seed = SEEDS.append\n")
        archive.writestr("other.py", "VERSION = 3\n")
    code = """
        import importlib.util
        assert importlib.util.find_spec("torch")
        import other, torch, torch as again
        print(other.VERSION, len(torch.SEEDS))
    """
    assert said(tmp_path, code, environment=variables(PYTHONPATH=str(tmp_path / "lib.zip"))) == "3 1\n"


def test_old_pythons_can_read_it() -> None:
    import ast

    ast.parse((FOLDER / "sitecustomize.py").read_text(), feature_version=(3, 7))


# --- whose seed wins --------------------------------------------------------------------------------------------------


def test_the_job_s_own_seeds_win() -> None:
    assert variables(given={"PYTHONHASHSEED": "0"})["PYTHONHASHSEED"] == "0"
    assert variables(given={"PYTHONHASHSEED": "random"})["PYTHONHASHSEED"] == "random"
    ours, theirs = variables(), variables(given={"PL_GLOBAL_SEED": "7"})
    assert theirs[SEED_VARIABLE] == "7" != ours[SEED_VARIABLE]
    assert variables("another", given={"PL_GLOBAL_SEED": "7"})[SEED_VARIABLE] == "7"
    assert variables(PYTHONHASHSEED="5")["PYTHONHASHSEED"] == ours["PYTHONHASHSEED"], "of the shell that launched"
    assert 0 <= int(ours["PYTHONHASHSEED"]) < 1 << 32


def test_a_path_of_the_job_s_own_stays() -> None:
    assert variables(PYTHONPATH="lib:src")["PYTHONPATH"] == f"{FOLDER}:lib:src"
    assert variables()["PYTHONPATH"] == str(FOLDER)
