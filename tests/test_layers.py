"""Imports point downwards: a word knows no decision, a decision no edge, an edge no program, a program no door."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import spotrun

ROOT = Path(spotrun.__file__).parent
LAYERS = (
    """errors units address condition credentials redaction secret_reference spec spec_fields spec_file spec_problems
    spec_schema spec_secrets spec_values spec_yaml market_script offering instance events""",
    """billing storage_prices volume_prices state fold timeline outcome books accounting market policy hazard intervals
    trace exactness egress interruptions strategies sightings spending accelerators price_history quotes""",
    """clock proc store stores retrying race ledger hints trainer_link trace_file workdir start_file packs vault
    creation boot clouds checkpoint lightning market_record""",
    "runner heartbeats agent verify report notify doctor simulation bill",
    "cli __main__",
)
LAYER_OF = {name: number for number, names in enumerate(LAYERS, 1) for name in names.split()}
FORBIDDEN_TO_AGENT = {"clouds", "pricing", "lightning", "runner", "report", "notify", "doctor", "cli", "verify", "bill"}
AGENT_TAKES_ONLY = {"spotrun.creation": {"spotrun.creation.first_entry"}}
"""It must install and start fast, and has nothing to create."""
MAY_SIMULATE = {"simulation", "report", "cli"}
BLOCKING = {
    *("asyncio", "fsspec", "http", "io", "os", "pathlib", "psutil", "random", "secrets"),
    *("shutil", "socket", "subprocess", "tenacity", "threading", "time"),
}
"""What a decision has no use for: it could not be called from a notebook with yesterday's ledger."""
ONLY_IN = {
    "pytorch_lightning": ("lightning/",),
    "lightning": ("lightning/",),
    "torch": ("lightning/", "checkpoint/snapshot.py", "checkpoint/staging.py", "checkpoint/accelerator.py"),
    "pydantic": ("spec",),
    "yaml": ("spec",),
    "typer": ("cli/",),
    "rich": ("cli/", "report/"),
    "pyarrow": ("bill/",),
    "boto3": ("stores/s3", "clouds/aws/", "vault/parameter_store.py"),
    "botocore": ("stores/s3", "clouds/aws/", "vault/parameter_store.py"),
    "google": ("stores/gcs.py",),
    "google_crc32c": ("stores/http.py",),
}
FILES = sorted(ROOT.rglob("*.py"))
DECISIONS = [path for path in FILES if path.relative_to(ROOT).parts[0].removesuffix(".py") in LAYERS[1].split()]


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of each import, those inside of functions and for type checkers included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            if node.module.split(".")[0] == "spotrun":
                yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def part_of(path: Path) -> str:
    """The module or package below spotrun/ that a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_import_points_upwards(path: Path) -> None:
    here = part_of(path)
    if here == "__init__":
        assert not list(imports_of(path))
        return
    assert here in LAYER_OF, f"{path}: give {here} a layer"
    wrong = []
    for line, name in imports_of(path):
        parts = name.split(".")
        if parts[0] != "spotrun" or len(parts) == 1 or parts[1] not in LAYER_OF:
            continue
        if LAYER_OF[parts[1]] > LAYER_OF[here] or (here == "agent" and parts[1] in FORBIDDEN_TO_AGENT):
            wrong.append(f"{path}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_each_heavy_package_is_imported_in_its_one_place(path: Path) -> None:
    place = path.relative_to(ROOT).as_posix()
    for line, name in imports_of(path):
        allowed = ONLY_IN.get(name.split(".")[0])
        assert allowed is None or place.startswith(allowed), f"{path}:{line} imports {name}"


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_decision_can_neither_block_nor_roll_dice_nor_read_a_clock(path: Path) -> None:
    for line, name in imports_of(path):
        assert name.split(".")[0] not in BLOCKING, f"{path}:{line} imports {name}"
    for node in ast.walk(ast.parse(path.read_text())):
        reads = isinstance(node, ast.Attribute) and node.attr in ("now", "utcnow", "today", "monotonic")
        assert not (reads and isinstance(node.value, ast.Name) and node.value.id in ("datetime", "date", "time")), (
            f"{path}:{node.lineno} reads a clock"
        )


@pytest.mark.parametrize("path", [path for path in FILES if part_of(path) == "agent"], ids=lambda path: path.stem)
def test_the_agent_takes_no_more_than_it_needs(path: Path) -> None:
    for line, name in imports_of(path):
        for module, allowed in AGENT_TAKES_ONLY.items():
            inside = name.startswith(f"{module}.") and name not in allowed
            assert not inside, f"{path}:{line} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_run_needs_a_simulation(path: Path) -> None:
    if part_of(path) in MAY_SIMULATE:
        return
    for line, name in imports_of(path):
        assert not name.startswith(("spotrun.simulation", "spotrun.stores.memory")), f"{path}:{line} imports {name}"


def test_the_rules_see_what_they_forbid(tmp_path: Path) -> None:
    source = tmp_path / "x.py"
    lines = (
        "def f():",
        "    from spotrun import cli",
        "    import torch.nn",
        "    from spotrun.clouds.local import driver",
    )
    source.write_text("\n".join(lines))
    assert set(imports_of(source)) == {
        (2, "spotrun"),
        (2, "spotrun.cli"),
        (3, "torch.nn"),
        (4, "spotrun.clouds.local"),
        (4, "spotrun.clouds.local.driver"),
    }
