"""Makes a RunSpec from a YAML file and the command line's flags, or lists every problem with its line number."""

from __future__ import annotations

import codecs
import contextlib
import copy
import difflib
import itertools
import os
import re
import shlex
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from spotrun.address import DEFAULT_STORE, mistyped
from spotrun.errors import Mistakes, ProbableMistake, SeveralInvalid, SpecInvalid, SpotrunError, Unsound, found
from spotrun.spec.clouds import BUILT_IN, find_cloud
from spotrun.spec.kinds import ANY_OF, entries_of
from spotrun.spec.leaks import plain_secrets
from spotrun.spec.model import RunSpec, files_of_module
from spotrun.spec.own_machine import this_host
from spotrun.spec.patterns import read_pattern
from spotrun.spec.places import HARDWARE, HOME, has_machine, read_places
from spotrun.spec.problems import (
    OWN,
    Key,
    Problem,
    dotted,
    problem_at,
    problems_of,
    sentence,
    unknown_key,
    with_accepted_choices,
)
from spotrun.spec.sky.job import translate
from spotrun.spec.strict import Model
from spotrun.spec.values import (
    FIELDS_ONLY,
    STATE_FILES_MAX,
    clean_text,
    in_yaml,
    kind_of,
    name_from,
    program_in,
    read_module,
    read_script,
    read_state_path,
)
from spotrun.spec.yaml import BYTES_MAX, NULLS, TOP, Document, Position, read_yaml
from spotrun.units import Unreadable, shown

_FLAGS = {
    "resources.max_price": "--max-price",
    "budget.max_usd": "--budget",
    "checkpoint.uri": "--store",
    "max_duration": "--max-duration",
    "num_nodes": "--num-nodes",
    "policy.expected_work": "--work",
}
_REQUIRED: Mapping[str, object] = {"name": "job", "workdir": "/", "train": {}}
"""A value for each key that each job has, to be used while the job's own value has a problem."""
_NOT_IN_TEXT = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")
"""Matches bytes that no text has in an encoding of single bytes."""
STARTERS = frozenset({"accelerate", "bash", "deepspeed", "mpirun", "python", "python3", "sh", "srun", "torchrun", "uv"})
"""Programs with which the command of a training usually begins."""


@dataclass(frozen=True)
class PlacedProblem:
    """
    A problem, and its line and column in the file. If a flag caused the problem or can solve it, there is no file, and
    `key` is the flag. If the job was made from a script, there is no file either.
    """

    file: str | None
    key: str
    message: str
    suggestion: str | None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return sentence(where, self.key, self.message, self.suggestion)

    def to_dict(self) -> dict[str, object]:
        place = found(self.message, self.suggestion, file=self.file, key=self.key or None)
        return {**place, "line": self.line, "column": self.column}


class SpecFileInvalid(SpecInvalid):
    """The error for a spec with problems. `problems` lists them by line, for `--json`."""

    def __init__(self, path: Path, problems: tuple[PlacedProblem, ...], hint: str | None = None) -> None:
        count = "" if len(problems) == 1 else f"{len(problems)} problems in {shown(path, 200)}\n"
        listed = "\n".join(f"{'  ' if count else ''}{problem}" for problem in problems)
        super().__init__(count + listed, hint=hint or self._hint(path, problems))
        self.problems = problems

    def problems_found(self) -> list[dict[str, object]]:
        return [{**problem.to_dict(), "fix": problem.suggestion or self.hint} for problem in self.problems]

    def _hint(self, path: Path, problems: tuple[PlacedProblem, ...]) -> str:
        if all(problem.file is None for problem in problems):
            if not all(problem.key.startswith("--") for problem in problems):  # a key of a job made from a script
                return f"`spotrun init {shlex.quote(shown(path, 200))}` writes a job file, in which keys can be set"
            return "correct the flag; --help shows all flags"
        return f"correct the file, then run `spotrun validate {shlex.quote(shown(path, 200))}`"


