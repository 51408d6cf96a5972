"""A secret in `envs` would stand in the ledger for ever: it is refused, and never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotrun.errors import SpecInvalid
from spotrun.spec.file import load_spec
from spotrun.spec.leaks import plain_secrets

CANARY = "Zq8canary7tRx2"
JOB = "name: demo\nworkdir: .\ntrain: {run: 'true'}\n"


def refused(envs: dict[str, str]) -> list[str]:
    return [str(problem.key[1]) for problem in plain_secrets(envs, "local")]


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "password", "GITHUB_TOKEN", "MY_SECRET"),
        *("SENTRY_DSN", "OPENAI_APIKEY", "SLACK_WEBHOOK", "SSH_PRIVATE_KEY", "GOOGLE_CREDENTIALS"),
    ],
)
def test_a_name_that_says_secret_with_a_value_that_could_be_one_is_refused(name: str) -> None:
    assert refused({name: CANARY}) == [name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_TOKENS", "2048000000"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("PAD_TOKEN", "<|endoftext|>"),
        ("SORT_KEY", "timestamp_of_the_event"),
        ("NUM_KEYPOINTS", "17"),
        ("AUTHOR", "somebody at home"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/run/secrets/google.json"),
        ("API_KEY", ""),
        ("KEY", "12345678.12345678901"),
        ("MAX_TOKENS", "512"),
        ("TOKENIZER", "bpe"),
        ("KEY_COLUMN", "id"),
        ("SORT_KEY", "id"),
        ("PLACEHOLDER_TOKEN", "<cat-toy>"),
        ("INITIALIZER_TOKEN", "toy"),
        ("SEPARATOR_TOKEN", "|"),
        ("USE_AUTH_TOKEN", "true"),
        ("ASK_PASSWORD", "no"),
        ("DB_PASSWORD", "$DB_PASSWORD"),
        ("DB_PASSWORD", "<your password>"),
        ("DB_PASSWORD", ""),
        ("PWD", "/home/me"),
        ("DSN", "orders"),
    ],
)
def test_words_numbers_paths_and_references_are_no_secrets(name: str, value: str) -> None:
    assert refused({name: value}) == []


@pytest.mark.parametrize(
    "name",
    [
        *("DB_PASSWORD", "PGPASSWORD", "DB_PASS", "MYSQL_PWD", "SSH_PASSPHRASE", "CLIENT_SECRET", "WIKI_TOKEN"),
        *("api_key", "SECRET_KEY", "REGISTRY_CREDENTIALS"),
    ],
)
@pytest.mark.parametrize("value", ["hunter2", "abc", "x"])
def test_short_value_of_a_name_that_says_secret_is_refused(name: str, value: str) -> None:
    assert refused({name: value}) == [name]


def test_a_long_key_with_digits_and_what_has_the_shape_of_a_token_are_secrets_under_any_name() -> None:
    assert refused({"ENCRYPTION_KEY": "9f8e7d6c5b4a39281706", "HUB": "hf_" + CANARY}) == ["ENCRYPTION_KEY", "HUB"]


@pytest.mark.parametrize(
    "secrets",
    [
        *("[{0}]", "[OK, {0}]", "{{{0}: null}}", "[{{A: env:B}}, {0}]"),
        *("{{HF_TOKEN: {0}}}", "{{HF_TOKEN: gsm:{0}}}", "{{HF_TOKEN: env:{0}}}", "{{HF_TOKEN: ssm:/{0}}}"),
    ],
)
def test_a_value_where_a_name_or_a_place_belongs_is_refused_and_not_shown(secrets: str, tmp_path: Path) -> None:
    token = "hf_" + CANARY * 3
    path = tmp_path / "job.yaml"
    path.write_text(f"{JOB}secrets: {secrets.format(token)}\n")
    with pytest.raises(SpecInvalid, match=r"job\.yaml:4: secrets") as caught:
        load_spec(path)
    assert token not in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize("by_flag", [False, True])
def test_a_job_with_one_is_not_launched_and_the_letter_does_not_hold_it(by_flag: bool, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB if by_flag else f"{JOB}envs:\n  LR: 0.1\n  HF_TOKEN: {CANARY}\n")
    with pytest.raises(SpecInvalid) as caught:
        load_spec(path, {"envs.HF_TOKEN": CANARY} if by_flag else {})
    told = f"{caught.value.message} {caught.value.hint}"
    assert CANARY not in told
    assert "looks like a secret" in told
    assert "export it where spotrun runs" in told
    assert ("--env HF_TOKEN" if by_flag else "job.yaml:6: envs.HF_TOKEN") in told


def test_on_aws_the_letter_says_what_works_there(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        f"{JOB}resources: {{cloud: aws}}\ncheckpoint: {{uri: 's3://bucket/runs'}}\nenvs: {{HF_TOKEN: {CANARY}}}\n"
    )
    with pytest.raises(SpecInvalid, match="name it under secrets"):
        load_spec(path)
