"""Secrets however programs write them; and texts that are made to hold up whoever looks for secrets."""

from __future__ import annotations

import gc
import html
import json
import time
from collections.abc import Iterator
from random import Random
from urllib.parse import quote

import pytest

from spotrun.agent.logs.output_redaction import OutputRedaction, forms_of_all
from spotrun.secrets.readings import PART
from spotrun.secrets.redaction import AT_THE_CUT, HIDDEN, TEXT_MAX, Redactor
from tests.support.secret_forms import BY_LETTER, Reader, all_of, random_value

pytestmark = pytest.mark.exhaustive  # many values in many forms


@pytest.mark.parametrize("secret", ["pass1", "/run/secrets/" + "deep/" * 30, "Qx7vB2mK9pL4" * 12, "ghp_" + "a1B2" * 20])
def test_no_part_of_a_secret_is_left_where_a_long_text_is_cut(secret: str) -> None:
    redactor = Redactor([] if secret.startswith("ghp_") else [secret])
    for before in range(TEXT_MAX - len(secret) - 2, TEXT_MAX + 2):
        clean = redactor.clean_short(("word " * TEXT_MAX)[: before - 1] + " " + secret + " and more" * 1000)
        assert len(clean) <= TEXT_MAX + 2
        assert secret[:4] not in clean[-AT_THE_CUT:], before
    assert redactor.clean_short("short") == "short"


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(5, 12))])
def test_a_secret_is_hidden_in_each_form_also_where_it_is_broken(seed: int) -> None:
    random = Random(seed)
    secret = random_value(random)
    log, told, reader = OutputRedaction(forms_of_all([secret])), Redactor([secret]), Reader(secret)
    for name, text in all_of(secret, random):
        assert reader.reads(text), f"{name}: whoever looks for it does not see it in {text!r}"
        assert not reader.reads(log.hide(text.encode()).decode()), name
        assert not reader.reads(told.clean(text)), name


def test_only_the_letters_of_a_broken_secret_are_starred() -> None:
    log = OutputRedaction(["geheimnis"])
    for text, hidden in {
        "a gehe\x1b[31mimn\x1b[0mis b": "a ****\x1b[31m***\x1b[0m** b",
        "a gehei \r\n\tmnis\nb": "a ***** \r\n\t****\nb",
        r'{"a": "geh\u001b[1meim\nnis"}': r'{"a": "***\u001b[1m***\n***"}',
    }.items():
        assert log.hide(text.encode()).decode() == hidden
    assert Redactor(["geheimnis"]).clean("a geh\x1b[31meim\nnis b") == f"a {HIDDEN} b"


def test_two_lines_make_no_secret_of_a_short_value_but_a_colour_does() -> None:
    log = OutputRedaction(["pass1"])
    assert log.hide(b"a pas\ns1 b") == b"a pas\ns1 b"
    assert log.hide(b"a pas\x1b[1ms1 b") == b"a ***\x1b[1m** b"


@pytest.mark.parametrize("secret", [r"jvMV\<w4", "%41%42%43%44", "q&amp;a7z", r"a\xyz\wbc"])
def test_a_secret_that_is_shorter_once_it_is_decoded_is_hidden_where_a_line_end_breaks_it_too(secret: str) -> None:
    random, log, told, reader = Random(1), OutputRedaction(forms_of_all([secret])), Redactor([secret]), Reader(secret)
    for name, text in all_of(secret, random):
        assert not reader.reads(log.hide(text.encode()).decode()), name
        assert not reader.reads(told.clean(text)), name


@pytest.mark.parametrize("secret", ["lZZ<p4C%1bIW5-J%1b[1;31mqA", "lZZ-p4C%20%0a%20W5-JqA"])
def test_secret_with_characters_of_a_line_break_is_hidden_too(secret: str) -> None:
    log = OutputRedaction(forms_of_all([secret]))
    for name, text in all_of(secret, Random(1), 0):
        assert not Reader(secret).reads(log.hide(text.encode()).decode()), name
    doubly = quote(quote(secret))
    assert log.hide(doubly.encode()).decode() == "*" * len(doubly)


HOSTILE = {
    "keys that never end": "-----BEGIN PRIVATE KEY-----",
    "keys that hardly begin": "-----BEGIN",
    "tokens without a dot": "eyJ-",
    "tokens with one dot": "eyJaaaaaaaa.",
    "logins without a host": "://a",
    "logins of logins": "://:",
    "names of names": "token=token=",
    "quotes that never end": "token='",
    "quoted quotes": 'token=\\"',
    "backslashes": "token=\\\\\\",
    "flags": "--token ",
    "signatures": "?a_sig=",
    "bearers": "authorization: bearer ",
    "backslashes alone": "\\",
    "colours": "\x1b[31m",
    "colours that never end": "\x1b[1;",
    "colours in writing": "\\u001b[",
    "ends of lines": "a\n",
    "letters by number": "\\u0041",
    "halves of letters": "\\ud83d",
    "letters that never end": "\\u00",
    "letters within letters": "%25",
    "a backslash by number": "%5C",
    "HTML within HTML": "&amp;",
    "numbers that never end": "&#1111111",
    "names that never end": "&aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "lines cut at a backslash": "\\\n",
    "all signs in any order": "".join(
        Random(1).choices(["\\", "%", "25", "&", "amp;", "#", "x", "u", "0041", ";", "\n", "\x1b[", "a secret"], k=2000)
    ),
    "secrets that hardly begin": "a secret of some",
    "secrets that break off": "a secret\n",
    "signs of a secret": "\\t",
    "signs within signs of a secret": "%25t&amp;",
    "backslashes within a secret": "t\\t\\\\\\",
    "broken letters of a secret": "\\x\\n74\\u\\x1b[0m0074",
}
HOSTILE_FOR = "a secret of somebody", "tttttt\\ttttttttttttt%&"