def load_spec(
    path: Path,
    overrides: Mapping[str, object] | None = None,
    default_store: str = DEFAULT_STORE,
    arguments: Sequence[str] = (),
    check: Callable[[RunSpec], object] | None = None,
) -> RunSpec:
    """
    Return the spec that a job file and the flags of a command describe. Keys that are not given have their defaults. If
    `path` is a Python script, it is treated like a job file in the same folder that names only this script.

    In the file, `workdir`, `checkpoint.uri` and `aws.advisor` are relative to the file's folder. In the spec, they are
    absolute.

    `overrides` are the values of flags. Each is given with the path of the key that the flag sets:
    {"resources.max_price": "2.50", "resources.spot_policy": "spot", "envs.LR": "0.1"}. None means that the flag was not
    given. These values are checked like those of the file, but a problem names the flag (`--max-price`, `--spot`,
    `--env LR`). `default_store` is the default of `checkpoint.uri`. If `arguments` are not empty, they replace the
    arguments of the script. `check` is called with the job to raise further errors, which are listed with the job's
    problems. If it reads a value that has a problem, `Unsound` ends it. A ProbableMistake is listed only along with
    other errors.

    Raises:
        SpecFileInvalid: lists every problem with its key, line and suggestion; nothing was started.
        SpotrunError: `check` raised it, and there is no other problem.
    """
    mistakes, draft = Mistakes(), Draft(Path(path), Document())
    with mistakes:
        draft = Draft(Path(path), _document(Path(path)))
        if resolve(draft, overrides or {}, default_store, arguments) is None:
            told = f"`spotrun validate --from sky {shown(path, 200)}` shows the translation of each key"
            raise SpecFileInvalid(draft.path, draft.placed(), told if draft.of_sky else None)
    if check is not None:
        with mistakes:
            check(draft.sound)
    if not all(isinstance(error, ProbableMistake) for error in mistakes.errors):
        raise draft.located(mistakes.errors)
    return draft.sound


def check_job(path: Path, text: str, flags: Mapping[str, object]) -> None:
    """
    Check `text` before it is written as the job file at `path`. `flags` are the values in it that the user gave by
    flags, as the `overrides` of `load_spec`. A problem with one of them names the flag.

    Raises:
        SpecFileInvalid: lists every problem.
    """
    draft = Draft(path, read_yaml(text))
    if resolve(draft, flags, DEFAULT_STORE, ()) is None:
        raise SpecFileInvalid(path, draft.placed(), "correct the command; it has written nothing")


def _document(path: Path) -> Document:
    require_file(path)
    if path.suffix == SCRIPT:
        return Document({"train": {"script": path.name}})
    if path.suffix in _NO_JOBS:
        what, instead = _NO_JOBS[path.suffix]
        raise _unreadable(path, what, instead.format(shlex.quote(shown(path, 200))), _NAME_A_JOB)
    document = read_yaml(read_text(path))
    for keys, kind in _OF_OTHERS:
        if keys <= document.data.keys():
            raise _unreadable(path, f"is a {kind}, not a job", hint=_NAME_A_JOB)
    return document


def resolve(
    draft: Draft, overrides: Mapping[str, object], default_store: str, arguments: Sequence[str]
) -> RunSpec | None:
    """
    Turn the draft into a job: translate its keys, apply the flags and arguments, resolve the paths, and check the
    result. Return the job, or None if there are problems. This changes the draft, and adds the problems to it. The
    draft then also has the values without problems, as `sound`.
    """
    if not draft.hopeless():
        _leave_out_own_keys(draft)
        _take_misspelt(draft)
        _take_places(draft)
        _take_sky(draft)
        draft.ours = copy.deepcopy(draft.data)
        _take_run(draft)
        _take_use_spot(draft)
        _take_outputs(draft)
        _spell_choice(draft)
        _take_arguments(draft, arguments)
        apply_overrides(draft, overrides)
        _take_region(draft)
        resolve_paths(draft, default_store)
        draft.sound = _validated(draft)
        for key in {problem.key for _, problem in draft.problems} - {()}:
            draft.sound = draft.sound.without(key)
    return None if draft.problems else draft.sound


@contextlib.contextmanager
def placed(path: Path, overrides: Mapping[str, object] | None = None) -> Iterator[None]:
    """
    Extend an error that the `with` block raises about a key of the job: add the source of the key's value, which is the
    line in the file at `path`, or the flag. If there are several errors, raise a SpecFileInvalid that lists them.
    """
    try:
        yield
    except SpotrunError as error:
        errors = error.errors if isinstance(error, SeveralInvalid) else [error]
        draft = Draft(path, _document(path)) if any(each.key for each in errors) else None
        if draft is None or draft.hopeless():
            raise
        _take_places(draft)
        _take_sky(draft)
        _take_use_spot(draft)
        _spell_choice(draft)
        apply_overrides(draft, overrides or {})
        raise draft.located(errors) from error.__cause__


def _of_nothing() -> RunSpec:
    """Return a job of which no value is known."""
    spec = RunSpec.model_construct()
    vars(spec).clear()
    return spec


