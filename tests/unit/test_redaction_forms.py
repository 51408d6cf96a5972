"""Secrets however programs write them; and texts that are made to hold up whoever looks for secrets."""

from __future__ import annotations

import time
from random import Random
from urllib.parse import quote

import pytest

from spotrun.agent.output_redaction import OutputRedaction, forms_of_all
from spotrun.secrets.redaction import AT_THE_CUT, HIDDEN, TEXT_MAX, Redactor
from tests.support.secret_forms import Reader, all_of, random_value


@pytest.mark.parametrize("secret", ["pass1", "/run/secrets/" + "deep/" * 30, "Qx7vB2mK9pL4" * 12, "ghp_" + "a1B2" * 20])
def test_no_part_of_a_secret_is_left_where_a_long_text_is_cut(secret: str) -> None:
    redactor = Redactor([] if secret.startswith("ghp_") else [secret])
    for before in range(TEXT_MAX - len(secret) - 2, TEXT_MAX + 2):
        clean = redactor.clean_short(("word " * TEXT_MAX)[: before - 1] + " " + secret + " and more" * 1000)
        assert len(clean) <= TEXT_MAX + 2
        assert secret[:4] not in clean[-AT_THE_CUT:], before
    assert redactor.clean_short("short") == "short"


@pytest.mark.parametrize("seed", range(12))
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
def test_what_a_secret_has_itself_that_would_break_another_is_hidden_too(secret: str) -> None:
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
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_holds_up_whoever_looks_for_secrets(name: str) -> None:
    """A text four times as long may take 4 times as long, not 16; with room for a busy machine."""

    def seconds(size: int) -> float:
        text = HOSTILE[name] * (size // len(HOSTILE[name]))
        redactor, log = Redactor(["a secret of somebody"]), OutputRedaction(forms_of_all(["a secret of somebody"]))
        began_s = time.process_time()
        redactor.clean(text)
        log.hide(text.encode())
        log.unfinished(text.encode())
        log.begun(text.encode())
        return time.process_time() - began_s

    assert seconds(64_000) < max(10 * seconds(16_000), 1.0)


LETTERS = (
    lambda letter: letter.replace("\\", "\\\\") if letter not in "%&" else f"%{ord(letter):02X}",
    lambda letter: f"\\u{ord(letter):04x}",
    lambda letter: f"\\x{ord(letter):02x}",
    lambda letter: f"\\{ord(letter):03o}",
    lambda letter: f"%{ord(letter):02X}",
    lambda letter: f"&#{ord(letter)};",
)


@pytest.mark.parametrize(
    "secret", [r"ab\x41cd\u0042efGH9", r"p\n\t\\q9Zk2Lm4", r"C:\temp\101xyzQ9", r"a%41b\u0043c&amp;d9Zk"]
)
def test_a_secret_that_has_what_looks_like_a_written_letter_is_hidden_whatever_each_of_its_letters_is_written_like(
    secret: str,
) -> None:
    random, log, told = Random(3), OutputRedaction(forms_of_all([secret])), Redactor([secret])
    for _ in range(100):
        written = "".join(random.choice(LETTERS)(letter) for letter in secret)
        assert set(log.hide(f"x {written} y".encode()).decode()) == set("x* y"), written
        assert told.clean(f"x {written} y") == f"x {HIDDEN} y", written
