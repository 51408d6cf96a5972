"""The variables that a trainer gets after its start."""

from __future__ import annotations

import json
import os
import threading
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue

import pytest

from spotrun.autoload.late_variables import LATE, WAITING, hold

VALUES = {"MASTER_PORT": "29500", "NODE_RANK": "1"}


class Held:
    """This process, which holds the variables of VALUES. `come` writes them; `waits` is True once they are needed."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "late variables"
        os.environ[LATE] = f"MASTER_PORT,NODE_RANK {self._path}"
        hold(os.environ[LATE])

    @property
    def waits(self) -> bool:
        return Path(f"{self._path}{WAITING}").exists()

    def come(self) -> None:
        written = self._path.with_suffix(".new")
        written.write_text(json.dumps(VALUES))
        written.rename(self._path)


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    for name in (LATE, *VALUES):
        monkeypatch.setenv(name, "")  # so that the names are removed afterwards
        monkeypatch.delenv(name)
    held = Held(tmp_path)
    yield held
    held.come()
    assert os.environ["NODE_RANK"] == "1"  # `os` is as it was


def test_other_variables_are_there_at_once(held: Held):
    os.environ["OTHER"] = "a value"
    assert os.environ.pop("OTHER") == "a value"
    assert LATE not in os.environ
    assert not held.waits


def test_names_are_there_at_once(held: Held):
    assert set(VALUES) < set(os.environ)
    assert len(os.environ) == len(list(os.environ))
    assert not held.waits


def test_tqdm_reads_its_own_variables_at_once(held: Held):
    read = "found = {name: text for name, text in os.environ.items() if name.startswith('HO')}"
    found: dict[str, object] = {"__name__": "tqdm.utils", "os": os}
    exec(read, found)
    assert found["found"] == {"HOME": os.environ["HOME"]}
    assert not held.waits


def test_a_variable_can_be_read_by_the_first_frame_of_a_stack(held: Held):
    """Such as the script itself, outside of its functions."""
    held.come()
    results: Queue[str] = Queue()
    start_new_thread(lambda: results.put(os.environ["NODE_RANK"]), ())
    assert results.get(timeout=10) == "1"


USES: dict[str, Callable[[], object]] = {
    "value": lambda: os.environ["NODE_RANK"],
    "value with a default": lambda: os.getenv("MASTER_PORT", "29500"),
    "question": lambda: "NODE_RANK" in os.environ,
    "copy": os.environ.copy,
    "change": lambda: os.environ.update(NODE_RANK="2"),
    "removal": lambda: os.environ.pop("NODE_RANK"),
    "shell": lambda: os.system("test $NODE_RANK = 1"),
    "program": lambda: os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ), 0),
    "fork": lambda: os.fork() or os._exit(0),
}


@pytest.mark.parametrize("use", USES)
def test_a_use_waits_for_the_variables(held: Held, use: str):
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(USES[use]()))
    thread.start()
    while not held.waits:
        thread.join(0.001)
    assert not results
    held.come()
    thread.join()
    expected = {"value": "1", "value with a default": "29500", "question": True, "removal": "1", "shell": 0}
    assert results[0] == expected.get(use, results[0])
    os.environ.update(VALUES)