@dataclass
class Draft:
    """A spec that is being built from a file and flags: the content of the file, and the problems found so far."""

    path: Path
    document: Document
    problems: list[tuple[Position | None, Problem]] = field(init=False)
    spelled: dict[Key, Key] = field(default_factory=dict)
    """
    For each key of the model, the key that the user wrote instead of it. Keys that the user wrote as in the model are
    left out.
    """
    taken: dict[Key, str] = field(default_factory=dict)
    """SkyPilot's keys in the file, each with a text that says how the key was translated."""
    ours: dict[str, Any] = field(default_factory=dict)
    """The file's content, with SkyPilot's keys replaced by spotrun's. Empty until `resolve` has begun."""
    of_sky: bool = False
    """True if the file has keys that only SkyPilot has."""
    flags: dict[Key, str] = field(default_factory=dict)
    sound: RunSpec = field(default_factory=_of_nothing)
    """The job without the values that have problems. Reading one of those raises Unsound."""

    def __post_init__(self) -> None:
        self.problems = [(at, with_accepted_choices(problem, RunSpec)) for at, problem in self.document.problems]

    @property
    def data(self) -> dict[str, Any]:
        return self.document.data

    def hopeless(self) -> bool:
        """
        Return True if the file could not be read to its end. In that case, the draft has only a part of the file's
        data, or none, so further checks are useless.
        """
        return bool(self.problems) and not self.data

    def section(self, name: str) -> dict[str, Any] | None:
        """
        Return the mapping at `name`. If the file has no such key, add an empty mapping first. Return None if the value
        is not a mapping.
        """
        found = self.data.setdefault(name, {})
        return found if isinstance(found, dict) else None

    def add(self, key: Key, message: str, suggestion: str | None = None, at: Position | None = None) -> None:
        self.problems.append((at, Problem(key, message, suggestion)))

    def add_found(self, problem: Problem) -> None:
        """
        Add a problem that the check against the model found. Leave out a problem that arises only because another value
        of the file could not be read.
        """
        if not self.document.follows(problem):
            self.problems.append((None, problem))

    def forget(self, key: Key) -> None:
        """Remove the problems with the file's value at `key`, because another value replaces it."""
        dropped = {unreadable for unreadable in self.document.unreadable if unreadable[: len(key)] == key}
        self.problems = [(at, problem) for at, problem in self.problems if problem.key[: len(key)] != key]
        self.document.unreadable -= dropped

    def placed(self) -> tuple[PlacedProblem, ...]:
        """Return the problems in the order of their lines; problems of flags come last."""
        return _by_line(self.place(at, problem) for at, problem in self.problems)

    def place(self, at: Position | None, problem: Problem) -> PlacedProblem:
        flag = next((self.flags[above] for above in _self_and_above(problem.key) if above in self.flags), None)
        if flag is not None:
            return PlacedProblem(None, flag, problem.message, problem.suggestion)
        if self.path.suffix == SCRIPT:  # the job has no file
            path = dotted(problem.key)
            return PlacedProblem(None, _FLAGS.get(path, path), problem.message, problem.suggestion)
        key = self._as_spelled(problem.key)
        return in_file(self.path, self.document, at, Problem(key, problem.message, problem.suggestion))

    def located(self, errors: Sequence[SpotrunError]) -> SpotrunError:
        """
        Return the only one of `errors` with the place of its key added to its message, or a SpecFileInvalid that lists
        them all.
        """
        if len(errors) > 1:
            hint = next((error.hint for error in errors if isinstance(error, SpecFileInvalid)), None)
            return SpecFileInvalid(self.path, _by_line(itertools.chain(*map(self._problems, errors))), hint)
        (error,) = errors
        problem = self.place(None, Problem(error.key, error.message))
        if error.key and (problem.key.startswith("--") or self.document.positions):
            error.place = problem.to_dict()
            error.message = str(problem)
        return error

    def _problems(self, error: SpotrunError) -> tuple[PlacedProblem, ...]:
        if isinstance(error, SpecFileInvalid):
            return error.problems
        if error.key:
            return (self.place(None, Problem(error.key, error.message, error.hint)),)
        return (PlacedProblem(None, "", error.message, error.hint),)

    def _as_spelled(self, key: Key) -> Key:
        """
        Return the key that the user wrote in the file for a key of the model. The two differ if the user wrote a
        shorthand. The lookup in `spelled` is done twice, because a shorthand may stand for another shorthand.
        """
        for _ in range(2):
            above = next((above for above in _self_and_above(key) if above in self.spelled), None)
            key = key if above is None else self.spelled[above] + key[len(above) :]
        return key


def _by_line(problems: Iterable[PlacedProblem]) -> tuple[PlacedProblem, ...]:
    """Return each of the problems once, in the order of their lines; those without a line come last."""
    return tuple(sorted(dict.fromkeys(problems), key=lambda p: (p.line is None, p.line or 0, p.column or 0)))


