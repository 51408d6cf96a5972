"""Describes the problems in a spec. Each description names a key, and says what to write instead."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Annotated, Any, TypeGuard, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

from spotrun.spec.values import in_yaml, kind_of, program_in, words_of, written_list
from spotrun.units import Unreadable, shown

UNBUILT = frozenset(
    {
        *("schedule", "labels"),
        *("resources.labels",),
    }
)
"""Keys that are planned, but not built yet. They are refused, never ignored (docs/design/architecture.md)."""
SHORTHANDS = {
    "run": "train.run",
    "resources.use_spot": "resources.spot_policy",
    "resources.infra": "resources.cloud",
    "resources.any_of": "resources.home",
}
"""
Keys that a file may use as a shorthand, each with the key of the model to which it is converted (see
`spotrun.spec.file`).
"""
ELSEWHERE = {
    "gpu": "resources.accelerators",
    "gpus": "resources.accelerators",
    "gpu_type": "resources.accelerators",
    "spot": "resources.use_spot",
    "use_spot_instances": "resources.use_spot",
    "cpu": "resources.cpus",
    "backends": "resources.cloud",
    "regions": "aws.regions",
    "availability_zones": "resources.zone",
    "disk": "aws.volume_gb",
    "disk_size": "aws.volume_gb",
    "command": "run",
    "commands": "run",
    "entrypoint": "run",
    "entry_point": "train.script",
    "working_dir": "workdir",
    "source_dir": "workdir",
    "nodes": "num_nodes",
    "instance_count": "num_nodes",
    "timeout": "max_duration",
    "max_run": "max_duration",
    "max_wait": "policy.deadline",
    "checkpoint_s3_uri": "checkpoint.uri",
    "event_callback": "notify",
    "slack": "notify.webhook",
}
"""
Keys of other tools (SkyPilot, dstack, SageMaker), each with the spotrun key that has the same meaning. If a job has
such a key, the message names the spotrun key.
"""
_OF_SCRIPT = frozenset(
    {
        *("epochs", "num_epochs", "max_epochs", "lr", "learning_rate", "batch_size", "seed", "hyperparameters"),
        *("devices", "precision", "model_name", "max_steps", "num_workers", "weight_decay"),
    }
)
"""Arguments of training scripts that users write as keys of a job."""
MAIN_KEYS: Mapping[str, tuple[str, ...]] = {
    "budget": ("max_usd",),
    "checkpoint": ("uri",),
    "data": ("gb",),
    "keep_best": ("metric",),
    "policy": ("deadline",),
    "report": ("fail_if",),
    "resources": ("cloud", "accelerators"),
    "retry": ("max_restarts",),
}
"""The keys of a section that a single value in place of the section may mean, the likeliest first."""
_ALWAYS = "spotrun always recovers from an interruption", "remove it; retry.max_restarts is for a script that fails"
_SERVES = "spotrun trains, and does not serve", "remove it"
_ENDS = "spotrun ends each instance when its run no longer needs it", "remove it"
_CONTAINS = "a container image is named under resources", "write resources: {image_id: docker:REPO/NAME:TAG}"
_MOUNTS = "nothing is mounted", "read data from a bucket in the script, or put it into workdir"
_ALONE = "a run does not share its instances", "remove it"
OWN_WORDS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("job_recovery", "spot_recovery", "recovery_strategy"), _ALWAYS),
    "ports": ("an instance has no open port", "remove it; `spotrun ssh RUN` opens a shell"),
    **dict.fromkeys(("service", "replicas", "scaling", "gateway", "probes", "ide", "model"), _SERVES),
    **dict.fromkeys(
        ("autostop", "autodown", "idle_minutes_to_autostop", "idle_duration", "inactivity_duration"), _ENDS
    ),
    **dict.fromkeys(
        ("min_nodes", "max_nodes"),
        ("num_nodes is the most, and elastic.min_nodes the least", "write num_nodes: 4, elastic: {min_nodes: 2}"),
    ),
    "stop_duration": ("a stop waits for the last checkpoint", "remove it"),
    **dict.fromkeys(("image", "image_id", "container_image", "docker", "privileged", "registry_auth"), _CONTAINS),
    **dict.fromkeys(("file_mounts", "volumes", "volume_mounts", "storage_mounts", "mounts"), _MOUNTS),
    "managed_secrets": ("spotrun reads no secrets from a server of SkyPilot", "write secrets: [NAME]"),
    "api_server_access": ("a training gets no credentials of a server", "remove it"),
    "hooks": ("no hook runs when an instance ends", "let the command save when it gets SIGTERM"),
    **dict.fromkeys(("any_of", "ordered"), ("candidates belong under resources", "write it under resources")),
    "files": ("workdir is uploaded whole", "put them into workdir"),
    "repos": ("workdir is uploaded as it is on this machine", "clone the repository, and write its path as workdir"),
    "python": ("a training uses the Python of its image", "install another one in setup"),
    **dict.fromkeys(
        ("disk_tier", "network_tier", "accelerator_args", "shm_size", "local_disk", "ephemeral_storage"),
        ("spotrun does not choose this", "remove it, or set it in a launch template (aws.launch_template)"),
    ),
    **dict.fromkeys(("pool", "fleets", "fleet", "priority", "priority_class", "creation_policy", "user"), _ALONE),
    "utilization_policy": ("policy.hang_after ends a training that makes no progress", "write policy.hang_after: 5m"),
    "type": ("this looks like a dstack file, and in spotrun every job is a training", "remove it"),
    "inputs": ("a job states only how much data it reads", "write data: {gb: 40}, or remove it"),
    "config": ("settings of SkyPilot are not read", "remove it"),
    "experimental": ("settings of SkyPilot are not read", "remove it"),
}
"""
Keys of other tools that have no counterpart in spotrun. For each key, the reason why spotrun does not have it, and what
to do instead.
"""
ANY_NAME = "*"
OWN = "x-"
"""Prefix of the keys that users add for their own purposes. spotrun ignores these keys."""

Key = tuple[str | int, ...]
Choices = tuple[tuple[object, str], ...]
"""Values that may be meant, each with the words that propose it."""


@dataclass(frozen=True)
class Problem:
    """
    One fault of a spec: its `key`, a message, and a suggestion of what to write instead. `meant` is the key that the
    user probably meant. If the suggestion proposes several values, `choices` are these values.
    """

    key: Key
    message: str
    suggestion: str | None = None
    meant: Key = ()
    choices: Choices = ()

    def __str__(self) -> str:
        return sentence(dotted(self.key), self.message, self.suggestion)


def written_choices(choices: Choices) -> str:
    return f"write {', or '.join(words for _, words in choices)}"


def with_accepted_choices(problem: Problem, model: type[BaseModel]) -> Problem:
    """
    Return the problem with a suggestion of only those values that the key accepts. If it accepts neither the word that
    was written nor the boolean that YAML reads, return the problem of the word.
    """
    path = [part for part in problem.key if isinstance(part, str)]
    if len(path) < len(problem.key):  # an item of a list
        return problem
    accepted = tuple(choice for choice in problem.choices if _accepts(model, path, choice[0]))
    if accepted:
        return replace(problem, suggestion=written_choices(accepted))
    word = problem.choices[1][0] if problem.choices and isinstance(problem.choices[0][0], bool) else None
    refusals = [] if word is None else _refusals(model, path, word)
    return replace(refusals[0], key=problem.key) if refusals else problem


class Disagreements(ValueError):
    """Raised for a model whose values are each readable, but are refused together: `found` has all of the errors."""

    def __init__(self, found: Sequence[Unreadable]) -> None:
        super().__init__("; ".join(map(str, found)))
        self.found = found


def sentence(*parts: str | None) -> str:
    """Join the non-empty parts into one text: `where: key: message; suggestion`. The last part is the suggestion."""
    *before, suggestion = parts
    told = ": ".join(part for part in before if part)
    return f"{told}; {suggestion}" if suggestion else told


def dotted(key: Key) -> str:
    """Return a key in dotted form, such as `local.script[0].when`, that is safe to show."""
    written = "".join(f"[{part}]" if isinstance(part, int) else f".{shown(part)}" for part in key)
    return written.removeprefix(".")


def problems_of(error: ValidationError, model: type[BaseModel], at: Key = ()) -> list[Problem]:
    """
    Convert each failure that pydantic found in a `model`, or in the value of its key `at`, to a problem with a plain
    message.
    """
    details = [{**detail, "loc": at + detail["loc"]} for detail in error.errors(include_url=False)]
    _join_accelerators([detail for detail in details if detail["type"] == "extra_forbidden"])
    return [problem for detail in details for problem in _problems(detail, model)]


def _join_accelerators(unknown: Sequence[dict[str, Any]]) -> None:
    """Give two unknown keys of one section, `gpus: 4` and `gpu_type: A100`, the value that both mean: `A100:4`."""
    meant = [each for each in unknown if ELSEWHERE.get(each["loc"][-1]) == "resources.accelerators"]
    for counted, named in permutations(meant, 2):
        count, name = counted["input"], named["input"]
        if counted["loc"][:-1] == named["loc"][:-1] and type(count) is int and isinstance(name, str):
            counted["input"] = named["input"] = f"{name}:{count}"


def _problems(detail: dict[str, Any], model: type[BaseModel]) -> Iterator[Problem]:
    key: Key = detail["loc"]
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, Disagreements):
        yield from (problem_at(key, each) for each in cause.found)
    elif isinstance(cause, Unreadable):
        yield problem_at(key, cause)
    elif detail["type"] == "extra_forbidden":
        yield unknown_key(key, model, detail["input"])
    else:
        kind, value = detail["type"], detail["input"]
        message, suggestion = _in_our_words(kind, value, detail.get("ctx", {}), detail["msg"])
        yield Problem(key, message, _instead(kind, key, value, model) or suggestion)
        if kind == "tuple_type" and isinstance(value, dict):  # its own mistakes, as those of a list's only item
            path = [part for part in key if isinstance(part, str)]
            for each in _refusals(model, path, [value]):
                yield replace(each, key=(*key, *each.key[len(path) + 1 :]))


def problem_at(key: Key, cause: Unreadable) -> Problem:
    return Problem(key + cause.at, cause.message, cause.suggestion)


def _instead(kind: str, key: Key, value: object, model: type[BaseModel]) -> str | None:
    """Return what to write if a value stands in place of a list or a section that contains it; None if unknown."""
    path = [part for part in key if isinstance(part, str)]
    if kind in ("tuple_type", "list_type"):
        usable = isinstance(value, dict) or _accepts(model, path, [value])
        return f"write [{in_yaml(value)}]" if usable else None
    if kind != "model_type" or isinstance(key[-1], int):
        return None
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        whole = {name: item for each in value for name, item in each.items()}
        return f"write {path[-1]}: {in_yaml(whole)}, without dashes"
    if (pair := pair_without_space(value)) and ".".join((*path, pair[0])) in keys_of(model):
        return f"write a space after the colon: {pair[0]}: {shown(pair[1])}"
    if path == ["train"] and (program := program_in(value)) is not None:
        return f"write train: {in_yaml(program)}"
    names = MAIN_KEYS.get(path[-1], ())
    meant = next((name for name in names if _accepts(model, [*path, name], value)), None)
    if meant is not None:
        return f"write {path[-1]}: {{{meant}: {in_yaml(value)}}}"
    return f"write {path[-1]}: {{{names[0]}: …}}" if names else None


def pair_without_space(text: object) -> tuple[str, str] | None:
    """Return the key and the value in a text like `name:a`, in which a space after the colon is missing, or None."""
    pair = re.fullmatch(r"([A-Za-z_]\w*):([^\s:/].*)", text, re.ASCII) if isinstance(text, str) else None
    return pair and (pair[1], pair[2])


def _in_our_words(kind: str, value: object, limits: Mapping[str, Any], otherwise: str) -> tuple[str, str | None]:
    match kind:
        case "missing":
            return "is missing", "add it"
        case "model_type" | "dict_type":
            return f"must be a mapping, not {kind_of(value)}", "write key: value lines below it"
        case "tuple_type" | "list_type":
            return f"must be a list, not {kind_of(value)}", "write it as [ … ] or as lines that start with a dash"
        case "too_short":
            return "is empty", "write one, or remove the key"
        case "too_long":
            return f"has {limits['actual_length']} items, and at most {limits['max_length']} are allowed", "remove some"
        case "int_type":
            return f"must be a whole number, not {kind_of(value)}", _number_in(value)
        case "bool_type":
            return f"must be true or false, not {shown(value)!r}", "write true or false, without quotes"
        case "greater_than_equal":
            return f"must be at least {limits['ge']}, not {shown(value)}", f"write {limits['ge']} or more"
        case "less_than_equal":
            return f"must be at most {limits['le']}, not {shown(value)}", f"write {limits['le']} or less"
        case _:
            return otherwise, None


def _number_in(value: object) -> str:
    """Advise the whole number in a text such as `8 nodes`. The sizes of a job are in GB, so 2TB is 2000."""
    found = re.fullmatch(r"(\d{1,9})\s*([a-z]*)", str(value).strip(), re.ASCII | re.IGNORECASE)
    if found is None or found[2].upper() in ("K", "KB", "KIB", "M", "MB", "MIB"):
        return "write it like 3"
    return f"write {int(found[1]) * (1000 if found[2].upper() in ('T', 'TB', 'TIB') else 1)}"


def unknown_key(key: Key, model: type[BaseModel], value: object) -> Problem:
    """
    Return a `Problem` for a key that the model does not have, and its `value`. Its message says whether the key is
    planned, has another name in spotrun, was probably misspelt, or is unknown.
    """
    section = _section(key[:-1], model)
    name = str(key[-1])[:60]
    known = list(keys_of(model))
    known += [short for short, meant in SHORTHANDS.items() if meant in known]
    full = f"{section}.{name}" if section else name
    if full in UNBUILT:
        return Problem(key, "is known, but not built yet", "remove it for now")
    if name in OWN_WORDS:
        return Problem(key, *OWN_WORDS[name])
    if not section and name in _OF_SCRIPT:
        words = words_of(value if isinstance(value, dict) else {name: value})
        return Problem(key, "is an argument of the script", f"write args: {written_list(words)} under train")
    if name in known and "." in name:
        where = " at the top of the file" if section else ""
        return Problem(key, "unknown key", f"write {as_line(name, value, model)}{where}")
    meant, suggestion = _meant(section, name, known, lambda path: as_line(path, value, model, section))
    path = tuple(SHORTHANDS.get(meant, meant).split("."))
    refusals = [] if isinstance(value, dict) else _refusals(model, path, value)
    why = [each for each in refusals if each.key == path and each.suggestion]
    suggestion += "".join(f" {each.message}; {each.suggestion}" for each in why[:1])
    inside = meant.removeprefix(f"{section}.") if section else meant
    return Problem(key, "unknown key", suggestion, path if inside == meant else (*key[:-1], *inside.split(".")))


def _section(key: Key, model: type[BaseModel]) -> str:
    """
    Return the path of the section that contains `key`, written as in `keys_of(model)`: without indices of lists, and
    with * in place of each name that the user chose.
    """
    known = {path.rpartition(".")[0] for path in keys_of(model)}
    section = ""
    for part in key:
        if isinstance(part, str):
            named = f"{section}.{part}".removeprefix(".")
            section = named if named in known or f"{named}.{ANY_NAME}" in known else f"{section}.{ANY_NAME}"
    return section


def as_line(path: str, value: object, model: type[BaseModel], within: str = "") -> str:
    """
    Return the line of a job file that sets the key at `path`, such as `policy: {deadline: 8h}`. If the key is in the
    section `within`, return the line in this section. The line has … in place of a value that the key does not accept.
    """
    *above, name = path.removeprefix(f"{within}." if within else "").split(".")
    line = f"{name}: {in_yaml(value) if _accepts(model, path.split('.'), value) else '…'}"
    for section in reversed(above):
        field = model.model_fields.get(section)
        listed = field is not None and get_origin(field.annotation) is tuple
        line = f"{section}: [{{{line}}}]" if listed else f"{section}: {{{line}}}"
    return line


def _accepts(model: type[BaseModel], path: Sequence[str], value: object) -> bool:
    return not _refusals(model, path, value)


def _refusals(model: type[BaseModel], path: Sequence[str], value: object) -> list[Problem]:
    """
    Return the problems of the value if it stands at `path`. Return none if the key accepts it, or if `path` is a
    shorthand, which is checked later.
    """
    head, *rest = path
    field = model.model_fields.get(head)
    if field is None:
        return []
    inner = [each for each in (field.annotation, *get_args(field.annotation)) if _is_model(each)]
    if rest and inner:
        found = min((_refusals(each, rest, value) for each in inner), key=len)
        return [replace(each, key=(head, *each.key)) for each in found]
    for name in reversed(rest):
        value = {name: value}
    kind: Any = Annotated[field.annotation, field]
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        return problems_of(error, model, (head,))
    return []


def _is_model(kind: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _meant(section: str, name: str, known: list[str], line_of: Callable[[str], str]) -> tuple[str, str]:
    """
    Return the path of the key that the user probably meant ("" if unknown), and a suggestion. If `name` is a key of
    another tool, suggest spotrun's key for the same purpose; otherwise a similar key in this section, or the same key
    in another section. `line_of` returns the line that sets the key at a path.
    """
    if (meant := ELSEWHERE.get(name)) in known and meant is not None:
        return meant, f"did you mean {line_of(meant) if '.' in meant else meant}?"
    siblings = [path.rpartition(".")[2] for path in known if path.rpartition(".")[0] == section]
    written = name.lower().replace("-", "_")
    near = difflib.get_close_matches(written, siblings, 1, cutoff=0.8)
    longer = [sibling for sibling in siblings if sibling.startswith(f"{name}_")]
    elsewhere = [path for path in known if path.rpartition(".")[2] == name]
    guesses = near or longer or elsewhere or difflib.get_close_matches(written, siblings, 1, cutoff=0.6)
    if not guesses:
        alike = difflib.get_close_matches(written, [path.rpartition(".")[2] for path in known], 1, cutoff=0.8)
        guesses = elsewhere = [path for path in known if path.rpartition(".")[2] in alike]
    if not guesses:
        own = f"; a key of your own is {OWN}{name}" if re.fullmatch(r"[\w-]+", name, re.ASCII) else ""
        return "", f"known here: {', '.join(siblings)}{own}"
    if guesses is elsewhere and "." not in guesses[0]:
        return guesses[0], f"write {guesses[0]} at the top of the file"
    path = guesses[0] if guesses[0] in elsewhere else f"{section}.{guesses[0]}".removeprefix(".")
    return path, f"did you mean {line_of(guesses[0]) if '.' in guesses[0] else guesses[0]}?"


def keys_of(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """
    Yield the path of each key, such as `resources.max_price`. The indices of lists are left out of a path, and * stands
    for a name that the user chooses.
    """
    for name, field in model.model_fields.items():
        yield above + name
        named = f"{ANY_NAME}." if get_origin(field.annotation) is Mapping else ""
        for inner in (field.annotation, *get_args(field.annotation)):
            if _is_model(inner):
                yield from keys_of(inner, f"{above}{name}.{named}")
