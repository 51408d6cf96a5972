"""
Reads individual values of a spec: converts a value from YAML or a flag to the type in the model.

Every `read_*` raises `Unreadable` if it cannot read the value; the caller adds the key and the line.
This module never touches the file system.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta, timezone
from decimal import Decimal
from keyword import iskeyword
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import ValidationInfo

from spotrun import address
from spotrun.errors import StoreError
from spotrun.secrets import reference as secret_reference
from spotrun.secrets.named_values import names_secret
from spotrun.secrets.redaction import holds_credential
from spotrun.spec import condition
from spotrun.spec.patterns import read_pattern
from spotrun.units import DURATION_FORMS, Steps, Unreadable, parse_duration, parse_steps, parse_usd, shown

NAME_PATTERN = r"^[a-z0-9][a-z0-9-]{0,62}$"
CLOUD_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
SLURM_TEXT_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.:,-]{0,254}$"
NODE_FOLDER_PATTERN = r"^/[A-Za-z0-9_./-]{0,254}$"
TEMPLATE_PATTERN = r"^[A-Za-z0-9()./_-]{3,128}$"
_GOOGLE_NAME = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
_GOOGLE_PROJECT = r"([a-z0-9.-]{1,63}:)?[a-z][-a-z0-9]{4,28}[a-z0-9]"
GOOGLE_NAME_PATTERN = rf"^{_GOOGLE_NAME}$"
SUBNETWORK_PATTERN = rf"^(projects/{_GOOGLE_PROJECT}/regions/{_GOOGLE_NAME}/subnetworks/)?{_GOOGLE_NAME}$"
GOOGLE_PROJECT_PATTERN = rf"^{_GOOGLE_PROJECT}$"
GOOGLE_IMAGE_PATTERN = rf"^projects/{_GOOGLE_PROJECT}/global/images/(family/)?{_GOOGLE_NAME}$"
SERVICE_ACCOUNT_PATTERN = r"^[a-z0-9][-a-z0-9]{0,61}@[a-z0-9.-]{1,190}\.gserviceaccount\.com$"
IMAGE_PARAMETER_PATTERN = r"^/[A-Za-z0-9_./-]{1,1010}$"
STEPS_PATTERN = r"^[1-9]\d* steps?$"
SHARE_PATTERN = r"^\d(\.\d{1,6})?$"
TIME_OF_DAY_PATTERN = r"^([01]\d|2[0-3]):[0-5]\d$"
MOMENT_PATTERN = (
    r"^(\d{4})-(\d\d?)-(\d\d?)([Tt]|[ \t]+)(\d\d?):(\d\d)(:(\d\d)(\.\d*)?)?([ \t]*(Z|z|([-+])(\d\d?)(:?(\d\d))?))?$"
)
"""A day and a time as YAML and ISO 8601 write them, with a zone or without."""
COMPARED_NAMES = (
    *("sticky_fallback", "eager_fallback"),
    *("greedy", "uniform_progress", "uniform_progress_no_hysteresis"),
)
"""
Strategies that exist only for comparison in simulations (`spotrun.forecast.baselines`). They can be read, because old
ledgers contain runs with them.
"""
WORD_MAX_BYTES = (128 << 10) - 1
"""
Maximum bytes of one argument or variable of a program on Linux (MAX_ARG_STRLEN in execve(2)), without its final null
byte.
"""
SUGGESTED_MAX = 500
"""Maximum characters of a line that an error message suggests, so that usual arguments are in it to their end."""
STORED = "stored"
"""The validation context that marks a spec as read from a ledger. Some checks apply only to new jobs."""
FIELDS_ONLY = "fields"
"""The validation context in which each value is checked alone, and no values are compared with each other."""
STRATEGY_NAMES = ("ours", "on_demand_only", "spot_only")
"""
The names of the strategies in `spotrun.strategies.catalogue`. They are repeated here, because this package is not
allowed to import that module.
"""


NEWS_KINDS = (
    *("started", "interrupted", "fallback", "returned", "standby", "late"),
    *("budget", "stopped", "failed", "done", "night"),
)
"""The names of the kinds of notifications in `spotrun.notify.news`."""
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
VARIABLE_PATTERN = r"^\$[A-Za-z_][A-Za-z0-9_]*$"


def clean_text(value: object, *, lines: bool = False) -> str:
    """
    Return `value`, after checking that it is text, is not empty, and has no characters that control or reorder text.
    `lines` allows line breaks and tabs.
    """
    if not isinstance(value, str):
        quoted = f'write "{shown(value).lower() if isinstance(value, bool) else shown(value)}"'
        raise Unreadable(f"must be text, not {kind_of(value)}", quoted if is_plain(value) else "write one text")
    allowed = "\n\t\r" if lines else ""
    for character in value:
        if character not in allowed and not character.isprintable() and _is_hostile(character):
            raise Unreadable(f"contains the control character U+{ord(character):04X}", "remove it")
    if not value.strip():
        raise Unreadable("is empty", "write a value or remove the key")
    return value


def _is_hostile(character: str) -> bool:
    """
    Return True if a character can hide or reorder text: a control character, a lone surrogate, a line separator or a
    bidirectional override (CVE-2021-42574).
    """
    bidirectional = "\u202a" <= character <= "\u202e" or "\u2066" <= character <= "\u2069"
    return bidirectional or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")


def is_plain(value: object) -> bool:
    return isinstance(value, int | float | Decimal)


def kind_of(value: object) -> str:
    """Describe the kind of a value in YAML's terms: `a list`, `the number 3`."""
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, int | float | Decimal):
        return f"the number {shown(value)}"
    return {dict: "a mapping", list: "a list", str: "text", type(None): "nothing"}.get(type(value), "this")


