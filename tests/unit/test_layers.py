"""
The house and its rooms: which package may import which, and where each heavy library is used.

An import goes to an earlier row of `ROWS`, never to the same or a later one. So no two packages import each other.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import spotrun
from spotrun.spec.clouds import BUILT_IN
from tests.support.features import FEATURES

ROOT = Path(spotrun.__file__).parent

ROWS = (
    "wire version",
    "errors units clock proc offering intervals trainer_link strategies autoload",
    "address instance secrets exactness",
    "spec run store",
    "account market boot container",
    "policy folder",
    "doctor",
    "clouds",
    "checkpoint runner",
    "agent training",
    "lightning hydra transformers loop",
    "report",
    "notify",
    "runs",
    " ".join(FEATURES),
    "cli",
    "__main__",
)
pytestmark = pytest.mark.exhaustive  # every file is parsed
ROW_OF = {name: number for number, names in enumerate(ROWS) for name in names.split()}
LANDMARKS_MAX = 12
"""Files directly below spotrun/."""
EDGES_MAX = 198
"""Maximum number of pairs of packages and landmarks, features left out, of which the first imports the second."""
COMMAND_LINES_MAX = 60
SHARED_BY_VERBS = {"__init__", "app", "options", "plain_help"}
"""The files of cli/ that are not verbs."""
PURE = (
    "run/",
    "account/",
    "market/",
    "policy/",
    "strategies/",
    "intervals.py",
    "exactness/comparison.py",
    "exactness/trace.py",
    *(
        f"estimate/{name}.py"
        for name in (
            *("assumptions", "bench_speeds", "cloud_prices", "costs", "list_prices"),
            *("price_lists", "prices", "published", "speeds"),
        )
    ),
    "sweep/rungs.py",
)
FORBIDDEN_TO_AGENT = {
    "lightning",
    "transformers",
    "loop",
    "training",
    "runner",
    "report",
    "notify",
    "doctor",
    "cli",
    "runs",
    *FEATURES,
}
AGENT_TAKES_ONLY = {
    "spotrun.clouds": {"spotrun.clouds.registry", "spotrun.clouds.notices"},
}
"""An agent must install and start fast. It has nothing to create, and of its cloud it needs what announces the end."""
STORY_LINES_MAX = 300
AGENT_FILES_MAX = 45
"""Files directly in agent/, its groups left out."""
BLOCKING = {
    *("asyncio", "fsspec", "http", "io", "os", "pathlib", "psutil", "random", "secrets"),
    *("shutil", "socket", "subprocess", "tenacity", "threading", "time"),
}
"""What a decision has no use for: it could not be called from a notebook with yesterday's ledger."""
ALL_THE_SAME = {("run/bounds.py", "threading")}
"""Decoders are built one at a time: two threads that build those of the same Structs end the process."""
ONLY_IN = {
    "pytorch_lightning": ("lightning/",),
    "lightning": ("lightning/",),
    "torch": (
        "lightning/",
        "transformers/",
        "loop/",
        "training/",
        "checkpoint/snapshot.py",
        "checkpoint/staging.py",
        "checkpoint/accelerator.py",
    ),
    "pydantic": ("spec/", "estimate/"),
    "yaml": ("spec/",),
    "typer": ("cli/", "runs/"),
    "rich": ("cli/", "runs/", "report/", *(f"{feature}/report.py" for feature in FEATURES)),
    "opentelemetry": ("metrics/telemetry.py", "cli/spans.py"),
    "prometheus_client": ("metrics/figures.py", "metrics/endpoint.py"),
    "pyarrow": ("bill/",),
    "optuna": ("sweep/rungs.py",),
    "boto3": ("store/s3", "clouds/aws/", "secrets/parameter_store.py", "container/ecr.py"),
    "botocore": ("store/s3", "clouds/aws/", "secrets/parameter_store.py", "container/ecr.py"),
    "google": ("store/gcs.py", "clouds/gcp/", "secrets/secret_manager.py", "container/artifact_registry.py"),
    "requests": ("clouds/gcp/", "secrets/secret_manager.py"),
    "google_crc32c": ("store/http.py", "secrets/secret_manager.py"),
}
IMPORTING = ("import_module", "__import__", "find_spec")
FILES = sorted(ROOT.rglob("*.py"))
PACKAGES = sorted(path for path in FILES if path.name == "__init__.py")
PURE_FILES = [path for path in FILES if path.relative_to(ROOT).as_posix().startswith(PURE)]


def place_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    """Its dotted name: `spotrun/run/__init__.py` is `spotrun.run`."""
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


