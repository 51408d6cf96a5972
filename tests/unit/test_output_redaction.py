"""Secrets that a program prints: none of them is in anything that leaves its instance, and nothing else is changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotrun.agent.logs.console import CUT, TEXT_MAX_BYTES, Console, LogShipper
from spotrun.agent.logs.output_redaction import STAR, OutputRedaction, secret_values
from spotrun.secrets.redaction import Redactor
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore


def canary(number: int) -> str:
    return f"cNry{number:02d}Qx7vB2mK9pL4{number * 7919 % 1000:03d}"


def test_only_values_of_names_that_sound_secret_are_secrets_and_no_paths() -> None:
    environment = {
        "HF_TOKEN": "hf_0123456789", "PIN_KEY": "1234567", "MODE": "training", "SSH_AUTH_SOCK": "/tmp/agent.123",
        "PRIVATE_PEM": "-----BEGIN-----\nMIIEvQIBADANBg\n\n-----END-----",
    }  # fmt: skip
    assert secret_values(environment) == {
        "hf_0123456789", environment["PRIVATE_PEM"], "MIIEvQIBADANBg", "-----BEGIN-----", "-----END-----",
    }  # fmt: skip


def test_a_secret_is_starred_byte_for_byte_and_all_else_stays() -> None:
    redaction = OutputRedaction({"geheimnis-é", "geheimnis-é-und-mehr"})
    text = "a geheimnis-é b geheimnis-é-und-mehr c geheimnis"
    hidden = redaction.hide(text.encode())
    assert len(hidden) == len(text.encode())
    assert hidden.decode() == f"a {'*' * 12} b {'*' * 21} c geheimnis"
    assert OutputRedaction().hide(b"as it is") == b"as it is"


@pytest.mark.exhaustive
@given(
    st.lists(st.sampled_from(["secret-one", "two-secrets!", "s", "secret-", "x y z ", "\n"]), max_size=40), st.data()
)
def test_however_output_comes_and_is_shipped_no_secret_is_and_no_byte_is_lost(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], data: st.DataObject
) -> None:
    written = "".join(parts).encode()
    redaction = OutputRedaction({"secret-one", "two-secrets!"})
    console = Console(tmp_path_factory.mktemp("log"), redaction)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=6)))
    size = data.draw(st.integers(16, 64))
    shipped, begun = b"", 0
    for cut in [*cuts, len(written)]:
        with console.path.open("ab") as file:
            file.write(written[begun:cut])
        begun = cut
        while some := console.read(len(shipped), size, last=False):
            shipped += some
    while some := console.read(len(shipped), size):
        shipped += some
    assert shipped == redaction.hide(written)


S = "hunter22"
SECRET = f"""
    curl --password {S} host
    --token={S}
    --api-key {S}
    --api-key={S}
    -token {S}
    api-key={S}
    api_key: {S}
    --hub-token '{S} {S}'
    --ngrok-authtoken {S}
    export WANDB_API_KEY="{S}"
    DB_PASSWORD={S}
    AWS_SECRET_ACCESS_KEY={S}/a+b
    password2={S}
    password := {S}
    {{"password": "{S}", "x": 1}}
    {{'client_secret': '{S} b'}}
    {{\\"token\\": \\"{S}\\"}}
    os.environ["HF_TOKEN"] = "{S}"
    Namespace(token='{S}', x=1)
    apiKey={S}
    credentials={S}
    the secret password={S}
    X-Api-Key: {S}
    Authorization: Bearer {S}
    -H 'Authorization: Basic {S}=='
    bearer {S}{S}
    https://me:{S}@host/x
    https://host/?a=b&sig={S}&c=d
    https://host/?api_key={S}
"""
HARMLESS = """
    --token-count 5
    --token-count 50000
    max_tokens=100000
    tokenizer=bert-base
    --tokenizer bert-base
    pad_token_id=50256
    pad_token='[PAD]'
    eos_token: "<|endoftext|>"
    padToken=whatever
    tokens: 123456
    token: 15496
    ms/token: 12.345ms
    token=self.token
    token=hub_token
    api_key=get_key('x')
    token: Optional[str] = None
    password=None)
    --use-auth-token true
    --password $DB_PASSWORD host
    --token "$HF_TOKEN"
    api_key=${KEY}
    token=<your-token>
    usage: [--token TOKEN] [--api-key API_KEY]
    --token TEXT
    --token     The token of the hub
    --password --other flagged
    GOOGLE_APPLICATION_CREDENTIALS=/run/x.json
    token == other
    secret::thing
    sort_key=timestamp
    the token generator
    passwordless: yes-please
    key: value1
    tokenization: slow
    secrets: [WANDB_API_KEY, HF_TOKEN]
    secret HF_TOKEN: the variable HF_TOKEN is not set
    https://host/?max_tokens=2048&tokenizer=bert
    http://host:80/a
    Küche: Bücher