def matching(pattern: str, rule: str) -> Callable[[object], str]:
    compiled = re.compile(pattern, re.ASCII)

    def read(value: object) -> str:
        text = clean_text(value)
        if not compiled.fullmatch(text):
            raise Unreadable(f"{shown(text)!r} is not allowed here", rule)
        return text

    return read


def one_of(*allowed: str) -> Callable[[object], Any]:
    listed = " or ".join(filter(None, [", ".join(allowed[:-1]), allowed[-1]]))

    def read(value: object) -> str:
        if isinstance(value, str) and value in allowed:
            return value
        close = difflib.get_close_matches(str(value)[:40].lower().replace("_", "-"), allowed, 1)
        advice = f"write {close[0]}" if close else "write one of these" if len(allowed) > 1 else f"write {allowed[0]}"
        raise Unreadable(f"must be {listed}, not {shown(value)!r}", advice)

    return read


def read_strategy(value: object, info: ValidationInfo) -> str:
    if isinstance(value, str) and value in COMPARED_NAMES:
        if info.context == STORED:
            return value
        raise Unreadable(f"{value} is only for comparisons in `spotrun simulate`", "write ours, or remove the key")
    name: str = one_of(*STRATEGY_NAMES)(value)
    return name


def read_name(value: object) -> str:
    text = clean_text(value)
    if not re.fullmatch(NAME_PATTERN, text, re.ASCII):
        rule = "a name has 1 to 63 small letters, digits and dashes, and starts with a letter or digit"
        raise Unreadable(f"{shown(text)!r} is not a name: {rule}", f"write {name_from(text)}")
    return text


def name_from(text: str) -> str:
    """
    Convert text to the nearest allowed name: `ResNet_50.v2` becomes `resnet-50-v2`. Letters lose their accents: `jöb`
    becomes `job`.
    """
    letters = re.sub(r"[\u0300-\u036f]", "", unicodedata.normalize("NFKD", text))
    return re.sub(r"[^a-z0-9]+", "-", letters.casefold()).strip("-")[:63].strip("-") or "run"


