"""Secrets however programs write them; and texts that are made to hold up whoever looks for secrets."""

from __future__ import annotations

import base64
import html
import json
import string
import time
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotrun.agent.output_redaction import OutputRedaction, forms_of_all
from spotrun.secrets.redaction import AT_THE_CUT, HIDDEN, TEXT_MAX, Redactor

FORMS: dict[str, Callable[[str], str]] = {
    "plain": lambda secret: secret,
    "JSON": lambda secret: json.dumps({"value": secret}),
    "JSON with letters as they are": lambda secret: json.dumps({"value": secret}, ensure_ascii=False),
    "a literal of Python": lambda secret: repr([secret]),
    "a URL": lambda secret: "https://host/?x=" + quote(secret, safe=""),
    "a path of a URL": lambda secret: "https://host/" + quote(secret),
    "a form": lambda secret: "x=" + quote_plus(secret),
    "HTML": lambda secret: f"<b>{html.escape(secret)}</b>",
    "hexadecimal": lambda secret: secret.encode().hex(),
    "HEXADECIMAL": lambda secret: secret.encode().hex().upper(),
    "base64": lambda secret: base64.b64encode(secret.encode()).decode(),
    "base64 for a URL": lambda secret: base64.urlsafe_b64encode(secret.encode()).decode(),
    "HTTP Basic": lambda secret: base64.b64encode(f"me:{secret}".encode()).decode(),
    "within a text in base64": lambda secret: base64.b64encode(f"a{secret}, and more".encode()).decode(),
}
LETTERS = string.ascii_letters + string.digits + '"\\/+=&<>é€ß~!%'
VALUES = st.text(LETTERS, min_size=12, max_size=60).filter(lambda value: value == value.strip() and len(set(value)) > 5)


def kernel(written: str, secret: str, form: str) -> str:
    """What of a written form is the secret's alone: the rest of a base64 text may stay."""
    if form in ("HTTP Basic", "within a text in base64"):
        return written[4:20]
    return {
        "base64": base64.b64encode(secret.encode()).decode()[:16],
        "base64 for a URL": base64.urlsafe_b64encode(secret.encode()).decode()[:16],
    }.get(form, FORMS[form](secret)[-len(secret) - 1 : -1] if form == "plain" else "")


@pytest.mark.parametrize("secret", ["pass1", "/run/secrets/" + "deep/" * 30, "Qx7vB2mK9pL4" * 12, "ghp_" + "a1B2" * 20])
def test_no_part_of_a_secret_is_left_where_a_long_text_is_cut(secret: str) -> None:
    redactor = Redactor([] if secret.startswith("ghp_") else [secret])
    for before in range(TEXT_MAX - len(secret) - 2, TEXT_MAX + 2):
        clean = redactor.clean_short(("word " * TEXT_MAX)[: before - 1] + " " + secret + " and more" * 1000)
        assert len(clean) <= TEXT_MAX + 2
        assert secret[:4] not in clean[-AT_THE_CUT:], before
    assert redactor.clean_short("short") == "short"


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_hidden_in_each_form(form: str) -> None:
    @settings(max_examples=70, deadline=None, derandomize=True)
    @given(VALUES)
    def hidden(secret: str) -> None:
        written = FORMS[form](secret)
        log = OutputRedaction(forms_of_all([secret])).hide(f"x {written} y".encode()).decode()
        told = Redactor([secret]).clean(f"x {written} y")
        assert written not in log
        assert written not in told
        part = kernel(written, secret, form)
        assert not part or part not in log
        assert "*" in log
        assert HIDDEN in told

    hidden()


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
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_holds_up_whoever_looks_for_secrets(name: str) -> None:
    """A text four times as long may take 4 times as long, not 16; with room for a busy machine."""

    def seconds(size: int) -> float:
        text = HOSTILE[name] * (size // len(HOSTILE[name]))
        redactor, log = Redactor(["a secret of somebody"]), OutputRedaction([])
        began_s = time.process_time()
        redactor.clean(text)
        log.hide(text.encode())
        return time.process_time() - began_s

    assert seconds(64_000) < max(10 * seconds(16_000), 1.0)