def in_file(path: Path, document: Document, at: Position | None, problem: Problem) -> PlacedProblem:
    """
    Return a problem together with its line and column in the file: the position `at` if it is given, otherwise the
    position of the problem's key. If the file does not have this key, use the position of the innermost section that
    would contain it.
    """
    known = (document.positions[above] for above in _self_and_above(problem.key) if above in document.positions)
    at = at or next(known, TOP)
    file = shown(path, 200)
    return PlacedProblem(file, dotted(problem.key), problem.message, problem.suggestion, at.line, at.column)


def _self_and_above(key: Key) -> list[Key]:
    return [key[:length] for length in range(len(key), -1, -1)]


# --- the file -------------------------------------------------------------------------------------------


SCRIPT = ".py"
_NOTEBOOK = ("is a notebook, and spotrun trains scripts", "`jupyter nbconvert --to script {}` converts it")
SHELLS = (".sh", ".bash")
_SHELL = ("is a shell script, not a job", "`spotrun init {}` writes a JOB.yaml that runs it")
_NO_JOBS = {".ipynb": _NOTEBOOK, **dict.fromkeys(SHELLS, _SHELL)}
"""Kinds of files that users sometimes give instead of a job, by suffix: what such a file is, and what to do instead."""
_OF_OTHERS = (({"apiVersion", "kind"}, "Kubernetes file"), ({"on", "jobs"}, "GitHub Actions workflow"))
"""Files of other programs that users sometimes give instead of a job: keys that each has, and what it is."""
_NAME_A_JOB = "name a JOB.yaml or a Python script; `spotrun init SCRIPT` writes a JOB.yaml for a script"


def require_script(path: Path) -> None:
    """
    Require a Python script or a shell script at `path`.

    Raises:
        SpecFileInvalid: `path` is neither.
    """
    require_file(path, "name a Python script or a shell script that exists")
    if path.suffix not in (SCRIPT, *SHELLS):
        no_script = ("is neither a Python script nor a shell script", "name a file that ends with .py or .sh")
        what, instead = _NO_JOBS.get(path.suffix, no_script)
        raise _unreadable(path, what, instead.format(shlex.quote(shown(path, 200))), "spotrun init train.py")


def require_file(path: Path, hint: str = _NAME_A_JOB) -> None:
    """
    Require a regular file at `path`.

    Raises:
        SpecFileInvalid: there is no regular file at `path`; `hint` says what to name instead.
    """
    try:
        kind = os.stat(path).st_mode
    except FileNotFoundError:
        raise _unreadable(path, "no such file", _files_like(path), hint) from None
    except (OSError, ValueError) as error:
        raise _cannot_be_read(path, error) from error
    if stat.S_ISDIR(kind):
        raise _unreadable(path, "is a folder, not a file", hint=hint)
    if not stat.S_ISREG(kind):
        raise _unreadable(path, "is not a regular file", hint=hint)


def read_text(path: Path) -> str:
    """Read the file's text. If this fails, raise an error whose message names the reason."""
    try:
        with open(path, "rb") as file:
            content = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise _cannot_be_read(path, error) from error
    if len(content) > BYTES_MAX:
        raise _unreadable(
            path, f"is larger than {BYTES_MAX >> 20} MiB", "a spec has a few lines; is this the right file?"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if _NOT_IN_TEXT.search(content) and not content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise _unreadable(path, "is not a text file", hint=_NAME_A_JOB) from None
        line = content.count(b"\n", 0, error.start) + 1
        raise _unreadable(path, f"line {line} is not UTF-8", "save the file as UTF-8") from None


def _cannot_be_read(path: Path, error: OSError | ValueError) -> SpecFileInvalid:
    return _unreadable(path, f"cannot be read: {getattr(error, 'strerror', None) or error}")


def _unreadable(path: Path, message: str, suggestion: str | None = None, hint: str | None = None) -> SpecFileInvalid:
    return SpecFileInvalid(path, (PlacedProblem(shown(path, 200), "", message, suggestion),), hint)


def _files_like(path: Path) -> str | None:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix in (".yaml", ".yml", SCRIPT)]
    except OSError:
        return None
    close = _most_like(path.name, names)
    return f"did you mean {shown(path.parent / close, 200)}?" if close else None


def _most_like(name: str, names: Sequence[str]) -> str | None:
    """
    Return the file name whose part before the suffix is most like that of `name`, best with the same suffix; None if
    none is like it.
    """
    wanted = Path(name)
    by_stem = {
        Path(each).stem: each for each in sorted(sorted(names)[:200], key=lambda each: each.endswith(wanted.suffix))
    }
    close = difflib.get_close_matches(wanted.stem[:100], by_stem, 1, cutoff=0.6)
    return by_stem[close[0]] if close else None


# --- shorthands and flags -------------------------------------------------------------------------------