PRIVATE_FOLDER = ".spotrun"
STATE_PATH_MAX = 500
STATE_FILES_MAX = 100_000
"""
Maximum number of files in a list of stored files. spotrun/folder/stored_files.py defines the same limit. It is repeated
here, because reading a job must not import that module.
"""


def read_script(value: object) -> str:
    text = clean_text(value)
    path = PurePosixPath(text)
    if "://" in text:
        raise Unreadable("must be a path inside workdir, not an address", "download it into workdir")
    if path.is_absolute() or text.startswith("~"):
        raise Unreadable("must be a path inside workdir, not an absolute one", "write it relative to workdir")
    if ".." in path.parts:
        raise Unreadable("must stay inside workdir", "remove the .. or set workdir to the folder above")
    if text.startswith("-") or not path.parts:
        raise Unreadable(f"{shown(text)!r} is not a script", "write a path like train.py")
    return str(path)


def read_module(value: object) -> str:
    text = clean_text(value)
    if text.endswith(".py") or "/" in text:
        raise Unreadable(f"{shown(text)!r} is a file, not a module", "write script: in place of module:")
    if not all(part.isidentifier() and not iskeyword(part) for part in text.split(".")):
        raise Unreadable(f"{shown(text)!r} is not a module", "write a name like package.train")
    return text


def read_state_path(value: object) -> str:
    """
    Read the path of a file or folder in the work folder. A final `/` marks a folder, and is kept. A text that begins
    with `!` is not a path, but a pattern for files that do not belong to the state.
    """
    text = clean_text(value)
    if text.startswith("!"):
        return read_pattern(text)
    path = PurePosixPath(text)
    if "://" in text:
        raise Unreadable("must be a path inside workdir, not an address", "write a folder like out/")
    if path.is_absolute() or text.startswith("~"):
        raise Unreadable("must be a path inside workdir, not an absolute one", "write it relative to workdir: out/")
    if ".." in path.parts:
        raise Unreadable("must stay inside workdir", "remove the .., or let the command write into a folder of workdir")
    if not path.parts:
        raise Unreadable(f"{shown(text)!r} is the whole of workdir", "name a folder in it, like out/")
    if set("*?[!") & set(text):
        raise Unreadable(f"{shown(text)!r} is a pattern", "name a folder, which includes all that is in it: out/")
    if PRIVATE_FOLDER in path.parts or len(text) > STATE_PATH_MAX:
        raise Unreadable(f"{shown(text)!r} cannot be state", "name another folder, like out/")
    return f"{path}/" if text.endswith("/") else str(path)


def read_command(value: object) -> str:
    if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        raise Unreadable("must be text, not a list", f"write {in_yaml(as_command(value))}")
    text = clean_text(value, lines=True)
    return _fits_a_word(text, "put it into a script in workdir, and write run: bash SCRIPT")


def _fits_a_word(text: str, suggestion: str, at: tuple[str | int, ...] = ()) -> str:
    if (size_bytes := len(text.encode())) > WORD_MAX_BYTES:
        reason = f"has {size_bytes:,} bytes, and Linux allows at most {WORD_MAX_BYTES:,} in one argument or variable"
        raise Unreadable(reason, suggestion, at=at)
    return text


