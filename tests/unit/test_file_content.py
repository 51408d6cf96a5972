"""Files of two trainings: the same if they say the same, whatever a format writes down beside it."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import sqlite3
import struct
import zipfile
from collections import Counter, OrderedDict, deque, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spotrun.exactness.file_content import EVENTS, OURS, parts_of_file
from spotrun.exactness.folders import FileDifference, Folder, differences, first_difference, names_of, tracker_of
from spotrun.exactness.places import family
from spotrun.exactness.same_everywhere import is_duration, without_instances, without_times
from spotrun.exactness.varying import Varying, unnumbered
from spotrun.trainer_link import Figures

CLEAN = without_instances("/cloud/instances")


class Own:
    def __init__(self, value: object) -> None:
        self.value = value


def first(tmp_path: Path, one: bytes, other: bytes, name: str = "file") -> FileDifference | None:
    folders = []
    for folder, content in (("straight", one), ("interrupted", other)):
        path = tmp_path / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        folders.append(Folder(tmp_path / folder, frozenset({name})))
    return first_difference(*folders, {name}, CLEAN)


def saved(value: object) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


VALUES: list[Any] = [
    {"epoch": 1, "weights": torch.arange(4.0), "path": "/cloud/instances/i-1/work/best.ckpt"},
    OrderedDict(a=torch.zeros(2, dtype=torch.int64), b=[1, 2.5, None, True, b"x"]),
    {"kinds": (Counter("aab"), deque([1], 3), frozenset("abc"), {1, 2, 3}), "of": np.arange(3.0), "own": Own([1])},
    [torch.nn.Parameter(torch.ones(2, 2)), torch.float16, torch.Size([1]), slice(1, 2), range(3)],
]


def other_bytes(value: object) -> bytes:
    """The same objects, of which fewer are one and the same, in an older protocol."""
    return pickle.dumps(pickle.loads(pickle.dumps(value)), protocol=2)


@pytest.mark.parametrize("value", VALUES)
def test_equal_objects_are_the_same_whatever_their_bytes(tmp_path: Path, value: object) -> None:
    assert first(tmp_path, saved(value), saved(value)) is None
    assert first(tmp_path, pickle.dumps(value), pickle.dumps(pickle.loads(pickle.dumps(value)))) is None


def test_a_path_of_an_instance_is_the_same_on_another(tmp_path: Path) -> None:
    one, other = ({"best": f"/cloud/instances/{name}/work/a.ckpt"} for name in ("i-1", "i-2"))
    assert first(tmp_path, saved(one), saved(other)) is None
    assert first(tmp_path, saved(one), saved({"best": "/cloud/instances/i-1/work/b.ckpt"})) is not None


def test_texts_that_are_one_object_in_one_and_two_in_the_other_are_the_same(tmp_path: Path) -> None:
    word = "".join(["wo", "rd"])
    one, two = pickle.dumps([word, word]), pickle.dumps([word, "".join(["wor", "d"])])
    assert one != two
    assert first(tmp_path, one, two) is None
    assert first(tmp_path, saved([word, word]), saved([word, "".join(["wor", "d"])])) is None


@pytest.mark.parametrize(
    ("one", "other", "where"),
    [
        ({"a": torch.zeros(3)}, {"a": torch.tensor([0.0, 0.0, -0.0])}, "['a']"),
        ({"a": torch.zeros(3)}, {"a": torch.zeros(3, dtype=torch.float64)}, "['a']"),
        ({"a": 1}, {"a": 1.0}, "['a']"),
        ({"a": 1}, {"a": 1, "b": 2}, ""),
        ({"a": {1, 2}}, {"a": {1, 3}}, "['a']"),
        ([Own(1)], [Own(2)], "[0]"),
        (np.arange(3), np.arange(1, 4), ""),
        (float("nan"), 0.0, ""),
    ],
)
def test_objects_that_differ_are_found_and_their_place_is_named(
    tmp_path: Path, one: object, other: object, where: str
) -> None:
    for written in (saved, pickle.dumps, lambda value: gzip.compress(pickle.dumps(value))):
        found = first(tmp_path, written(one), written(other))
        assert found is not None
        assert found.path == "file"
        assert found.where.startswith(where)
        assert found.straight != found.interrupted


def test_a_second_pickle_in_a_file_counts_and_so_do_bytes_after_it(tmp_path: Path) -> None:
    head = pickle.dumps(1)
    assert first(tmp_path, head + pickle.dumps(2), head + pickle.dumps(3)) is not None
    assert first(tmp_path, head + b"\0rest", head + b"\0test") is not None
    assert first(tmp_path, head, head + pickle.dumps(3)) is not None
    old, other = io.BytesIO(), io.BytesIO()
    torch.save(torch.zeros(2), old, _use_new_zipfile_serialization=False)
    torch.save(torch.ones(2), other, _use_new_zipfile_serialization=False)
    assert first(tmp_path, old.getvalue(), other.getvalue()) is not None


def test_older_torch_files_are_read_piece_by_piece(tmp_path: Path) -> None:
    def older(*values: torch.Tensor) -> bytes:
        stream = io.BytesIO()
        torch.save(values, stream, _use_new_zipfile_serialization=False)
        return stream.getvalue()

    values = [torch.arange(4.0), torch.arange(3), torch.ones(2, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.bool)]
    copies = [value.clone() for value in reversed(values)][::-1]
    assert older(*values) != older(*copies), "they name the addresses"
    assert first(tmp_path, older(*values), older(*copies)) is None
    copies[2][1] = 2
    found = first(tmp_path, older(*values), older(*copies))
    assert found is not None
    assert found.where.startswith("[2]")


@pytest.mark.parametrize("written", [saved, pickle.dumps])
def test_a_tensor_is_the_same_whatever_else_is_in_its_memory(
    tmp_path: Path, written: Callable[[object], bytes]
) -> None:
    memory = torch.arange(100.0)
    parts = {"a": memory[10:14], "b": memory[20:32].view(3, 4), "c": memory[5], "d": memory[:0], "e": memory[40:52:3]}
    own = {name: part.clone() for name, part in parts.items() if name != "e"} | {"e": torch.arange(40.0, 52.0)[::3]}
    assert first(tmp_path, written(parts), written(own)) is None
    own["b"][2, 3] += 1
    found = first(tmp_path, written(parts), written(own))
    assert found is not None
    assert found.where.startswith("['b']")
    turned = own | {"b": parts["b"].t().contiguous().t()}
    assert first(tmp_path, written(parts), written(turned)) is not None, "another layout"


def test_a_pickle_that_names_a_program_is_read_and_not_obeyed(tmp_path: Path) -> None:
    evil = b"\x80\x02cposix\nsystem\nX\x05\x00\x00\x00false\x85R."
    (tmp_path / "evil").write_bytes(evil)
    (_, what), *_ = parts_of_file(tmp_path / "evil", CLEAN)
    assert what == "posix.system"


def archive(content: bytes, year: int) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as written:
        written.writestr(zipfile.ZipInfo("a.npy", (year, 1, 1, 0, 0, 0)), content)
    return stream.getvalue()


def test_when_an_archive_was_packed_is_no_difference_and_what_is_in_it_is(tmp_path: Path) -> None:
    assert first(tmp_path, archive(b"\x93\0", 1999), archive(b"\x93\0", 2001)) is None
    found = first(tmp_path, archive(b"\x93\0", 1999), archive(b"\x93\0\0", 1999))
    assert found is not None
    assert found.where == "a.npy"
    assert first(tmp_path, gzip.compress(b"log\n", mtime=1), gzip.compress(b"log\n", mtime=2)) is None


def test_times_and_places_of_instances_are_no_difference_in_a_text(tmp_path: Path) -> None:
    one = b"2026-11-23 18:00:01,123 INFO loss 0.5 in /cloud/instances/i-1/work/a\n"
    other = b"2026-11-23 19:30:00,5 INFO loss 0.5 in /cloud/instances/i-2/work/a\n"
    assert first(tmp_path, one, other) is None
    found = first(tmp_path, b"x\n" + one, b"x\n" + other.replace(b"0.5", b"0.6"))
    assert found is not None
    assert found.where == "line 2"


@pytest.mark.parametrize(
    "text",
    [
        "ratio 1:2:3",
        "key 2026-11-23",
        "12:30",
        "v1.2.3",
        "10:20:30:40",
        "20261123",
        "5 steps",
        "a3s",
        "0.5/s.pt",
        "8 m",
    ],
)
def test_text_without_a_time_of_day_stays(text: str) -> None:
    assert without_times(text) == text


@pytest.mark.parametrize("text", ["took 0.53s", "took 12 ms", "3.1 it/s", "1e-05 seconds", "120 samples/sec"])
def test_a_number_with_a_unit_of_time_is_no_difference(text: str) -> None:
    assert "<time>" in without_times(f"epoch 3: {text}, loss 0.5")
    assert "loss 0.5" in without_times(f"epoch 3: {text}, loss 0.5")


@pytest.mark.parametrize(
    "name", ["time", "epoch_time", "elapsed_s", "train/seconds", "wallTime", "steps_per_sec", "fps"]
)
def test_a_field_with_the_name_of_a_time_is_known(name: str) -> None:
    assert is_duration(name)


@pytest.mark.parametrize("name", ["time_mlp.weight", "timestep", "eta", "loss", "lifetime", "sections", "classes"])
def test_a_field_with_another_name_is_no_time(name: str) -> None:
    assert not is_duration(name)


def test_fields_of_json_are_compared_one_by_one_and_each_digit_counts(tmp_path: Path) -> None:
    one = b'{"step": 1, "loss": 0.50}\n{"step": 2, "loss": 0.4, "time": 7}\n'
    assert first(tmp_path, one, one.replace(b"7", b"9")) is None
    found = first(tmp_path, one, one.replace(b"0.4", b"0.40"))
    assert found is not None
    assert (found.where, found.straight, found.interrupted) == ("line 2['loss']", "0.4", "0.40")
    whole = b'{"loss": [0.5, 0.4],\n "time": [1, 2]}'
    found = first(tmp_path, whole, whole.replace(b", 0.4", b""), "history.json")
    assert found is not None
    assert (found.where, found.straight, found.interrupted) == ("['loss']", "list of 2", "list of 1")
    assert first(tmp_path, b"{no json", b"{no json!", "history.json") is not None


@pytest.mark.parametrize("lost", [b"", b"a\n", b"a\nb\nc\n"])
def test_a_line_that_is_missing_or_twice_is_a_difference(tmp_path: Path, lost: bytes) -> None:
    found = first(tmp_path, b"a\nb\n", lost)
    assert found is not None
    assert "absent" in (found.straight, found.interrupted)


def test_figures_that_spotrun_logs_are_no_difference_in_a_table(tmp_path: Path) -> None:
    one = b"attempt,cost_usd,epoch,loss,step\n,,0,0.5,1\n1.0,0.2,,,1\n,,0,0.4,2\n"
    other = b"epoch,loss,step\n0,0.5,1\n0,0.4,2\n"
    assert first(tmp_path, one, other, "metrics.csv") is None
    found = first(tmp_path, one, other.replace(b"0.4", b"0.3"), "metrics.csv")
    assert found is not None
    assert found.where == "row 2, loss"
    rows = b"epoch,step\n0,1\n1,2\n"
    assert first(tmp_path, rows, b"epoch,step\n0,1\n", "own.csv") is not None


def test_the_names_of_these_figures_are_known() -> None:
    assert Figures(cost_usd=1, usd_per_epoch=1, lost_s=0, attempt=1, epochs=1).metrics().keys() == OURS


def test_databases_are_compared_by_what_is_in_them(tmp_path: Path) -> None:
    contents = []
    for number, values in enumerate(([1, 2, 3], [1, 2, 3], [1, 2, 4])):
        path = tmp_path / f"{number}.db"
        database = sqlite3.connect(path)
        database.execute("create table steps (step)")
        if number == 1:  # other pages are in use
            database.executemany("insert into steps values (?)", [("x" * 9000,)] * 3)
            database.execute("delete from steps")
        database.executemany("insert into steps values (?)", [(value,) for value in values])
        database.commit()
        database.close()
        contents.append(path.read_bytes())
    assert contents[0] != contents[1]
    assert first(tmp_path, contents[0], contents[1], "steps.db") is None
    assert first(tmp_path, contents[0], contents[2], "steps.db") is not None


@pytest.mark.parametrize("head", [b"PK\x03\x04", b"\x1f\x8b", b"SQLite format 3\x00", b"\x80\x04", b"\x80"])
def test_file_with_only_the_head_of_a_known_format_is_compared_by_bytes(tmp_path: Path, head: bytes) -> None:
    assert first(tmp_path, head + b"\0\1", head + b"\0\1") is None
    assert first(tmp_path, head + b"\0\1", head + b"\0\2") is not None


# -- what varies in any two trainings --------------------------------------------------------------------------------


def varying(tmp_path: Path, one: bytes, again: bytes, name: str) -> Varying:
    parts = []
    for number, content in enumerate((one, again)):
        path = tmp_path / f"v{number}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        parts.append(parts_of_file(path, CLEAN))
    return Varying(*parts)


def third(tmp_path: Path, one: bytes, again: bytes, other: bytes, name: str) -> FileDifference | None:
    """Compare `one` with `other`, without what is another in `again`."""
    found = varying(tmp_path, one, again, name)
    assert not found.is_whole
    assert first(tmp_path, one, other, name) is not None
    folders = [Folder(tmp_path / each, frozenset({name})) for each in ("straight", "interrupted")]
    return next(differences(*folders, {name}, CLEAN, {name: found}), None)


def rows(kind: str, count: int, drawn: int, lost: int = 0) -> bytes:
    """A file with a row for each step and a value in each that is another in any training."""
    steps = [(step, 1 / (step + 1), f"{drawn}.{step}") for step in range(lost, count)]
    match kind:
        case "history.csv":
            text = "step,loss,beat\n" + "".join(f"{step},{loss},{beat}\n" for step, loss, beat in steps)
        case "bare.csv":
            text = "".join(f"{beat},{step},{loss}\n" for step, loss, beat in steps)
        case "by_time.json":
            text = json.dumps({beat: {"step": step, "loss": loss} for step, loss, beat in steps} | {"end": len(steps)})
        case "history.jsonl":
            text = "".join(json.dumps({"step": step, "loss": loss, "beat": beat}) + "\n" for step, loss, beat in steps)
        case "history.json":
            names = ("step", "loss", "beat")
            text = json.dumps({name: [row[number] for row in steps] for number, name in enumerate(names)})
        case "train.log":
            text = f"pid {drawn}\n" + "".join(f"step {step}: loss {loss} beat {beat}\n" for step, loss, beat in steps)
        case "history.pkl":
            return pickle.dumps([{"step": step, "loss": loss, "beat": beat} for step, loss, beat in steps])
        case "beats.txt":
            text = "".join(f"{beat}\n" for _, _, beat in steps)
    return text.encode()


@pytest.mark.parametrize(
    "kind",
    [
        "history.csv",
        "bare.csv",
        "history.jsonl",
        "history.json",
        "by_time.json",
        "train.log",
        "history.pkl",
        "beats.txt",
    ],
)
def test_a_varying_column_hides_no_lost_rows(tmp_path: Path, kind: str) -> None:
    one, again = rows(kind, 12, 11), rows(kind, 12, 22)
    assert third(tmp_path, one, again, rows(kind, 12, 33), kind) is None
    assert third(tmp_path, one, again, rows(kind, 12, 33, lost=4), kind) is not None
    if b"0.125" in one and kind != "by_time.json":
        assert third(tmp_path, one, again, rows(kind, 12, 33).replace(b"0.125", b"0.126"), kind) is not None


def test_excluded_lines_are_named(tmp_path: Path) -> None:
    assert list(varying(tmp_path, rows("history.csv", 3, 1), rows("history.csv", 3, 2), "a.csv").names()) == [
        "row #, beat"
    ]
    logs = rows("train.log", 3, 1), rows("train.log", 3, 2)
    assert list(varying(tmp_path, *logs, "a.log").names()) == [
        "line #: 'pid …\\n'",
        "line #: 'step #: loss # beat …\\n'",
    ]


TABLE = [[0.5, 1, 0.25], [0.75, 2, 0.125], [1.5, 3, 0.0625], [1.75, 4, 0.03125]]
"""A time, an epoch and a loss in each row."""


def timed(drawn: float, lost: int = 0) -> list[list[float]]:
    """The table of another training; the first rows are lost, and 0 stands there."""
    return [[0, 0, 0] if number < lost else [row[0] + drawn, *row[1:]] for number, row in enumerate(TABLE)]


Point = namedtuple("Point", "at epoch loss")
FORMS: dict[str, Callable[[list[list[float]]], object]] = {
    "list of lists": lambda rows: rows,
    "list of tuples": lambda rows: list(map(tuple, rows)),
    "named tuples": lambda rows: [Point(*row) for row in rows],
    "dict of lists of lists": lambda rows: {"train": rows, "val": [row[1:] for row in rows]},
    "list of dicts of lists": lambda rows: [{"of": row, "epoch": row[1]} for row in rows],
    "dict in list in dict": lambda rows: {"rows": [{"m": {"v": row}} for row in rows]},
    "dict of lists": lambda rows: {f"epoch {number}": row for number, row in enumerate(rows)},
    "columns": lambda rows: [list(column) for column in zip(*rows, strict=True)],
    "dict of columns": lambda rows: dict(zip("tel", map(list, zip(*rows, strict=True)), strict=True)),
    "tables in a list": lambda rows: [rows[:2], rows[2:]],
    "mixed rows": lambda rows: [[row[0], {"epoch": row[1]}, row[2]] for row in rows],
    "one record": lambda rows: {"last": [sum(column) for column in zip(*rows, strict=True)]},
    "two times": lambda rows: [[row[0], row[0] * 2, *row[1:]] for row in rows],
    "two columns of times": lambda rows: [[row[n] for row in rows] for n in (0, 0, 1, 2)],
    "names and values": lambda rows: [{"name": n, "v": row[i]} for row in rows for i, n in enumerate("tel")],
}
WRITERS: dict[str, Callable[[Any], bytes]] = {
    "a.json": lambda value: json.dumps(value).encode(),
    "a.jsonl": lambda value: b"".join(json.dumps({"x": row}).encode() + b"\n" for row in value),
    "lists.jsonl": lambda value: b"".join(json.dumps(row).encode() + b"\n" for row in value),
    "a.pkl": pickle.dumps,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", WRITERS)
def test_a_column_of_times_hides_no_other_column(tmp_path: Path, name: str, form: str) -> None:
    def written(rows: list[list[float]]) -> bytes:
        value = FORMS[form](rows)
        return WRITERS[name](list(value.items()) if name.endswith("l") and isinstance(value, dict) else value)

    one, again = written(timed(0)), written(timed(8))
    assert third(tmp_path, one, again, written(timed(16)), name) is None
    for lost in (1, 2):
        assert third(tmp_path, one, again, written(timed(16, lost)), name) is not None
    assert third(tmp_path, one, again, written([*timed(16)[:-1], [16.0, 4, 0.5]]), name) is not None
    if form != "one record":
        assert third(tmp_path, one, again, written(timed(16)[:-1]), name) is not None


def npy(value: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, value)
    return stream.getvalue()


def npz(value: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, table=value, rest=np.arange(3))
    return stream.getvalue()


@pytest.mark.parametrize(
    "write",
    [
        npy,
        npz,
        pickle.dumps,
        lambda value: pickle.dumps({"h": value}, protocol=5),
        lambda value: saved({"h": value}),
        lambda value: saved({"h": torch.from_numpy(value)}),
    ],
)
@pytest.mark.parametrize(
    "form",
    [
        lambda rows: np.array(rows),
        lambda rows: np.asfortranarray(np.array(rows)),
        lambda rows: np.array(rows, dtype="f4").T.copy(),
        lambda rows: np.array(rows)[:, None, :],
        lambda rows: np.array([column[-1] for column in zip(*rows, strict=True)]),
        lambda rows: np.array(rows * 100),
    ],
)
def test_a_column_of_times_of_an_array_hides_no_other_column(
    tmp_path: Path, write: Callable[[Any], bytes], form: Callable[[Any], Any]
) -> None:
    one, again, other = (write(form(timed(drawn))) for drawn in (0, 8, 16))
    assert third(tmp_path, one, again, other, "table") is None
    assert third(tmp_path, one, again, write(form(timed(16, 4))), "table") is not None
    assert third(tmp_path, one, again, write(np.array(TABLE)[:, :2]), "table") is not None


@pytest.mark.parametrize("value", [np.array([{1}, None]), np.zeros(2, dtype=[("a", "f8"), ("b", "i4")])])
def test_an_array_of_other_things_than_numbers_is_compared(tmp_path: Path, value: Any) -> None:
    for write in (npy, npz, pickle.dumps):
        assert first(tmp_path, write(value), write(value.copy())) is None
        assert first(tmp_path, write(value), write(value[:1])) is not None


@pytest.mark.parametrize("form", ["list of lists", "columns", "two times", "two columns of times"])
def test_a_table_without_names_loses_no_column_to_a_time(tmp_path: Path, form: str) -> None:
    def written(*drawn: int) -> bytes:
        rows: Any = FORMS[form](timed(*drawn))
        return "".join(",".join(map(repr, row)) + "\n" for row in rows).encode()

    assert third(tmp_path, written(0), written(8), written(16), "a.csv") is None
    assert third(tmp_path, written(0), written(8), written(16, 2), "a.csv") is not None


def test_a_line_with_a_time_alone_hides_no_other_line(tmp_path: Path) -> None:
    one, again, other = (f"{at}\n3\n0.25\n".encode() for at in (0.5, 0.75, 1.5))
    assert third(tmp_path, one, again, other, "state.txt") is None
    assert third(tmp_path, one, again, other.replace(b"3", b"0"), "state.txt") is not None


def test_a_column_that_varies_is_named_by_its_number(tmp_path: Path) -> None:
    write = WRITERS["a.json"]
    assert list(varying(tmp_path, write(timed(0)), write(timed(8)), "a.json").names()) == ["[][0]"]
    columns = FORMS["columns"]
    assert list(varying(tmp_path, write(columns(timed(0))), write(columns(timed(8))), "a.json").names()) == ["[0][]"]


def test_a_duration_that_two_trainings_share_by_chance_is_of_what_varies(tmp_path: Path) -> None:
    def written(*took: float, epoch: int = 1) -> bytes:
        return json.dumps({"rows": [[each, epoch] for each in took], "dt": took * 8}).encode()

    one, again = written(0.1, 0.2, 0.1), written(0.1, 0.3, 0.2)
    assert third(tmp_path, one, again, written(0.4, 0.5, 0.6), "a.json") is None
    assert third(tmp_path, one, again, written(0.4, 0.5, 0.6, epoch=2), "a.json") is not None


def test_of_several_lists_the_one_that_grows_by_the_clock_is_left_out(tmp_path: Path) -> None:
    def written(beats: int, loss: float) -> bytes:
        return json.dumps([[0.5, 0.25, loss], [9.0] * beats, [1, 2, 3]]).encode()

    assert third(tmp_path, written(5, 1), written(7, 1), written(9, 1), "a.json") is None
    assert third(tmp_path, written(5, 1), written(7, 1), written(9, 2), "a.json") is not None


def test_of_a_line_with_a_digest_the_other_words_are_compared(tmp_path: Path) -> None:
    one, again, other = (f"key {name * 64} of run 7\nend\n".encode() for name in "abc")
    assert third(tmp_path, one, again, other, "train.log") is None
    assert third(tmp_path, one, again, other.replace(b"run 7", b"run 8"), "train.log") is not None


def test_a_line_with_a_random_name_is_left_out_and_the_lines_around_it_are_not(tmp_path: Path) -> None:
    one, again, other = (f"loss 0.5\ninto /tmp/{name}/x\nloss 0.4\n".encode() for name in ("qwer", "ty1", "uiop"))
    assert third(tmp_path, one, again, other, "train.log") is None
    assert third(tmp_path, one, again, other.replace(b"0.4", b"0.3"), "train.log") is not None


@pytest.mark.parametrize("content", [b"\0%d", b"%d", b"\x80\x04K%c."])
def test_a_file_of_one_value_that_varies_is_not_compared(tmp_path: Path, content: bytes) -> None:
    assert varying(tmp_path, content % 51, content % 52, "file").is_whole


def test_a_log_whose_lines_come_by_the_clock_is_not_compared(tmp_path: Path) -> None:
    assert varying(tmp_path, b"beat 1\n" * 5, b"beat 1\n" * 7, "file").is_whole


def test_a_field_of_a_checkpoint_file_that_varies_hides_nothing_else(tmp_path: Path) -> None:
    one, again, other = (saved({"at": at, "w": torch.ones(2)}) for at in (0.5, 0.25, 0.75))
    assert third(tmp_path, one, again, other, "last.ckpt") is None
    found = third(tmp_path, one, again, saved({"at": 0.75, "w": torch.zeros(2)}), "last.ckpt")
    assert found is not None
    assert found.where.startswith("['w']")


def test_names_without_numbers_stand_for_all_of_their_kind() -> None:
    assert family("rows[12]['a'][3].b") == "rows[]['a'][].b"
    assert family("row 12, loss") == family("row 3, loss") != family("row 3, lr")
    assert unnumbered("logs/run_17/pid-4a.log") == "logs/#/pid-#.log"


# -- TensorBoard -----------------------------------------------------------------------------------------------------


def event(tag: str, step: int, value: float, wall_time: float) -> bytes:
    inner = b"\x0a" + bytes([len(tag)]) + tag.encode() + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes([len(inner)]) + inner
    content = (
        b"\x09" + struct.pack("<d", wall_time) + b"\x10" + bytes([step]) + b"\x2a" + bytes([len(summary)]) + summary
    )
    return struct.pack("<Q", len(content)) + b"\0\0\0\0" + content + b"\0\0\0\0"


def events(tmp_path: Path, name: str, *files: bytes) -> Folder:
    paths = set()
    for number, content in enumerate(files):
        path = tmp_path / name / "logs" / f"{EVENTS}{number}.{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        paths.add(f"logs/{path.name}")
    return Folder(tmp_path / name, frozenset(paths))


def test_event_files_are_compared_by_their_values_at_each_step(tmp_path: Path) -> None:
    straight = events(tmp_path, "a", event("loss", 1, 0.5, 1.0) + event("loss", 2, 0.25, 2.0))
    again = event("loss", 1, 0.5, 7.0) + event("loss", 2, 0.25, 8.0)
    resumed = events(tmp_path, "b", again, event("loss", 2, 0.25, 9.0) + event("cost_usd", 2, 3.0, 9.0))
    names = names_of(straight.paths | resumed.paths)
    assert names == {f"logs/{EVENTS}"}
    assert first_difference(straight, resumed, names, CLEAN) is None
    other = events(tmp_path, "c", event("loss", 1, 0.5, 1.0), event("loss", 2, 0.75, 2.0))
    found = first_difference(straight, other, names, CLEAN)
    assert found is not None
    assert found.where == "loss, step 2"
    fewer = events(tmp_path, "d", event("loss", 1, 0.5, 1.0)[:-9])
    assert first_difference(straight, fewer, names, CLEAN) is not None


# -- folders ---------------------------------------------------------------------------------------------------------


def test_durations_are_no_difference(tmp_path: Path) -> None:
    assert without_times('"eval_runtime": 0.12, "loss": 0.5') == '"eval_runtime": <time>, "loss": 0.5'
    one, other = (
        events(tmp_path, name, event("loss", 1, 0.5, 1.0) + event("eval/runtime", 1, took, 1.0))
        for name, took in (("a", 0.25), ("b", 0.75))
    )
    assert first_difference(one, other, names_of(one.paths | other.paths), str) is None


def logged(folder: Path, day: int, loss: float) -> Folder:
    path = folder / "runs" / f"Nov{day}_09-59-23_host" / f"{EVENTS}1"
    path.parent.mkdir(parents=True)
    path.write_bytes(event("loss", 1, loss, 1.0))
    return Folder(folder, frozenset({path.relative_to(folder).as_posix()}))


def test_a_folder_that_is_named_by_its_time_is_that_of_another_time(tmp_path: Path) -> None:
    one, other, last = (logged(tmp_path / f"{day}", day, 0.5 if day < 26 else 0.25) for day in (24, 25, 26))
    names = names_of(one.paths | other.paths)
    assert names == {"runs/<time>/events.out.tfevents."}
    assert first_difference(one, other, names, str) is None
    found = first_difference(one, last, names, str)
    assert found is not None
    assert found.where == "loss, step 1"


def test_a_file_that_only_one_of_them_has_is_a_difference(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "b" / "more").write_text("x")
    found = first_difference(
        Folder(tmp_path / "a", frozenset()), Folder(tmp_path / "b", frozenset({"more"})), {"more"}, CLEAN
    )
    assert found == FileDifference("more", "", "absent", "there")


def test_a_link_is_compared_by_where_it_leads(tmp_path: Path) -> None:
    targets = {"same": "run-1", "elsewhere": "run-1", "a copy": "run-1/model.ckpt", "absolute": "{}/run-1/model.ckpt"}
    for folder, other in (("1", "run-1"), ("2", "run-2")):
        work = tmp_path / folder / "work"
        (work / "run-1").mkdir(parents=True)
        (work / "run-1/model.ckpt").write_text("1")
        for name, target in (targets | {"elsewhere": other}).items():
            (work / name).symlink_to(target.format(work))
    (work / "a copy").unlink()
    (work / "a copy").write_text("1")
    straight, interrupted = (Folder(tmp_path / each / "work", frozenset(targets)) for each in "12")
    found = list(differences(straight, interrupted, targets, without_instances(str(tmp_path))))
    assert [(each.path, each.straight) for each in found] == [
        ("a copy", "a link to run-1/model.ckpt"),
        ("elsewhere", "a link to run-1"),
    ]


def test_folders_of_trackers_are_known() -> None:
    assert tracker_of("mlruns/0/meta.yaml") == "MLflow's"
    assert tracker_of("logs/wandb/run-1/x") == "W&B's"
    assert tracker_of("logs/metrics.csv") is None


def test_a_folder_of_instances_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    clean = without_instances(str(tmp_path / "link"))
    said = json.dumps([str(tmp_path / name / "i-1" / "work") for name in ("link", "real")])
    assert json.loads(clean(said)) == ["<instance>/work"] * 2
    assert without_instances("")("/a") == "/a"