def _leave_out_own_keys(draft: Draft) -> None:
    """
    Remove the keys that the user added for their own purposes, which start with `x-`. In `envs` and `secrets`, such
    names are the names of variables, and are kept.
    """

    def leave_out(value: object, at: Key) -> None:
        if isinstance(value, dict) and at not in (("envs",), ("secrets",)):
            for own in [name for name in value if name.startswith(OWN)]:
                del value[own]
                draft.forget((*at, own))
            for name, item in value.items():
                leave_out(item, (*at, name))
        elif isinstance(value, list):
            for index, item in enumerate(value):
                leave_out(item, (*at, index))

    leave_out(draft.data, ())


def _take_misspelt(draft: Draft) -> None:
    """Report each misspelt section, such as `Budget`, and move it to its right name, so that its keys are checked."""
    unreadable = draft.document.unreadable
    for name in [name for name, value in draft.data.items() if isinstance(value, dict)]:
        problem = unknown_key((name,), RunSpec, {})
        others = RunSpec.model_fields.keys() - draft.data.keys()
        if name in RunSpec.model_fields or len(problem.meant) != 1 or problem.meant[0] not in others:
            continue
        draft.problems.append((None, replace(problem, meant=())))
        draft.data[str(problem.meant[0])] = draft.data.pop(name)
        draft.spelled[problem.meant] = (name,)
        unreadable |= {(*problem.meant, *key[1:]) for key in unreadable if key[:1] == (name,)}


def _take_sky(draft: Draft) -> None:
    found = translate(draft.data, draft.document.unreadable)
    for key in found.cleared:
        draft.forget(key)
    draft.problems += [(None, problem) for problem in found.problems]
    draft.spelled |= found.spelled
    draft.taken |= found.taken
    draft.of_sky = bool(found.taken) or any(problem.key[:1] == ("file_mounts",) for problem in found.problems)


def _take_run(draft: Draft) -> None:
    """
    Move the command at the top-level key `run` to `train.run`. Next to this key, the section `train` can have only the
    key `state`.
    """
    if "run" in draft.data:
        command, train = draft.data.pop("run"), draft.data.setdefault("train", {})
        if not isinstance(train, dict) or set(train) - {"state"}:
            draft.add(("run",), "cannot be combined with train", "keep one of train and run")
            return
        train["run"] = command
        draft.spelled[("train", "run")] = ("run",)
        if ("run",) in draft.document.unreadable:
            draft.document.unreadable.add(("train", "run"))
    elif "train" not in draft.data:
        draft.data["train"] = {}
        _find_in_text(draft)


def _find_in_text(draft: Draft) -> None:
    """Report the line of the job's program if it is part of the text of another key, because it is indented."""
    for name, value in draft.data.items():
        for index, line in enumerate(value.splitlines() if isinstance(value, str) else ()):
            if index and (found := re.match(r"\s*(train|run):( |$)", line)):
                at = Position(draft.document.positions.get((name,), TOP).line + 1 + index, 1)
                reason = f"is a part of the text of {name}, because its line is indented"
                draft.add((found[1],), reason, f"write {found[1]}: without spaces before it", at)
                draft.document.unreadable.add(("train",))
                return


def _take_places(draft: Draft) -> None:
    """
    Rewrite `resources.any_of` if it lists the user's own machine and a cloud: move the keys of the cloud's entry to
    `resources`, and the machine's name to `resources.home`.
    """
    resources, key = draft.data.get("resources"), ("resources", ANY_OF)
    if not isinstance(resources, dict):
        return
    if HARDWARE in resources:
        name = shown(resources.pop(HARDWARE))
        advice = f"write any_of: [{{cloud: local, hardware: {name}}}, {{cloud: aws}}]"
        draft.add(("resources", HARDWARE), "your own machine can only be used together with a cloud, in any_of", advice)
    if not has_machine(resources.get(ANY_OF)):
        return
    try:
        found = read_places(resources)
    except Unreadable as error:
        draft.add((*key, *error.at), error.message, error.suggestion)
        draft.document.unreadable.add(("resources",))
        del resources[ANY_OF]
        return
    del resources[ANY_OF]
    resources.update(found.keys)
    for name, at in found.written_at.items():
        draft.spelled["resources", name] = (*key, *at)
        if (*key, *at) in draft.document.unreadable:
            draft.document.unreadable.add(("resources", name))


def _take_use_spot(draft: Draft) -> None:
    resources = draft.section("resources")
    if resources is None or "use_spot" not in resources:
        return
    key: Key = ("resources", "use_spot")
    use_spot = resources.pop("use_spot")
    if not isinstance(use_spot, bool):
        if key not in draft.document.unreadable:
            draft.add(key, f"must be true or false, not {kind_of(use_spot)} {shown(use_spot)!r}", "write true or false")
    elif "spot_policy" in resources:
        draft.add(key, "cannot be combined with spot_policy", "keep one of use_spot and spot_policy")
    else:
        resources["spot_policy"] = "spot" if use_spot else "on-demand"
        draft.taken[key] = f"resources.spot_policy: {resources['spot_policy']}"
        draft.spelled[("resources", "spot_policy")] = key