@pytest.fixture
def no_cleaning() -> Iterator[None]:
    """Python cleans up nothing of what earlier tests have left, which may take a second."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        pytest.param(name, secret, id=f"{name}-{secret}", marks=[pytest.mark.nightly] * ((at + number) % 2))
        for at, name in enumerate(HOSTILE)
        for number, secret in enumerate(HOSTILE_FOR)
    ],
)
@pytest.mark.usefixtures("no_cleaning")
def test_redaction_time_grows_linearly_with_any_text(name: str, secret: str) -> None:
    """A text 16 times as long may take 16 times as long, not 256; with room for a busy machine."""

    def seconds(size: int) -> float:
        text = (HOSTILE[name] * size)[:size]
        redactor, log = Redactor([secret]), OutputRedaction(forms_of_all([secret]))
        began_s = time.process_time()
        redactor.clean(text)
        log.hide(text.encode())
        log.unfinished(text.encode())
        log.begun(text.encode())
        return time.process_time() - began_s

    assert any(seconds(16_000) < max(40 * seconds(1000), 0.06) for _ in range(3))


WITH_SIGNS = [
    r"ab\x41cd\u0042efGH9",
    r"p\n\t\\q9Zk2Lm4",
    r"C:\temp\101xyzQ9",
    r"a%41b\u0043c&amp;d9Zk",
    r"cwhlmBGYCxNM1%A\tEUMT>0wbEm4G>TA",
    r'H\nb"PjrqjiLzKygpi\I',
    r"x\x41%42&#67;\104zé漢\r9",
    r"9q\b&lt%4",
]
"""They contain what looks like an encoded character."""
EACH = [(lambda letter, write=write: write(letter)[0]) for write in BY_LETTER.values()]
EACH += [str, lambda letter: letter.replace("\\", "\\\\")]
"""Ways to write a letter."""
WRAPPED = {
    "by nothing": str,
    "as JSON": lambda text: json.dumps(text)[1:-1],
    "in a URL": lambda text: quote(text, safe=""),
    "as HTML": html.escape,
    "as JSON in a URL": lambda text: quote(json.dumps(text)[1:-1], safe=""),
}


TIMES = pytest.mark.parametrize("times", [5, pytest.param(25, marks=pytest.mark.nightly)])
"""How often the letters are written anew, each in a way of its own."""


@pytest.mark.parametrize("wrapped", WRAPPED)
@pytest.mark.parametrize("secret", WITH_SIGNS)
@TIMES
def test_a_secret_with_signs_of_its_own_is_hidden_whatever_each_of_its_letters_is_written_like(
    secret: str, wrapped: str, times: int
) -> None:
    random, log, told = Random(3), OutputRedaction(forms_of_all([secret])), Redactor([secret])
    for _ in range(times):
        written = WRAPPED[wrapped]("".join(random.choice(EACH)(letter) for letter in secret))
        assert set(log.hide(f"- {written} -".encode()).decode()) == set("- *"), written
        assert told.clean(f"- {written} -") == f"- {HIDDEN} -", written


@pytest.mark.parametrize("broken_by", ["\\n", "\\r\\n  ", "\\u001b[31m", "\\x1b[0m", "\n", "\x1b[1;31m", "\\\n"])
@pytest.mark.parametrize("secret", WITH_SIGNS)
@TIMES
def test_a_secret_with_signs_of_its_own_is_hidden_wherever_a_break_stands_in_it(
    secret: str, broken_by: str, times: int
) -> None:
    random, log, told = Random(3), OutputRedaction(forms_of_all([secret])), Redactor([secret])
    for _ in range(times):
        whole = "".join(random.choice(EACH)(letter) for letter in secret)
        at = random.choice([at for at in range(1, len(whole)) if "\\" not in whole[at - 1 : at + 1]])
        written = whole[:at] + broken_by + whole[at:]
        assert told.clean(f"- {written} -") == f"- {HIDDEN} -", written
        left = log.hide(f"- {written} -".encode()).decode().replace(broken_by, "").replace("\n", "")
        assert set(left) == set("- *"), written


ORDINARY = r"""
D:\temp\new\101.txt  "it\u0027s"  100%25  a &amp; b  \x41\x42\n  {"a": "b\\c"}  D: temp
"""


@pytest.mark.parametrize("secret", WITH_SIGNS)
def test_ordinary_text_stays_with_a_secret_of_special_characters(secret: str) -> None:
    log, told = OutputRedaction(forms_of_all([secret])), Redactor([secret])
    assert log.hide(ORDINARY.encode()).decode() == ORDINARY
    assert told.clean(ORDINARY) == ORDINARY
    for end in range(1, len(ORDINARY)):
        assert log.begun(ORDINARY[:end].encode(), PART) == 0, ORDINARY[:end]


@pytest.mark.parametrize("secret", WITH_SIGNS)
@pytest.mark.parametrize("times", [1, pytest.param(5, marks=pytest.mark.nightly)])
def test_wherever_its_text_is_cut_at_most_three_letters_of_a_secret_with_signs_are_seen(
    secret: str, times: int
) -> None:
    random, log = Random(3), OutputRedaction(forms_of_all([secret]))
    for _ in range(times):
        letters = [random.choice(EACH)(letter) for letter in secret]
        written = "".join(letters)
        first = len("".join(letters[: at_least(secret)]))
        for end in range(first, len(written)):
            cut = written[:end].encode()
            assert log.begun(b"- " + cut, PART) == len(cut), cut


def at_least(secret: str) -> int:
    """How many of its letters may be its beginning: a backslash counts as none."""
    return next(end for end in range(len(secret)) if len(secret[:end].replace("\\", "")) == PART)
