"""
Finds code that spreads the state of a training over its processes, so that each process has only a part of the state.
FSDP, torch.distributed.checkpoint (DCP) and DeepSpeed do this.

Each process stores its own part of the state on its own instance's disk, but a checkpoint of `train.state` contains the
files of only one instance. On several instances, all other parts would be missing from the checkpoint. So such a job is
refused.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from spotrun.errors import SpecInvalid
from spotrun.spec.model import RunSpec, files_of_module

MODULES = (
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed._composable.fsdp",
    "torch_xla.distributed.fsdp",
    "fairscale.nn.data_parallel",
    "deepspeed",
)
NAMES = frozenset(
    (
        *("fully_shard", "FSDP", "FSDPModule", "FSDPStrategy", "FullyShardedDataParallel"),
        *("FullyShardedDataParallelPlugin", "XlaFullyShardedDataParallel", "ModelParallelStrategy"),
        *("DEEPSPEED", "DeepSpeedPlugin", "DeepSpeedStrategy", "DeepSpeedEngine"),
    )
)
KEYWORDS = frozenset(("fsdp", "fsdp_config", "fsdp_plugin", "deepspeed", "deepspeed_plugin"))
"""Arguments of TrainingArguments and Accelerator that turn on FSDP or DeepSpeed."""
STATE_DIR = "SPOTRUN_STATE_DIR"
FILES_MAX = 300
"""Maximum files of the work folder that are read."""
BYTES_MAX = 1 << 20
"""Maximum bytes of a file that is read. A larger file is assumed to be data, not code."""
_STRATEGY = re.compile(r"(fsdp|deepspeed|model_parallel)", re.IGNORECASE)
_FLAG = re.compile(
    r"--(use[_-])?(fsdp|deepspeed)([_-].*)?(=.*)?|(.*[-+./])?strategy=(fsdp|deepspeed|model_parallel).*", re.IGNORECASE
)
_CONFIG = re.compile(
    r"""(?:^|[{,])\s*["']?(?:"""
    r"""\w*(?:distributed_type|strategy|_target_)["']?\s*:\s*["']?[\w.]*(?:fsdp|deepspeed|fullyshard|modelparallel)"""
    r"""|(?:fsdp|deepspeed)["']?\s*:\s*["']?(?!(?:false|null|none|no)\b)[\w./]+"""
    r"""|zero_optimization["']?\s*:"""
    r"""|use_(?:fsdp|deepspeed)["']?\s*:\s*["']?true)""",
    re.IGNORECASE | re.MULTILINE,
)
_OF_MODULE = ("-m", "--module")
_WITH_MODULE = re.compile(r"(?:--module=|-m)([\w.]+)")
_CONFIGS = (".yaml", ".yml", ".json")
_SHELL = ("", ".sh", ".bash", ".zsh")


class Finding(NamedTuple):
    """
    A sign that the job spreads its state over processes: a word, with the file and the line in which the word occurs.
    `path` is "" if the word is in the job's command or variables.
    """

    what: str
    path: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}: {self.what}" if self.path else self.what


def require_whole_state(spec: RunSpec) -> None:
    """
    Refuse a job on several instances if its code spreads the state of the training over them. The check reads the
    source code and executes nothing, so it can miss such code.

    Raises:
        SpecInvalid: the command or a file uses something that spreads state.
    """
    if spec.num_nodes == 1:
        return
    reading = _Reading(Path(spec.workdir))
    found = next(iter(reading.findings(spec)), None)
    if found is None or not (spec.train.state or reading.names_state_dir):
        return
    raise SpecInvalid(
        f"{found} spreads the state of the training over {spec.num_nodes} instances, but a checkpoint of train.state "
        "contains the files of only one of them",
        hint="let rank 0 save the whole state of a DDP training; or write num_nodes: 1; or remove train.state, and "
        "save in a folder that all instances can read",
        key=("train", "state") if spec.train.state else spec.train.key,
    )