def part_of(path: Path) -> str:
    """The landmark or package directly below spotrun/ that a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports_of(path: Path) -> tuple[tuple[int, str], ...]:
    """Line and dotted name of each import: also inside of functions, for type checkers, and by a name in a text."""
    return tuple(_imports(tree_of(path)))


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) in IMPORTING and node.args:
            name = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield node.lineno, name.value
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            if node.module.split(".")[0] == "spotrun":
                yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _called(call: ast.Call) -> str:
    """The last name of what is called."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def parts_imported_by(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of each landmark or package that a file imports from, its own left out."""
    for line, name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "spotrun" and len(parts) > 1 and parts[1] in ROW_OF and parts[1] != part_of(path):
            yield line, parts[1]


def names_a_cloud(node: ast.AST) -> bool:
    """Whether it is the name of a cloud, or a collection of nothing else."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return bool(node.elts) and all(map(names_a_cloud, node.elts))
    return isinstance(node, ast.Constant) and node.value in BUILT_IN


def questions_of_name(tree: ast.AST) -> Iterator[int]:
    """The lines that compare something with a cloud's name, match it, or look it up in a table of such names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            asked = any(map(names_a_cloud, [node.left, *node.comparators]))
        elif isinstance(node, ast.MatchValue):
            asked = names_a_cloud(node.value)
        elif isinstance(node, ast.Dict):
            keys = [key for key in node.keys if key is not None]
            asked = bool(keys) and all(map(names_a_cloud, keys))
        else:
            continue
        if asked:
            yield node.lineno