"""


@pytest.mark.parametrize("text", SECRET.strip().splitlines())
def test_value_after_a_secret_looking_name_is_starred(text: str) -> None:
    hidden = OutputRedaction().hide(text.encode()).decode()
    assert len(hidden) == len(text)
    assert S not in hidden
    assert S not in Redactor(()).clean(text)
    assert not OutputRedaction().finds(text.encode()), "a file of the script is stored as it is"


@pytest.mark.parametrize("text", HARMLESS.strip().splitlines())
def test_token_counts_and_texts_without_a_value_stay(text: str) -> None:
    assert OutputRedaction().hide(text.encode()).decode() == text
    assert Redactor(()).clean(text) == text


@pytest.mark.parametrize("name", ["TOKENIZER", "MAX_TOKENS", "PAD_TOKEN_ID", "TOKENIZERS_PARALLELISM", "TOKEN_COUNT"])
def test_variables_about_the_tokens_of_a_text_are_no_secrets(name: str) -> None:
    assert secret_values({name: "bert-base-uncased", "HF_TOKENS": "one-two-three"}) == {"one-two-three"}


def test_a_name_within_a_starred_value_still_says_what_begins_behind_it(tmp_path: Path) -> None:
    console = Console(tmp_path)
    written = b"password=hunter22api_key: 'password=hunter22"
    console.path.write_bytes(written[:28])
    shipped = console.read(0, 200, last=False)
    console.path.write_bytes(written)
    assert shipped + console.read(len(shipped), 200) == console.redaction.hide(written)


@given(
    st.lists(
        st.sampled_from(
            ["password=hunter22", " --token ab-12 ", "token", "=", " ", "\n", "api_key: '", "'", "x y z ", "9"]
        ),
        max_size=30,
    ),
    st.data(),
)
def test_however_output_comes_what_stands_behind_a_name_is_starred(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], data: st.DataObject
) -> None:
    written = "".join(parts).encode()
    console = Console(tmp_path_factory.mktemp("log"))
    shipped, begun = b"", 0
    for cut in [*sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=6))), len(written)]:
        with console.path.open("ab") as file:
            file.write(written[begun:cut])
        begun = cut
        while some := console.read(len(shipped), 200, last=False):
            shipped += some
    shipped += console.read(len(shipped), 600)
    assert shipped == console.redaction.hide(written)


@pytest.mark.parametrize(
    ("written", "shipped"),
    [
        ("epoch 3 of two\n", "epoch 3 of two\n"),
        ("epoch 3 two-\n", "epoch 3 "),
        ("it is two\x1b[1", "it is "),
        (r"it is two-\u00", "it is "),
        (r"it is two-\u001b", "it is "),
        ("a path: C:\\temp\n", "a path: C:\\temp\n"),
    ],
)
def test_possible_beginning_of_a_broken_secret_waits_for_the_rest(tmp_path: Path, written: str, shipped: str) -> None:
    console = Console(tmp_path, OutputRedaction({"two-secrets!"}))
    console.path.write_text(written)
    assert console.read(0, 200, last=False).decode() == shipped
    with console.path.open("a") as file:
        file.write("m")
    assert console.read(0, 200).decode() == f"{written}m"


@pytest.mark.exhaustive
@given(
    st.lists(
        st.sampled_from(
            ["secret-one", "two-", "secrets!", "se", "cret-", "\n", "\x1b[31m", "\x1b[0", "m", r"\u001b[1m"]
        ),
        max_size=30,
    ),
    st.data(),
)
def test_however_output_comes_no_more_is_seen_of_a_broken_secret_than_three_letters(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], data: st.DataObject
) -> None:
    """What ends a line is shipped at once; so are three letters at its end that may be the beginning of a secret."""
    # as in a run, what is read at once is longer than any secret with what breaks it
    written = "".join(parts).encode()
    console = Console(tmp_path_factory.mktemp("log"), OutputRedaction({"secret-one", "two-secrets!"}))
    shipped, begun = b"", 0
    for cut in [*sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=6))), len(written)]:
        with console.path.open("ab") as file:
            file.write(written[begun:cut])
        begun = cut
        while some := console.read(len(shipped), 400, last=False):
            shipped += some
    while some := console.read(len(shipped), 400):
        shipped += some
    hidden = console.redaction.hide(written)
    assert len(shipped) == len(written)
    of_secrets = [each == STAR for each, whole in zip(shipped, hidden, strict=True) if whole == STAR]
    seen = "".join("*" if starred else "x" for starred in of_secrets)
    assert shipped.count(STAR) == sum(of_secrets), "something is starred that is no secret"
    assert "xxxx" not in seen


def test_shipped_output_is_starred_on_the_disk_of_the_instance_too(tmp_path: Path) -> None:
    secret = canary(3)
    console = Console(tmp_path, OutputRedaction({secret}))
    reach = console.redaction.reach
    store = MemoryStore()
    shipper = LogShipper(store, ManualClock(), console, "7")
    place, written = (0, 0), ""
    for part in (f"it is {secret}\n", "a word " * reach, f"password: {secret[:9]}", f"{secret[9:]} again\n", "a word"):
        with console.path.open("a") as program:  # it holds the file open, and writes at its end
            place = shipper._ship(place, last=False)
            program.write(part)
        written += part
        assert console.size_bytes() == len(written)
    place = shipper._ship(place, last=False)
    assert secret not in console.path.read_text()[: place[1] - reach]
    shipper.start()
    shipper.stop()
    on_disk = console.path.read_bytes()
    assert on_disk == b"".join(store.objects[key] for key in sorted(store.objects))
    assert on_disk == console.redaction.hide(written.encode())
    assert secret not in on_disk.decode()


@pytest.mark.parametrize("before", range(TEXT_MAX_BYTES - 70, TEXT_MAX_BYTES + 1, 7))
@pytest.mark.parametrize("named", ["", "--password ", "api_key: "])
def test_a_long_text_is_cut_before_it_is_cleaned_and_no_part_of_a_secret_is_left(
    before: int, named: str, tmp_path: Path
) -> None:
    secret = canary(1) * 2
    console = Console(tmp_path, OutputRedaction(() if named else {secret}))
    filler = ("a word " * before)[: before - len(named) - 1]
    clean = console.clean(f"{filler} {named}{secret}{' and more' * 1000}")
    assert len(clean) <= TEXT_MAX_BYTES + len(CUT)
    assert clean.endswith(CUT)
    assert secret[:6] not in clean


def test_a_text_that_is_too_long_costs_no_more_than_its_beginning(tmp_path: Path) -> None:
    seen: list[int] = []

    class Counting(OutputRedaction):
        def hide(self, data: bytes) -> bytes:
            seen.append(len(data))
            return super().hide(data)

    assert Console(tmp_path, Counting()).clean("é" * 10**6).endswith(CUT)
    assert seen == [TEXT_MAX_BYTES]


def test_a_text_that_is_no_text_is_cleaned_all_the_same(tmp_path: Path) -> None:
    assert Console(tmp_path).clean("a\ud800b") == "a\\ud800b"


def test_shipped_output_and_last_lines_are_starred_across_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spotrun.agent.logs.console.LOG_CHUNK_BYTES", 25)
    secrets = {canary(number) for number in range(40)}
    console = Console(tmp_path, OutputRedaction(secrets))
    lines = "".join(f"step {n}: {secret} is used\n" for n, secret in enumerate(sorted(secrets)))
    console.path.write_text(lines)
    store = MemoryStore()
    shipper = LogShipper(store, ManualClock(), console, "7")
    shipper.start()
    shipper.stop()
    shipped = b"".join(store.objects[key] for key in sorted(store.objects)).decode()
    assert len(shipped) == len(lines)
    assert shipped.count("is used") == 40
    for secret in secrets:
        assert secret not in shipped
    tail = console.tail(len(canary(0)) + 30)
    assert canary(39)[-6:] not in tail
    assert "is used" in tail
