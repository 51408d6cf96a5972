"""A training that tells its secret: nothing that anybody reads of its run has it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any, get_args

import msgspec
import pytest
from msgspec import inspect

from spotrun.agent.logs.clean_texts import NAMES, cleaned
from spotrun.agent.logs.console import CUT, Console
from spotrun.agent.logs.output_redaction import OutputRedaction, forms_of_all
from spotrun.folder.status_objects import AgentStatus
from spotrun.run import events as ev
from spotrun.run.owners import OF_OWNER
from spotrun.secrets.readings import PART
from tests.batteries.telling_run import TellingRun
from tests.support.secret_forms import BY_LETTER, FORMS, Reader, random_value

pytestmark = pytest.mark.exhaustive  # many values in many forms

SECRET = "geheimnis-und-mehr"
OF_AGENT = sorted({*get_args(ev.AnyEvent)} - {*OF_OWNER, ev.RunCreated}, key=lambda kind: kind.__name__)
WRITTEN = [*OF_AGENT, AgentStatus]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_no_reader_gets_a_secret_that_a_training_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """`make battery NAME=secrets` does this with 1,000 values."""
    random = Random(seed)
    assert [*TellingRun(tmp_path, monkeypatch, random_value(random), random).leaks()] == []


@pytest.mark.parametrize("written", WRITTEN, ids=lambda kind: kind.__name__)
def test_each_text_that_an_agent_writes_is_cleaned(written: type[msgspec.Struct], tmp_path: Path) -> None:
    whole = example(inspect.type_info(written))
    clean = cleaned(whole, Console(tmp_path, OutputRedaction([SECRET])).clean)
    for (field, text), (_, was) in zip(texts(clean), texts(whole), strict=True):
        assert text == (was if field in NAMES else was.replace(SECRET, "*" * len(SECRET)))


def test_the_fields_that_are_left_as_they_are_exist() -> None:
    """Each of them is a name, a digest or a word of spotrun's own: whoever adds one has to know that."""
    fields = {field for written in WRITTEN for field, _ in texts(example(inspect.type_info(written)))}
    assert fields >= NAMES
    assert fields - NAMES == {
        *("detail", "reason", "place", "what", "versions", "metrics", "console_tail", "trouble", "unlike", "refused"),
    }


def example(kind: inspect.Type) -> Any:
    """A value of a type, with the secret in each of its texts."""
    match kind:
        case inspect.StrType():
            return f"a {SECRET} b"
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return 1
        case inspect.FloatType():
            return 1.5
        case inspect.DateTimeType():
            return datetime(2026, 3, 1, tzinfo=UTC)
        case inspect.EnumType(cls=cls):
            return next(iter(cls))
        case inspect.UnionType(types=types):
            return example(next(each for each in types if not isinstance(each, inspect.NoneType)))
        case inspect.VarTupleType(item_type=item):
            return (example(item), example(item))
        case inspect.DictType(key_type=key, value_type=item):
            return {example(key): example(item)}
        case inspect.StructType(cls=cls, fields=fields):
            return cls(**{field.name: example(field.type) for field in fields})
    raise NotImplementedError(kind)


def texts(value: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """Each text in it, with the field that holds it."""
    match value:
        case Enum():
            return
        case str():
            yield field, value
        case dict():
            for each in [*value.keys(), *value.values()]:
                yield from texts(each, field)
        case tuple():
            for each in value:
                yield from texts(each, field)
        case msgspec.Struct():
            for name in value.__struct_fields__:
                yield from texts(getattr(value, name), name)


@pytest.mark.parametrize("ending", ["", CUT])
def test_truncated_text_loses_the_beginning_of_a_secret(tmp_path: Path, ending: str) -> None:
    console = Console(tmp_path, OutputRedaction([SECRET]))
    assert console.clean(f"it is {SECRET[:9]}{ending}") == f"it is {CUT}"
    assert console.clean(f"it is {SECRET[:4]}\n{SECRET[4:9]}{ending}") == f"it is {CUT}"
    assert console.clean("as it is" + ending) == "as it is" + ending
    assert console.clean(r"C:\temp") == r"C:\temp"


@pytest.mark.parametrize("cut", ["%", "%2", "%25", "%252", "\\u00", "&amp;#3", "\\"])
def test_a_letter_that_is_there_in_part_is_one_of_those_that_are_seen(tmp_path: Path, cut: str) -> None:
    console = Console(tmp_path, OutputRedaction(["ufc OxoShHhi"]))
    assert console.clean(f"it is ufc{cut}") == f"it is {CUT}"
    assert console.clean(f"it is uf{cut}") == f"it is uf{cut}"


BROKEN_BY = ["\n", "\x1b[1;31m", "\\n", "\\\n", "\\u001b[31m"]
BY_NUMBER = ["bytes of Python by number", "letters by number in JSON", "each byte quoted for a URL", "numbers of HTML"]


@pytest.mark.parametrize("how", BROKEN_BY)
@pytest.mark.parametrize("form", BY_NUMBER)
def test_cut_next_to_a_break_within_an_escape_shows_no_more(tmp_path: Path, form: str, how: str) -> None:
    """What breaks a letter's number apart is itself cut off, or is the last that there is."""
    console, reader = Console(tmp_path, OutputRedaction([SECRET])), Reader(SECRET)
    letters = BY_LETTER[form](SECRET)
    whole, size = "".join(letters), len(letters[0])
    for at in range(10 * size, 11 * size):
        if how[0] == "\\" in whole[at - 1 : at + 1]:
            continue  # a backslash beside another is another text
        broken = whole[:at] + how + whole[at:]
        for end in range(at, at + len(how) + size):
            said = console.clean(f"it is {broken[:end]}")
            assert not reader.reads(said), ascii(broken[:end])


@pytest.mark.parametrize("form", FORMS)
def test_text_cut_anywhere_shows_no_beginning_of_a_secret(tmp_path: Path, form: str) -> None:
    """Also where the cut is within a letter that is written as several bytes, and those by number."""
    secret = 'größer-é%c3-<漢>-\\"ñ€-z'
    console, reader = Console(tmp_path, OutputRedaction(forms_of_all([secret]))), Reader(secret)
    written = FORMS[form](secret)
    for end in range(1, len(written.secret)):
        said = console.clean(f"{written.before}{written.secret[:end]}")
        assert not reader.reads(said), ascii(written.secret[:end])


@pytest.mark.parametrize("secret", [SECRET, "I&HW2cJbDqjY", "Rk&t867%B-h9", "a%u-&#x-12"])
@pytest.mark.parametrize("form", BY_LETTER)
def test_wherever_a_text_is_cut_at_most_three_written_letters_are_seen(tmp_path: Path, form: str, secret: str) -> None:
    """Also where the secret itself has what may be the beginning of a letter."""
    console, letters = Console(tmp_path, OutputRedaction([secret])), BY_LETTER[form](secret)
    written = "".join(letters)
    for end in range(len("".join(letters[:PART])), len(written)):
        assert console.clean(f"it is {written[:end]}") == f"it is {CUT}", written[:end]