def cycle_in(graph: Mapping[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def files_imported(known: Mapping[str, Path], path: Path) -> set[str]:
    """The modules that a file imports: of `from package import name` the submodule of that name, if there is one."""
    found = {name for _, name in imports_of(path) if name in known}
    return {name for name in found if not any(other.startswith(f"{name}.") for other in found)} - {module_of(path)}


def test_an_import_goes_to_an_earlier_row() -> None:
    of_ours = {name for _, name in imports_of(ROOT / "__init__.py")} - {"__future__"}
    assert of_ours == {
        *("spotrun.loop.loop", "spotrun.loop.loop.Loop"),
        *("spotrun.version", "spotrun.version.__version__"),
    }
    inside = [path for path in FILES if part_of(path) != "__init__"]
    assert {part_of(path) for path in inside} <= {*ROW_OF}, "give each a row"
    wrong = [
        f"{path}:{line} imports {part}"
        for path in inside
        for line, part in parts_imported_by(path)
        if ROW_OF[part] >= ROW_OF[part_of(path)]
    ]
    assert not wrong, "\n".join(wrong)


def test_importing_spotrun_loads_only_its_version() -> None:
    code = "import sys, spotrun; print(*sorted(name for name in sys.modules if name.startswith(('spotrun', 'torch'))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["spotrun", "spotrun.version"]


def test_no_two_files_import_each_other_however_far_apart() -> None:
    known = {module_of(path): path for path in FILES}
    graph = {name: files_imported(known, path) for name, path in known.items()}
    assert cycle_in(graph) == []


def test_there_are_few_landmarks_and_few_ties_between_rooms() -> None:
    landmarks = [path.name for path in FILES if path.parent == ROOT]
    assert len(landmarks) <= LANDMARKS_MAX, landmarks
    core = [path for path in FILES if part_of(path) not in FEATURES]
    edges = {(part_of(path), part) for path in core for _, part in parts_imported_by(path) if part not in FEATURES}
    assert len(edges) <= EDGES_MAX, f"{len(edges)} edges"


def test_the_file_that_tells_the_story_stays_short() -> None:
    """The README links it."""
    assert len((ROOT / "runner" / "runner.py").read_text().splitlines()) <= STORY_LINES_MAX


def test_each_package_says_what_it_holds() -> None:
    silent = [str(path) for path in PACKAGES if not ast.get_docstring(tree_of(path))]
    assert not silent, "write a sentence"


def test_the_agent_takes_no_more_than_it_needs() -> None:
    for path in FILES:
        if part_of(path) != "agent":
            continue
        for line, part in parts_imported_by(path):
            assert part not in FORBIDDEN_TO_AGENT, f"{path}:{line} imports {part}"
        for line, name in imports_of(path):
            for module, allowed in AGENT_TAKES_ONLY.items():
                light = any(f"{name}.".startswith(f"{each}.") for each in allowed)
                assert light or not name.startswith(f"{module}."), f"{path}:{line} imports {name}"


def test_the_groups_of_the_agent_import_one_way() -> None:
    """Each group counts as one file here."""
    known = {module_of(path): path for path in FILES if part_of(path) == "agent"}

    def group_of(name: str) -> str:
        return ".".join(name.split(".")[:3])

    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        used = {group_of(each) for each in files_imported(known, path)} - {group_of(name)}
        graph.setdefault(group_of(name), set()).update(used - {"spotrun.agent"})
    assert cycle_in(graph) == []
    flat = [path.name for path in known.values() if path.parent.name == "agent"]
    assert len(flat) <= AGENT_FILES_MAX, sorted(flat)


def test_each_heavy_package_is_imported_in_its_one_place() -> None:
    for path in FILES:
        for line, name in imports_of(path):
            allowed = ONLY_IN.get(name.split(".")[0])
            assert allowed is None or place_of(path).startswith(allowed), f"{path}:{line} imports {name}"


def test_a_decision_can_neither_block_nor_draw_numbers_nor_read_a_clock() -> None:
    for path in PURE_FILES:
        for line, name in imports_of(path):
            package = name.split(".")[0]
            allowed = package not in BLOCKING or (place_of(path), package) in ALL_THE_SAME
            assert allowed, f"{path}:{line} imports {name}"
        for node in ast.walk(tree_of(path)):
            reads = isinstance(node, ast.Attribute) and node.attr in ("now", "utcnow", "today", "monotonic")
            assert not (reads and isinstance(node.value, ast.Name) and node.value.id in ("datetime", "date", "time")), (
                f"{path}:{node.lineno} reads a clock"
            )


def test_only_its_own_verbs_import_a_feature() -> None:
    wrong = [
        f"{path}:{line} imports {part}"
        for path in FILES
        for line, part in parts_imported_by(path)
        if part in FEATURES and place_of(path) not in {f"cli/{verb}.py" for verb in FEATURES[part]}
    ]
    assert not wrong, "\n".join(wrong)


def test_the_verbs_have_short_files_of_their_own() -> None:
    from spotrun.cli.app import VERBS

    verbs = {name.replace("-", "_") for name, verb in VERBS.items() if not verb.same_as}
    files = [path for path in FILES if part_of(path) == "cli"]
    assert {path.stem for path in files} == verbs | SHARED_BY_VERBS
    long = [
        f"{path}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path in files
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= COMMAND_LINES_MAX
    ]
    assert not long, "\n".join(long)


def test_no_module_imports_tests_or_benchmarks() -> None:
    for path in FILES:
        for line, name in imports_of(path):
            assert not name.startswith(("tests", "benchmarks")), f"{path}:{line} imports {name}"


def test_a_cloud_s_name_is_compared_in_its_own_room_only() -> None:
    found = [
        f"{path}:{line} asks for a cloud by its name: ask its entry in clouds/"
        for path in FILES
        if part_of(path) != "clouds"
        if any(name in path.read_text() for name in BUILT_IN)
        for line in questions_of_name(tree_of(path))
    ]
    assert not found, "\n".join(found)


def test_agent_imports_only_light_modules_of_its_cloud() -> None:
    """Whoever reads a job loads the entry of its cloud, and neither a driver nor an SDK."""
    code = (
        "import sys; from spotrun.clouds.registry import cloud_named; from spotrun.clock import system_clock\n"
        f"[cloud_named(name).notice_sources({{}}, system_clock()) for name in {BUILT_IN!r}]\n"
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = done.stdout.split()
    assert "spotrun.clouds.aws.cloud" in loaded
    heavy = ("boto3", "botocore", "google", "torch", "psutil", "rich", "typer", "spotrun.boot", "spotrun.bill")
    drivers = tuple(f"spotrun.clouds.{name}.driver" for name in BUILT_IN)
    assert not [name for name in loaded if f"{name}.".startswith(tuple(f"{each}." for each in heavy + drivers))]


def test_the_rules_see_what_they_forbid(tmp_path: Path) -> None:
    source = tmp_path / "x.py"
    lines = (
        "def f():",
        "    from spotrun import cli",
        "    import torch.nn",
        "    from spotrun.clouds.local import driver",
        "importlib.import_module('pytorch_lightning.callbacks')",
        "import_module(f'lightning.{name}')",
    )
    source.write_text("\n".join(lines))
    assert set(imports_of(source)) == {
        (2, "spotrun"),
        (2, "spotrun.cli"),
        (3, "torch.nn"),
        (4, "spotrun.clouds.local"),
        (4, "spotrun.clouds.local.driver"),
        (5, "pytorch_lightning.callbacks"),
        (6, "lightning."),
    }
    for asked in ('x == "aws"', '"local" != x', 'x in ("aws", "local")', 'x[:1] == ["aws"]', '{"aws": 1, "local": 2}'):
        assert [*questions_of_name(ast.parse(asked))] == [1], asked
    assert [*questions_of_name(ast.parse('match x:\n    case "aws" | "gcp":\n        pass'))] == [2, 2]
    assert [*questions_of_name(ast.parse('y = "aws"; f(cloud="aws"); x == "us-east-1"'))] == []
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert cycle_in({"a": {"b"}, "b": {"c"}}) == []