class _Reading:
    """
    Reads the command of a job, then the files of the work folder that the command names, and then the files that these
    files import.
    """

    def __init__(self, workdir: Path) -> None:
        self._workdir = workdir
        self._folders = [workdir]
        self._read: set[Path] = set()
        self.names_state_dir = False

    def findings(self, spec: RunSpec) -> list[Finding]:
        found = [Finding(f"{name} in envs") for name in spec.envs if _is_switch(name, spec.envs)]
        train = spec.train
        self.names_state_dir = any(STATE_DIR in text for text in (train.run or "", *train.args, *spec.envs.values()))
        if train.run is not None:
            return [*found, *self._command(train.run)]
        found += self._words(train.args)
        if (source := train.source(self._workdir)) is not None:
            found += self._file(self._workdir / source)
        return found

    def _command(self, text: str, path: str = "") -> Iterator[Finding]:
        """Yield the findings in a command, or in a shell script at `path`."""
        for number, line in enumerate(text.splitlines(), 1):
            try:
                words = shlex.split(line, comments=True)
            except ValueError:
                words = line.split()
            for found in self._words(words):
                yield found if found.path or not path else Finding(found.what, path, number)

    def _words(self, words: Iterable[str]) -> Iterator[Finding]:
        words = [part for word in words for part in word.split(";") if part]
        for before, word in zip(["", *words], words, strict=False):
            if word.rpartition("/")[2] == "deepspeed" or _FLAG.fullmatch(word):
                yield Finding(word)
            elif before.endswith("strategy") and _STRATEGY.match(word):
                yield Finding(f"{before} {word}")
            elif before == "cd":
                self._folders.append(self._workdir / word)
            elif before in _OF_MODULE:
                yield from self._files_of(word, self._folders)
            elif (joined := _WITH_MODULE.fullmatch(word)) is not None:
                yield from self._files_of(joined[1], self._folders)
            else:
                for folder in list(self._folders):
                    yield from self._file(folder / word.rpartition("=")[2])

    def _file(self, path: Path) -> Iterator[Finding]:
        try:
            place = path.resolve()
            if place in self._read or len(self._read) >= FILES_MAX or not place.is_relative_to(self._workdir.resolve()):
                return
            if not place.is_file() or place.stat().st_size > BYTES_MAX:
                return
            text = place.read_text(errors="replace")
        except (OSError, ValueError):
            return
        self._read.add(place)
        self.names_state_dir |= STATE_DIR in text
        shown = str(place.relative_to(self._workdir.resolve()))
        if place.suffix == ".py":
            yield from self._python(place, shown, text)
        elif place.suffix in _CONFIGS:
            for found in _CONFIG.finditer(text):
                what = found[0].lstrip("{, \n\t")
                yield Finding(what, shown, text.count("\n", 0, found.end() - len(what)) + 1)
        elif place.suffix in _SHELL:
            yield from self._command(text, shown)

    def _python(self, path: Path, shown: str, text: str) -> Iterator[Finding]:
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            return
        names = _Names(tree)
        for what, line in sorted(names.found, key=lambda each: each[1]):
            yield Finding(what, shown, line)
        self._folders.append(path.parent)
        for module, level in names.imported:
            if level:
                folder = path.parents[level - 1] if level <= len(path.parents) else path.parent
                yield from self._files_of(module, [folder])
            else:
                yield from self._files_of(module, self._folders)

    def _files_of(self, module: str, folders: Iterable[Path]) -> Iterator[Finding]:
        """
        Yield the findings in the files of a module. Importing a module also runs the packages that contain it, so these
        are read too.
        """
        parts = [part for part in module.split(".") if part]
        for folder in list(folders):
            for count in range(1, len(parts) + 1):
                yield from self._file(folder.joinpath(*parts[:count], "__init__.py"))
            for place in files_of_module(".".join(parts)) if parts else ():
                yield from self._file(folder / place)


def _is_switch(name: str, envs: Mapping[str, str]) -> bool:
    return name in ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED") and envs[name].lower() in ("1", "true", "yes")


class _Names(ast.NodeVisitor):
    """
    Searches a Python file for signs that its training spreads its state over several processes. The signs are the names
    in the constants MODULES and NAMES. `found` has each such name, with the number of the line on which it is used.

    `imported` has the modules that the file imports. Each has the number of dots before its name, which is 0 unless the
    import is relative.
    """

    def __init__(self, tree: ast.AST) -> None:
        self.found: set[tuple[str, int]] = set()
        self.imported: list[tuple[str, int]] = []
        self._known: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._learn(node)
        self.visit(tree)

    def _learn(self, node: ast.Import | ast.ImportFrom) -> None:
        module, level = ("", 0) if isinstance(node, ast.Import) else (node.module or "", node.level)
        for alias in node.names:
            name = f"{module}.{alias.name}".strip(".")
            self.imported += [(name, level)]
            if not level:
                self._judge(name, node.lineno)
            if alias.asname or isinstance(node, ast.ImportFrom):
                self._known[alias.asname or alias.name] = name
        if module:
            self.imported.append((module, level))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._judge(self._dotted(node), node.lineno)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self._judge(node.id, node.lineno)

    def visit_Constant(self, node: ast.Constant) -> None:
        """
        Record a string that is the name of one of the MODULES. The script may import the module by this name, without
        an import statement.
        """
        if isinstance(node.value, str) and _is_of_module(node.value):
            self.found.add((node.value, node.lineno))

    def visit_keyword(self, node: ast.keyword) -> None:
        """
        Record a keyword argument that spreads the training's state. Skip an argument whose value is a variable, because
        this value is unknown.
        """
        value = (
            node.value.value if isinstance(node.value, ast.Constant) else isinstance(node.value, ast.Dict | ast.Call)
        )
        if node.arg in KEYWORDS and value:
            self.found.add((f"{node.arg}=", node.value.lineno))
        if node.arg == "strategy" and isinstance(value, str) and _STRATEGY.match(value):
            self.found.add((f"strategy={value!r}", node.value.lineno))
        self.generic_visit(node)

    def _dotted(self, node: ast.expr) -> str:
        if isinstance(node, ast.Attribute):
            return f"{self._dotted(node.value)}.{node.attr}"
        return self._known.get(node.id, node.id) if isinstance(node, ast.Name) else ""

    def _judge(self, name: str, line: int) -> None:
        if _is_of_module(name) or name.rpartition(".")[2] in NAMES:
            self.found.add((name, line))


def _is_of_module(name: str) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in MODULES)