def read_args(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise Unreadable(f"must be a list, not {kind_of(value)}", f"write {written_list(words_of(value))}")
    return tuple(_arg(item, index) for index, item in enumerate(value))


def words_of(value: object) -> list[str]:
    """Return the arguments that the user means: text is split as a shell does it, and {lr: 0.1} is --lr 0.1."""
    if isinstance(value, dict):
        return [word for name, item in value.items() for word in (f"--{name}", str(item))]
    try:
        return shlex.split(str(value))
    except ValueError:  # a quotation mark without its partner
        return str(value).split()


def program_in(value: object) -> dict[str, object] | None:
    """
    Return the keys of `train` that do what a command does, which is given as text or as a list of words or of lines:
    the script or module with its arguments if Python runs one, otherwise the command itself. Return None for another
    value.
    """
    if isinstance(value, list) and value and all(isinstance(each, str) or is_plain(each) for each in value):
        value = as_command([str(each) for each in value])
    if not isinstance(value, str) or not (words := words_of(value)):
        return None
    if re.fullmatch(r"(.*/)?python[\d.]*", words[0]):
        del words[0]
    key = "module" if words[:1] == ["-m"] and len(words) > 1 else "script"
    program, *args = words[key == "module" :] or [""]
    if set("&|;<>$") & set(value) or (key == "script" and not program.endswith(".py")):
        return {"run": value}
    return {key: program, "args": args} if args else {key: program}


def as_command(parts: Sequence[str]) -> str:
    """Return a list as one command. Its items are lines of a shell if any of them has a blank, otherwise words."""
    return " && ".join(parts) if any(" " in each for each in parts) else shlex.join(parts)


def written_list(words: Sequence[str]) -> str:
    """Return the words as a YAML list in one line, to suggest it in an error message."""
    return f"[{shown(', '.join(map(written, words)), SUGGESTED_MAX)}]"


def in_yaml(value: object) -> str:
    """
    Return a value as YAML in one line, to suggest it in an error message. A text that looks like a secret is replaced
    by ….
    """
    if isinstance(value, dict):
        return f"{{{', '.join(f'{shown(name)}: {in_yaml(item)}' for name, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(in_yaml, value))}]"
    if is_plain(value):
        return str(value).lower() if isinstance(value, bool) else str(value)
    return "…" if value is None or holds_credential(str(value)) else shown(written(str(value)), SUGGESTED_MAX)


def written(text: str) -> str:
    """
    Return a text as a YAML value: without quotes if every YAML reader reads it as the same text, otherwise in double
    quotes.
    """
    plain = re.fullmatch(r"(?:--?)?[A-Za-z_][A-Za-z0-9_./=-]*|\d+[dhms]", text, re.ASCII)
    word = text.lower() in ("null", "true", "false", "yes", "no", "on", "off", "y", "n")
    return text if plain and not word else json.dumps(text, ensure_ascii=False)


def _arg(value: object, index: int) -> str:
    if isinstance(value, str) and not value:
        return value
    if is_plain(value) and not isinstance(value, bool):
        return f"{value:f}" if isinstance(value, Decimal) else str(value)
    try:
        text = clean_text(str(value).lower() if isinstance(value, bool) else value, lines=True)
    except Unreadable as error:
        raise Unreadable(error.message, error.suggestion, at=(index,)) from error
    return _fits_a_word(text, "put it into a file in workdir", at=(index,))


def read_envs(value: object) -> dict[str, str]:
    """Read environment variables. Numbers and booleans become text by Python's `str`, as in SkyPilot."""
    if not isinstance(value, dict):
        raise Unreadable(f"must be a mapping, not {kind_of(value)}", _instead_of_list(value) or "write {NAME: value}")
    return {_env_name(name): _env_value(name, item) for name, item in value.items()}


def _instead_of_list(value: object) -> str | None:
    """
    Return the advice to write a list of variables, such as `[A=b]` or `[{A: b}]`, as a mapping, and to write those with
    secrets under `secrets`. Return None for another value.
    """
    envs: dict[object, object] = {}
    for item in value if isinstance(value, list) else ():
        pair = re.fullmatch(rf"({_NAME})=(.*)", str(item), re.ASCII | re.DOTALL)
        envs |= item if isinstance(item, dict) else {pair[1]: pair[2]} if pair else {}
        if not (isinstance(item, dict) or pair):
            return None
    hidden = [name for name, item in envs.items() if names_secret(str(name)) or holds_credential(str(item))]
    shared = {name: item for name, item in envs.items() if name not in hidden}
    named = f"secrets: [{shown(', '.join(map(str, hidden)))}]"
    parts = [*([in_yaml(shared)] if shared else []), *([named] if hidden else [])]
    return f"write {' and '.join(parts)}" if parts else None


def read_secrets(value: object) -> dict[str, str]:
    """
    Read the names of secrets, each with the place where its value is stored, such as `ssm:/spotrun/wandb`. The place is
    "" if the job names no place. No message quotes a value, because the user may have written the secret itself.
    """
    if isinstance(value, list | tuple):
        if any(isinstance(item, dict) for item in value):
            raise Unreadable("must be a list of names, or one mapping of all of them", f"write {_as_mapping(value)}")
        return {_listed_secret(index, item): "" for index, item in enumerate(value)}
    if not isinstance(value, dict):
        raise Unreadable("must be names of variables", "write [WANDB_API_KEY], or {WANDB_API_KEY: ssm:/spotrun/wandb}")
    return {_secret_name(name): _reference(name, item) for name, item in value.items()}


def _as_mapping(items: Sequence[object]) -> str:
    """
    Return a list of secrets as a YAML mapping, to suggest it in an error message. A place that is not a reference
    becomes null, because the user may have written the secret itself there.
    """
    places: dict[str, str] = {}
    for item in items:
        for name, place in item.items() if isinstance(item, dict) else [(item, None)]:
            if not isinstance(name, str) or not re.fullmatch(_NAME, name, re.ASCII) or holds_credential(name):
                return "{NAME: null, OTHER: env:VARIABLE}"
            try:
                places[name] = _reference(name, place) or "null"
            except Unreadable:
                places[name] = "null"
    return f"{{{', '.join(f'{name}: {place}' for name, place in places.items())}}}"


def _listed_secret(index: int, name: object) -> str:
    if not isinstance(name, str) or not re.fullmatch(_NAME, name, re.ASCII):
        raise Unreadable("is not a variable name", "write the name; its value does not belong here", at=(index,))
    return _secret_name(name, at=(index,))


def _secret_name(name: str, at: tuple[int, ...] = ()) -> str:
    if holds_credential(name):
        raise Unreadable("looks like a secret, and a name belongs here", "write its variable: [HF_TOKEN]", at=at)
    return _env_name(name)


def _reference(name: str, value: object) -> str:
    if value is None or value == "":
        return ""
    try:
        return str(secret_reference.parse(value))
    except Unreadable as error:
        raise Unreadable(error.message, error.suggestion, at=(name,)) from error


def _env_name(name: str) -> str:
    if not re.fullmatch(_NAME, name, re.ASCII):
        likely = shown(re.sub(r"^(?=\d)|\W", "_", name, flags=re.ASCII))
        advice = f"write {likely}" if likely.strip("_") else "use letters, digits and _, and start with no digit"
        raise Unreadable("is not a variable name", advice, at=(name,))
    if name.startswith("SPOTRUN_"):
        raise Unreadable("names that start with SPOTRUN_ belong to spotrun", "choose another name", at=(name,))
    return name


def _env_value(name: str, value: object) -> str:
    if is_plain(value):
        return str(float(value) if isinstance(value, Decimal) else value)
    try:
        text = value if value == "" and isinstance(value, str) else clean_text(value, lines=True)
    except Unreadable as error:
        raise Unreadable(error.message, error.suggestion, at=(name,)) from error
    _fits_a_word(f"{name}={text}", "put it into a file in workdir", at=(name,))
    return text


def read_workdir(value: object) -> Path:
    if isinstance(value, dict):
        raise Unreadable("a work folder from git is known, but not built yet", "clone it and write its path")
    path = Path(clean_text(str(value) if isinstance(value, Path) else value))
    if not path.is_absolute():
        raise Unreadable(f"{shown(path)!r} is not an absolute path", "load the file with load_spec")
    return path


def read_uri(value: object) -> str:
    text = clean_text(value)
    try:
        parsed = address.parse(text)
    except StoreError as error:
        raise Unreadable(error.message, error.hint or "") from error
    return parsed if isinstance(parsed, str) else str(parsed)


def read_every(value: object) -> Literal["auto"] | timedelta | Steps:
    if value == "auto":
        return "auto"
    if (count := _whole(value)) is not None:
        if count <= 0:
            raise Unreadable(f"must be above 0, not {shown(value)}", 'write auto, 10m or "500 steps"')
        raise Unreadable(f"{shown(value)} has no unit", f'write "{_steps(count)}" or {count}s, {count}m or {count}h')
    if isinstance(value, str) and re.fullmatch(r"(\d+\s*)?epochs?", value.strip(), re.ASCII):
        raise Unreadable(f"{shown(value)} is not a time", "write auto, which also saves at the end of each epoch")
    if isinstance(value, Steps) or (isinstance(value, str) and parse_steps(value) is not None):
        return read_steps(value)
    return read_positive_duration(value)


def read_steps(value: object) -> Steps:
    steps = parse_steps(value) if isinstance(value, str) else value
    if not isinstance(steps, Steps):
        number = isinstance(value, int) and not isinstance(value, bool) and value > 0
        advice = f'write "{_steps(value)}"' if number else 'write it like "500 steps"'
        raise Unreadable(f"{shown(value)} is not a number of steps", advice)
    if steps.count == 0:
        raise Unreadable("must be at least 1 step", 'write it like "500 steps"')
    return steps


def _whole(value: object) -> int | None:
    """Return the whole number that a value is, in any notation: 1e3 is 1000. Return None for another value."""
    number = None if isinstance(value, bool) else re.fullmatch(r"-?\d{1,9}(\.\d*)?([eE]\+?\d)?", str(value), re.ASCII)
    return int(Decimal(number[0])) if number and Decimal(number[0]) % 1 == 0 else None


def _steps(count: object) -> str:
    return f"{shown(count)} step{'' if count == 1 else 's'}"


def read_share(value: object) -> Decimal:
    """Read a share of a whole, above 0 and at most 1: `0.8`."""
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(SHARE_PATTERN, text, re.ASCII) or not 0 < Decimal(text) <= 1:
        percent = re.fullmatch(r"(\d{1,2})\s*%", text, re.ASCII)
        advice = f"write {int(percent[1]) / 100:g}" if percent else "write it like 0.8"
        raise Unreadable(f"must be a share above 0 and at most 1, not {shown(text)}", advice)
    return Decimal(text)


def read_positive_duration(value: object) -> timedelta:
    duration = timedelta() if _whole(value) == 0 else parse_duration(value)
    if not duration:
        raise Unreadable("must be longer than 0s", "write it like 10m")
    return duration


def read_age(value: object) -> timedelta:
    """Read how long ago something ended. A number without a unit is most likely a number of days."""
    try:
        return read_positive_duration(value)
    except Unreadable as error:
        if re.fullmatch(r"[1-9]\d{0,2}", str(value), re.ASCII):
            raise Unreadable(error.message, f"write {value}d, or {value}h for hours") from error
        raise


def read_deadline(value: object) -> timedelta | time | datetime:
    """Read a duration, a time of day, or a date with a time: `8h`, `07:00`, `2026-12-01T07:00`, `2026-12-01T07:00Z`."""
    if isinstance(value, time | datetime):
        return value
    text = str(value).strip() if isinstance(value, str | int) else ""
    if re.fullmatch(TIME_OF_DAY_PATTERN, text, re.ASCII):
        return time.fromisoformat(text)
    if written := re.fullmatch(MOMENT_PATTERN, text, re.ASCII):
        return _moment(written)
    try:
        return read_positive_duration(value)
    except Unreadable as error:
        raise _no_deadline(text, error) from error


def _moment(written: re.Match[str]) -> datetime:
    year, month, day, _, hour, minute, _, second, _, _, zone, sign, east, _, east_min = written.groups()
    try:
        moment = datetime.fromisoformat(f"{year}-{month:0>2}-{day:0>2}T{hour:0>2}:{minute}:{second or '00'}")
        if zone is None:
            return moment
        offset = timedelta(hours=int(east or 0), minutes=int(east_min or 0))
        return moment.replace(tzinfo=timezone(-offset if sign == "-" else offset))
    except ValueError as error:
        raise Unreadable(f"{shown(written[0])} is not in the calendar: {error}", f"write it like {MOMENT}") from error


MOMENT = "2026-12-01T07:00"
"""An example of a deadline with a date and a time."""


def _no_deadline(text: str, because: Unreadable) -> Unreadable:
    """
    Return the error for a text that is neither a duration, a time of day, nor a date with a time. The error suggests
    what to write instead.
    """
    if re.fullmatch(r"\d{1,2}:\d{2}", text, re.ASCII):
        return Unreadable(f"{shown(text)!r} is not a time of day", "write it like 07:00, or a duration like 8h")
    if day := re.fullmatch(r"(20\d\d)(-?)(\d\d?)\2(\d\d?)", text, re.ASCII):
        advice = f"write it like {day[1]}-{day[3]:0>2}-{day[4]:0>2}T07:00"
        return Unreadable(f"{text} is a day without a time, and a deadline needs a time", advice)
    if half := re.fullmatch(r"(\d{1,2})(?::(\d\d))?\s*([ap])\.?m\.?", text.lower(), re.ASCII):
        hour = int(half[1]) % 12 + (12 if half[3] == "p" else 0)
        return Unreadable(
            f"{shown(text)!r} is not a time of day", f"write {hour:02d}:{half[2] or '00'}, or a duration like 8h"
        )
    if re.search(r"\d[-/.]\d|[A-Za-z]{3}", text) and because.suggestion == DURATION_FORMS:
        return Unreadable(f"{shown(text)!r} is not a date with a time", f"write it like {MOMENT}, 07:00 or 8h")
    if re.fullmatch(r"[01]?\d|2[0-3]", text, re.ASCII):
        return Unreadable(because.message, f"{because.suggestion}, or {int(text):02d}:00 for the time of day")
    return because


def read_notify_command(value: object) -> str:
    """
    Read a shell command. Refuse a command that contains a secret, because all readers of the run's folder can read it.
    """
    text = clean_text(value, lines=True)
    if holds_credential(text):
        raise Unreadable(
            "contains what looks like a key or the address of a webhook",
            'export it as a variable and write its name, like curl -d @- "$SLACK_WEBHOOK"',
        )
    return text


def read_condition(value: object) -> str:
    text = clean_text(value)
    condition.parse(text)
    return text


ON_DEMAND = "on-demand"
"""The baseline of a report, unless the job names another price."""


INSTANCE_TYPE_PATTERN = r"[a-z][a-z0-9]*[.-][a-z0-9.-]{0,60}[a-z0-9]"
"""Pattern of the names of instance types, such as `g5.xlarge` and `a2-highgpu-1g`."""


def read_baseline(value: object) -> str:
    """Read `on-demand`, the name of an instance type, or US dollars per hour."""
    if isinstance(value, str) and (value == ON_DEMAND or is_instance_type(value)):
        return value
    try:
        return f"{parse_usd(value):f}"
    except Unreadable as error:
        if difflib.get_close_matches(str(value).lower().replace("_", "-"), (ON_DEMAND,), cutoff=0.8):
            raise Unreadable(f"{shown(value)!r} is no baseline", f"did you mean {ON_DEMAND}?") from error
        raise Unreadable(error.message, f"{error.suggestion}, an instance type, or on-demand") from error


def is_instance_type(baseline: str) -> bool:
    return baseline != ON_DEMAND and re.fullmatch(INSTANCE_TYPE_PATTERN, baseline, re.ASCII) is not None


def read_webhook(value: object) -> str:
    """
    Read the name of a variable, `$NAME`. No message quotes the value, because it may be the webhook's address itself.
    """
    text = clean_text(value)
    if not re.fullmatch(VARIABLE_PATTERN, text, re.ASCII):
        raise Unreadable(
            "an address that allows anyone to write is a secret, and does not belong in a file",
            "export it as a variable and write its name, like $SLACK_WEBHOOK",
        )
    return text


def read_notice(value: object) -> timedelta | None:
    return None if value is None or value == "none" else parse_duration(value)


def read_time_scale(value: object) -> float:
    number = _number(value, "a number", "write it like 60")
    if not 1 <= number <= 100_000:
        raise Unreadable(f"must be 1 to 100000, not {shown(value)}", "write 1 for real time")
    return float(number)


def read_node_usd(value: object) -> Decimal:
    """Read the price of a node, which may be 0."""
    if isinstance(value, int | float | Decimal | str) and _is_zero(value):
        return Decimal(0)
    if str(value).startswith("-"):
        raise Unreadable(f"must be 0 or more dollars, not {shown(value)}", "write 0 for a node that costs nothing")
    return parse_usd(value)


def _is_zero(value: int | float | Decimal | str) -> bool:
    return not isinstance(value, bool) and re.fullmatch(r"0+(\.0+)?", str(value), re.ASCII) is not None


def read_gigabytes(value: object) -> float:
    number = _number(value, "a number of GB", "write it like 40")
    if not 0 <= number <= 1_000_000:
        raise Unreadable(f"must be 0 to 1000000 GB, not {shown(value)}", "write it like 40")
    return float(number)


def _number(value: object, what: str, fix: str) -> int | float | Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        bare = re.fullmatch(r"(\d+(\.\d+)?)\s*(x|GB|GiB)?", str(value), re.ASCII | re.IGNORECASE)
        raise Unreadable(f"must be {what}, not {kind_of(value)}", f"write {bare[1]}" if bare else fix)
    return value


@dataclass(frozen=True)
class Accelerators:
    """`count` accelerators of one kind per instance. `name` is spelled as in the job: `V100`, `A100-80GB`."""

    name: str
    count: int = 1

    def __str__(self) -> str:
        return f"{self.name}:{self.count}"


def read_accelerators(value: object) -> Accelerators:
    if isinstance(value, Accelerators):
        return value
    if isinstance(value, list) or (isinstance(value, dict) and len(value) > 1):
        raise Unreadable("is a choice, and only one kind belongs here", "name one, like V100:1")
    if is_plain(value):
        raise Unreadable(f"must be text that names a GPU, not {kind_of(value)}", "write it like A10G:1")
    name, count = next(iter(value.items()), ("", 1)) if isinstance(value, dict) else _split(value)
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name, re.ASCII):
        raise Unreadable(f"{shown(value)!r} names no accelerator", "write it like V100:1")
    if re.fullmatch(r"[\d.]+[MGT]i?B", name, re.ASCII | re.IGNORECASE):
        raise Unreadable(f"{name} is a memory size", "name a GPU, like A10G:1")
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 1024:
        raise Unreadable(f"{shown(count)!r} is not a whole number of accelerators", f"write {shown(name)}:1")
    return Accelerators(name, count)


def _split(value: object) -> tuple[str, object]:
    name, colon, count = clean_text(value).partition(":")
    return name.strip(), (int(count) if re.fullmatch(r"\s*\d{1,6}", count, re.ASCII) else count) if colon else 1


def read_num_nodes(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        number = int(value) if isinstance(value, str) and re.fullmatch(r"[1-9]\d?", value, re.ASCII) else 1
        quoted = " in quotation marks" if number > 1 or value == "1" else ""
        advice = f"write {number}" if number > 1 or quoted or value == 0 else "write how many instances, like 2"
        raise Unreadable(f"must be a whole number of at least 1, not {shown(value)}{quoted}", advice)
    return value