def _take_outputs(draft: Draft) -> None:
    """If `outputs` is a list of patterns, move the list to `outputs.files`."""
    outputs, unreadable = draft.data.get("outputs"), draft.document.unreadable
    if isinstance(outputs, list):
        draft.data["outputs"] = {"files": outputs}
        draft.spelled[("outputs", "files")] = ("outputs",)
        unreadable |= {("outputs", "files", *key[1:]) for key in unreadable if key[:1] == ("outputs",)}
    elif isinstance(outputs, str) and ("outputs",) not in unreadable:
        advice = "write outputs: [out/], relative to the work folder"
        with contextlib.suppress(Unreadable):
            advice = f"write outputs: [{in_yaml(read_pattern(outputs))}]"
        draft.add(("outputs",), "must be a list, not text", advice)
        unreadable.add(("outputs",))


def _spell_choice(draft: Draft) -> None:
    """
    For each kind in a choice of accelerators, record the key under which the user wrote it, because messages quote that
    key. In the model, all kinds are under the key `any_of`, which the user may not have written.

    SkyPilot also accepts the forms `{T4:1, V100:1}` and `{T4, V100}`, which YAML reads as names without values. These
    missing values are not reported as problems.
    """
    resources, key = draft.data.get("resources"), ("resources", "accelerators")
    value = resources.get("accelerators") if isinstance(resources, dict) else None
    if isinstance(value, dict):
        for name in [name for name in value if (*key, name) in draft.document.unreadable and value[name] in NULLS]:
            value[name] = None
            draft.forget((*key, name))
    with contextlib.suppress(Unreadable):
        for index, (at, _) in enumerate(entries_of(value) or []):
            draft.spelled.setdefault((*key, ANY_OF, index), (*key, *at))


def _take_arguments(draft: Draft, arguments: Sequence[str]) -> None:
    """Replace the script's arguments in the job with those from the command line."""
    train = draft.data.get("train")
    if not arguments or not isinstance(train, dict):
        return
    if "run" in train:
        draft.add(
            ("train", "run"),
            "is a full command, so arguments cannot be added on the command line",
            "write the arguments into the command",
        )
        return
    train["args"] = list(arguments)
    draft.flags[("train", "args")] = "--"
    draft.forget(("train", "args"))


def apply_overrides(draft: Draft, overrides: Mapping[str, object]) -> None:
    """Replace values of the file with those of the flags. The replaced values are not checked."""
    for path, value in overrides.items():
        if value is None:
            continue
        head, _, rest = path.partition(".")
        key: Key = (head, rest) if rest else (head,)
        holder = draft.section(head) if rest else draft.data
        if holder is None:
            continue
        holder[str(key[-1])] = value
        draft.flags[key] = flag_of(path, value)
        draft.forget(key)


def flag_of(path: str, value: object) -> str:
    """
    Return the flag that the user wrote to replace the value at `path`: `--spot` for the policy spot, `--env LR`,
    `--max-price`.
    """
    if path == "resources.spot_policy":
        return f"--{shown(value)}"
    if path.startswith("envs."):
        return f"--env {shown(path.removeprefix('envs.'))}"
    return _FLAGS.get(path, "--" + path.rpartition(".")[2].replace("_", "-"))


# --- paths ----------------------------------------------------------------------------------------------


def resolve_paths(draft: Draft, default_store: str) -> None:
    """
    Set the job's name if the file has none, and make all paths absolute. Also do the checks that read the file system.
    """
    draft.data.setdefault("name", name_from(draft.path.stem))
    folder = _expanded(draft, ("workdir",), draft.data.get("workdir", "."))
    if folder is not None:
        draft.data["workdir"] = str(folder)
        _check_workdir(draft, folder)
    checkpoint = draft.section("checkpoint")
    uri = None if checkpoint is None else checkpoint.setdefault("uri", default_store)
    if checkpoint is not None and not (isinstance(uri, str) and ("://" in uri or mistyped(uri))):
        store = _expanded(draft, ("checkpoint", "uri"), uri)
        checkpoint["uri"] = uri if store is None else str(store)
    _name_this_machine(draft)
    aws = draft.data.get("aws")
    advisor = aws.get("advisor") if isinstance(aws, dict) else None
    if isinstance(advisor, str) and (meant := mistyped(advisor)):
        draft.add(("aws", "advisor"), f"{shown(advisor)} is not a URL", f"did you mean {shown(meant)}?")
    elif isinstance(aws, dict) and advisor is not None and not (isinstance(advisor, str) and "://" in advisor):
        file = _expanded(draft, ("aws", "advisor"), advisor)
        aws["advisor"] = advisor if file is None else str(file)


def _take_region(draft: Draft) -> None:
    """Take the region of the user's settings into a job that names none, so that all its runners use the same one."""
    resources = draft.data.get("resources")
    if not isinstance(resources, dict) or resources.get("cloud") not in BUILT_IN:
        return
    cloud = resources["cloud"]
    if resources.get("region") is None and resources.get("zone") is None:
        region = find_cloud(cloud).usual_region()
        section = None if region is None else draft.section(cloud)
        if section is not None:
            section.setdefault("regions", [region])


def _name_this_machine(draft: Draft) -> None:
    """Set the host of the user's own machine to this machine, unless the job names another host."""
    resources, hardware = draft.data.get("resources"), draft.data.get("hardware")
    home = resources.get(HOME) if isinstance(resources, dict) else None
    machine = hardware.get(home) if isinstance(hardware, dict) and isinstance(home, str) else None
    if isinstance(machine, dict):
        machine.setdefault("host", this_host())


def _expanded(draft: Draft, key: Key, value: object) -> Path | None:
    """
    Return the absolute path that the user means. Return None if the value is not a path; the check against the model
    reports this.
    """
    try:
        text = os.path.expanduser(clean_text(value))
    except Unreadable:
        return None
    if key in draft.document.unreadable:
        return None
    fault = None
    if "://" in text or mistyped(text):
        fault = (
            f"{shown(text)} is an address, not a path of this machine",
            "download the file, and write its path",
        )
    elif text.startswith("~"):
        fault = f"{shown(text)} names no home folder", "write the folder's full path"
    if fault is not None:
        draft.add(key, *fault)
        draft.document.unreadable.add(key)
        return None
    return Path(os.path.normpath(os.path.join(os.path.abspath(draft.path.parent), text)))


def _check_workdir(draft: Draft, workdir: Path) -> None:
    try:
        if not workdir.is_dir():
            missing = "is not a folder" if workdir.exists() else "no such folder"
            advice = "give the path of an existing folder, relative to this file"
            draft.add(("workdir",), f"{missing}: {shown(workdir, 200)}", advice)
            return
    except (OSError, ValueError) as error:
        draft.add(("workdir",), f"cannot be read: {shown(error, 200)}", "write a shorter path")
        return
    train = draft.data.get("train")
    for key, check in (("script", _check_script), ("module", _check_module)):
        if isinstance(train, dict) and key in train and ("train", key) not in draft.document.unreadable:
            check(draft, workdir, train[key])
    if isinstance(train, dict) and isinstance(train.get("state"), list):
        for index, path in enumerate(train["state"]):
            _check_state(draft, workdir, index, path)


def _check_state(draft: Draft, workdir: Path, index: int, value: object) -> None:
    key: Key = ("train", "state", index)
    if isinstance(value, str) and value.startswith("!"):
        return
    try:
        path = workdir / read_state_path(value)
        if not path.resolve().is_relative_to(workdir.resolve()):
            draft.add(key, "is a symbolic link to a path outside workdir", "name a folder inside workdir")
        elif _count_of_files(path, STATE_FILES_MAX) > STATE_FILES_MAX:
            draft.add(
                key, f"holds more than {STATE_FILES_MAX:,} files", "name a folder with fewer files, or pack the files"
            )
    except Unreadable:
        return
    except (OSError, ValueError) as error:
        draft.add(key, f"cannot be read: {shown(error, 200)}", "write a shorter path")


def _count_of_files(folder: Path, most: int) -> int:
    """Count the files below a folder, but stop once there are more than `most`."""
    found = 0
    for _, _, names in os.walk(folder):
        found += len(names)
        if found > most:
            break
    return found


def _check_script(draft: Draft, workdir: Path, value: object) -> None:
    key: Key = ("train", "script")
    try:
        script = workdir / read_script(value)
        if not script.is_file():
            draft.add(
                key, f"no such file: {shown(script, 200)}", _program(value) or _scripts_like(workdir, script.name)
            )
        elif not script.resolve().is_relative_to(workdir.resolve()):
            draft.add(key, "is a symbolic link to a path outside workdir", "copy the script into workdir")
        elif script.suffix in SHELLS:
            args = draft.data["train"].get("args")
            words = ["bash", str(value), *(map(str, args) if isinstance(args, list) else [])]
            draft.add(key, "is a shell script", f"write train: {in_yaml({'run': shlex.join(words)})}")
        elif script.suffix in _NO_JOBS:
            what, instead = _NO_JOBS[script.suffix]
            draft.add(key, what, instead.format(shown(value)))
    except Unreadable:
        return
    except (OSError, ValueError) as error:
        draft.add(key, f"cannot be read: {shown(error, 200)}", "write a shorter path")


def _check_module(draft: Draft, workdir: Path, value: object) -> None:
    """
    Check that the job's module exists, if its package is a folder in the work folder. Accept any other package, because
    `setup` may install it.
    """
    try:
        name = read_module(value)
    except Unreadable:
        return
    package, _, inside = name.partition(".")
    here = (workdir / package).is_dir() if inside else False
    if here and not any((workdir / path).is_file() for path in files_of_module(name)):
        folder = (workdir / name.replace(".", "/")).parent
        names = sorted(entry.stem for entry in folder.iterdir() if entry.suffix == ".py") if folder.is_dir() else []
        close = difflib.get_close_matches(name.rpartition(".")[2][:100], names[:200], 1, cutoff=0.4)
        hint = f"did you mean {name.rpartition('.')[0]}.{close[0]}?" if close else "write the name as in an import"
        draft.add(("train", "module"), f"no such module in {shown(workdir, 200)}: {name}", hint)


def _program(value: object) -> str | None:
    """Return the keys to write if `value` is a command, instead of the path of a script."""
    words = str(value).split()
    meant = program_in(value) if len(words) > 1 else None
    if meant is None or ("run" in meant and words[0] not in STARTERS):
        return None
    return f"write {', '.join(f'{key}: {in_yaml(item)}' for key, item in meant.items())}"


def _scripts_like(workdir: Path, name: str) -> str:
    close = _most_like(name, [entry.name for entry in workdir.iterdir() if entry.suffix == ".py"])
    return f"did you mean {shown(close)}?" if close else "write a path relative to workdir"


def _validated(draft: Draft) -> RunSpec:
    """
    Check the draft against the model, and return the job. A value that has a problem cannot be read in the job: so the
    checks of values against each other are made for all other values.
    """
    spec, found = _read_fields(draft.data, FIELDS_ONLY)
    lost = {problem.key for problem in found}.union(
        *({problem.key, problem.meant} for _, problem in draft.problems),
        {problem.meant for problem in found},
        draft.document.unreadable,
    ) - {()}
    if found:
        found += _read_fields(draft.data, None)[1]
    sound = _without(draft.data, lost) if lost or spec is None else spec
    meant = {above for problem in found for above in _self_and_above(problem.meant)} - draft.document.positions.keys()
    for problem in (*found, *_disagreements(sound, ())):
        if problem.key not in meant:  # otherwise it is missing only because its name is misspelt
            draft.add_found(problem)
    instead = "name it under secrets instead"
    with contextlib.suppress(Unsound):
        instead = sound.cloud.instead_of_envs
    with contextlib.suppress(Unsound):
        for problem in plain_secrets(sound.envs, instead):
            draft.add_found(problem)
    return sound


def _read_fields(data: Mapping[str, Any], context: str | None) -> tuple[RunSpec | None, list[Problem]]:
    try:
        return RunSpec.model_validate(data, context=context), []
    except ValidationError as error:
        return None, problems_of(error, RunSpec)


def _without(data: Mapping[str, Any], lost: Collection[Key]) -> RunSpec:
    """
    Return the job that `data` describes, without the values at the keys `lost`. If a section is no section without one
    of them, the whole section is left out.
    """
    rest, more, shorter = copy.deepcopy(dict(data)), set(lost), 0
    spec: RunSpec | None = None
    while spec is None:
        for key in more:
            _remove(rest, key)
        spec, found = _read_fields({**_REQUIRED, **rest}, FIELDS_ONLY)
        more |= {problem.key[: max(1, len(problem.key) - shorter)] for problem in found}
        shorter += 1
    for key in more:
        spec = spec.without(key)
    return spec


def _disagreements(section: Model, at: Key) -> Iterator[Problem]:
    """Yield a problem for each value that contradicts another one, in a section of a job and in those inside it."""
    for name, value in vars(section).items():
        inside = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, tuple) else ()
        for part, each in ((), value), *(((part,), each) for part, each in inside):
            if isinstance(each, Model):
                yield from _disagreements(each, (*at, name, *part))
    yield from (problem_at(at, found) for found in section.disagreements())


def _remove(data: Any, key: Key) -> None:
    """Remove the value at `key`. An item of a list is removed with the whole list, whose other items would move."""
    names = tuple(itertools.takewhile(lambda part: isinstance(part, str), key))
    for name in names[:-1]:
        data = data.get(name) if isinstance(data, dict) else None
    if names and isinstance(data, dict):
        data.pop(names[-1], None)
