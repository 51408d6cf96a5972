"""`spotrun fetch` of a run whose training code chose each name, time and size: it writes nothing that a tool obeys."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from blake3 import blake3

from spotrun.checkpoint import fetching
from spotrun.folder.stored_files import PIECE_MAX_BYTES, Listing, OutputFile, Piece, list_key
from spotrun.run import events as ev
from spotrun.store.local import LocalStore
from tests.support.called_spotrun import Said, Spotrun
from tests.support.decisions import spec
from tests.support.histories import History
from tests.support.mortal_store import files_in

NEVER_NS, FAR_NS = 0, 1 << 62
"""Times that only a hostile list has: before all others, and in the year 2116."""
CANARY = "canary"


class Run:
    """A run on an instance whose training code writes the lists of its files by itself."""

    def __init__(self, runs: Path, uid: str = "0123456789") -> None:
        self._runs = runs
        self._history = History(uid=uid, spec=spec().to_dict())
        self._history.running()
        self.folder = Path(f"demo-{uid}-files")

    def lists(self, files: dict[str, str], modified_ns: int = 10**18, times: int = 1) -> None:
        """Store the files and their list, in which a file that fills a whole piece has this piece `times` times."""
        history = self._history
        store = LocalStore(self._runs / f"demo-{history.uid}")
        pieces = {text: Piece(history.attempt, blake3(text.encode()).hexdigest(), len(text)) for text in files.values()}
        for text, piece in pieces.items():
            store.put(piece.key, text.encode())
        listed = []
        for path, text in files.items():
            of = (pieces[text],) * (times if len(text) == PIECE_MAX_BYTES else 1)
            sizes = {"size_bytes": sum(piece.size_bytes for piece in of), "modified_ns": modified_ns}
            listed.append(OutputFile(path=path, pieces=of, attempt=history.attempt, **sizes))
        data = msgspec.json.encode(Listing(files=tuple(listed)))
        key = list_key(history.attempt, digest := blake3(data).hexdigest())
        store.put(key, data)
        history.after(60).write(
            ev.OutputsStored(
                attempt=history.attempt,
                key=key,
                blake3=digest,
                commit=None,
                step=0,
                looked_at=history.now,
                **dict.fromkeys(("files", "size_bytes", "objects", "sent_bytes", "stored_bytes"), len(listed)),
            )
        )
        history.put_into(store)


@pytest.fixture
def run(runs: Path) -> Run:
    return Run(runs)


def read(folder: Path) -> dict[str, str]:
    return {path: text for path, text in files_in(folder).items() if not path.endswith(".sample")}


def outcomes(said: Said) -> dict[str, str]:
    return {file["path"]: file["outcome"] for file in said.json["files"]}


# -- names -----------------------------------------------------------------------------------------------------------


def repository(folder: str, canary: Path, worktree: str = "") -> dict[str, str]:
    """The files of a repository of git that runs a command at the next `git status` in its work tree."""
    config = f"[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tfsmonitor = touch {canary};:\n"
    return {
        f"{folder}HEAD": "ref: refs/heads/main\n",
        f"{folder}config": config + (f"\tworktree = {worktree}\n" if worktree else ""),
        f"{folder}objects/info/packs": "\n",
        f"{folder}refs/heads/x": "\n",
    }


def git_status(folder: Path) -> None:
    plain = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "-C", folder, "status"], env={**os.environ, **plain}, capture_output=True, check=False)


REPOSITORIES = {"hidden": (".git/", ""), "below": ("tables/.git/", ""), "bare": ("weights/", "../weights")}


@pytest.mark.parametrize("kind", REPOSITORIES)
def test_git_in_a_fetched_folder_runs_no_command_of_the_training(
    kind: str, run: Run, tmp_path: Path, spotrun: Spotrun
) -> None:
    folder, worktree = REPOSITORIES[kind]
    canary = tmp_path / CANARY
    planted = repository(folder, canary, worktree)
    by_hand = tmp_path / "by-hand"
    for path, text in planted.items():
        (by_hand / path).parent.mkdir(parents=True, exist_ok=True)
        (by_hand / path).write_text(text)
    place = folder.removesuffix(".git/")
    git_status(by_hand / place)
    assert canary.exists(), "the payload is live"
    canary.unlink()
    run.lists({**planted, "weights/best.ckpt": "1", "tables/a.csv": "2"})
    spotrun("fetch", "demo")
    assert (run.folder / "weights/best.ckpt").read_text() == "1"
    git_status(run.folder / place)
    assert not canary.exists(), "a command of the training ran"


@pytest.mark.parametrize("modified_ns", [NEVER_NS, FAR_NS])
def test_a_repository_that_files_are_fetched_into_stays_as_it_is(
    modified_ns: int, run: Run, tmp_path: Path, spotrun: Spotrun
) -> None:
    subprocess.run(["git", "init", "-q", tmp_path / "own"], check=True)
    (tmp_path / "own/train.py").write_text("mine")
    before = read(tmp_path / "own")
    hostile = {f"{name}/config": "[core]\n" for name in (".git", ".GIT", ".git.", "GIT~1")}
    run.lists({**hostile, ".git/hooks/pre-commit": "exit", "train.py": "theirs", "loss.csv": "0.5"}, modified_ns)
    said = spotrun("fetch", "demo", "--to", "own")
    assert (said.code, ".git/hooks/pre-commit" in said.err) == (1, True)
    assert read(tmp_path / "own") == {**before, "loss.csv": "0.5"}


def bare(place: Path) -> None:
    subprocess.run(["git", "init", "-q", "--bare", place], check=True)


def apart(place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "init", "-q", "--separate-git-dir", place, place.parent], check=True)


def of_a_work_tree(place: Path) -> None:
    """The folder that git keeps for one work tree of several: it has `commondir` in place of `objects` and `refs`."""
    place.mkdir(parents=True)
    (place / "HEAD").write_text("ref: refs/heads/main\n")
    (place / "commondir").write_text("../..\n")


def begun(place: Path) -> None:
    place.mkdir(parents=True)
    (place / "HEAD").write_text("ref: refs/heads/main\n")


def environment(place: Path) -> None:
    place.mkdir(parents=True)
    (place / "pyvenv.cfg").write_text("")


IN_GIT = (
    *("commondir", "config", "config.worktree", "gitdir", "packed-refs", "objects/info/alternates", "refs/heads/x"),
    *("hooks/post-checkout", "info/attributes", "modules/a/config", "bin/activate"),
)


@pytest.mark.parametrize("make", [bare, apart, of_a_work_tree, begun, environment])
def test_a_folder_of_git_below_the_target_takes_no_file_whatever_its_name_is(
    make: Callable[[Path], None], run: Run, spotrun: Spotrun
) -> None:
    stores = ("store", "deep/er/store")
    for store in stores:
        make(Path("results") / store)
    before = read(Path("results"))
    run.lists(
        {f"{store}/{name}": "hostile" for store in stores for name in IN_GIT} | {"deep/er/a": "1", "stored/a": "1"}
    )
    tool = "Python" if make is environment else "git"
    for options in ([], ["--force"]):
        said = spotrun("fetch", "demo", "--to", "results", *options)
        assert read(Path("results")) == {**before, "deep/er/a": "1", "stored/a": "1"}
        assert all(f"{store}/config: {tool} runs or obeys the files in this folder" in said.out for store in stores)
        assert (said.code, "use --to to name another folder" in said.err) == (1, True)


def page(name: str) -> str:
    return f"{name}.md"


NAMES = (
    *(".git/config", "a/b/.git/hooks/pre-commit", ".git", ".hg/hgrc", ".svn/x", ".jj/x", "x.git/hooks/update"),
    *(".venv/bin/python", "venv/bin/activate", "__pycache__/train.cpython-311.pyc", "node_modules/a/index.js"),
    *(".GIT/config", "a/.Git/config", "VENV/x", "Node_Modules/x", "__PyCache__/x.pyc", ".gIt /x", ".git./x"),
    *(".git. . /x", ".git::$INDEX_ALLOCATION/config", "venv /x", "a/venv../x", " .git/x", ".git\u00a0/x"),
    *(".g\u200cit/config", "\ufeff.git/config", ".gi\u00adt/x", ".g\u034fit/x", "\uff0e\uff47\uff49\uff54/config"),
    *("ven\u200dv/x", "node_module\u017f/x", ".g\u0130t/config", "a\\.git\\config"),
    *(".vscode/.git/config", "a/-x/venv/x"),
    *(".cache/x", "a/.Ipynb_Checkpoints/x", "logs/.spotrun", ".spotrun.schema.json"),
)
LEFT = (
    *(".bashrc", ".zshenv", ".envrc", ".vimrc", ".exrc", ".netrc", ".pdbrc", ".gitconfig", ".gitattributes"),
    *(".vscode/settings.json", ".idea/x.iml", "a/.devcontainer/x", ".ssh/authorized_keys", ".config/fish/config.fish"),
    *(".directory", ".dir-locals.el", "a/.hydra/config.yaml", ".\u017fsh/config", "\u200b.profile", "..."),
    *("conftest.py", "a/CONFTEST.py", "conftest.py.", "test_all.py", "a/all_test.py", "pytest.ini"),
    *("sitecustomize.py", "a/usercustomize.py ", "pyvenv.cfg", "GNUmakefile", "makefile", "Makefile", "HEAD", "a/head"),
    *("commondir", "a/GitDir", "config.worktree"),
    *("sitecustomize/__init__.py", "a/SiteCustomize/x.py", "sitecustomize.pyc", "sitecustomize.so", "usercustomize"),
    *("sitecustomize.cpython-312-x86_64-linux-gnu.so", "usercustomize.abi3.so", "usercustomize/__init__.pyc"),
    *("lib/python3.12/site-packages/a.pth", "Site-Packages/a.csv", "a.egg-link", "x.dist-info/entry_points.txt"),
    *("python312._pth", "x/__init__.py", "x/__init__.abi3.so", "x/__main__.py", "testing.py", "tests.py", "test-a.py"),
    *("test.py", "a/Test_x/__init__.py", "conftest.pyc", "ruff.toml", "eslint.config.mjs", "jest.config.json"),
    *("a/vite.config.ts", "prettier.config.cjs", "biome.json", "biome.jsonc", "pyrightconfig.json", "package.json"),
    *(
        page("CLAUDE"),
        page("CLAUDE.local"),
        page("AGENTS.override"),
        page("AGENT"),
        page("QWEN"),
        page("CRUSH"),
        page("WARP"),
    ),
    *("opencode.json", "crush.json", "justfile", "Rakefile", "a/SConstruct", "Snakefile", "Steepfile", "noxfile.py"),
    *("tasks.py", "dodo.py", "setup.py", "fabfile.py", "gulpfile.js", "Taskfile.yml", "gunicorn.conf.py", "uv.toml"),
    *("PYPROJ~1.TOM", "a/SITECU~1.PY", "ESLINT~1.MJS", "SNAKEF~1", "JUPYTE~2.PY", "a/RUFF~1.TOM"),
    *("GIT~1/config", "a/VSCODE~2/settings.json", "jupyter_server_config.py", "a/matplotlibrc"),
    *("--checkpoint-action=exec=sh run.sh", "a/-rf", "a/\x1b[2J", "two\nlines.csv"),
)
FETCHED = (
    *("best.ckpt", "lightning_logs/version_0/events.out.tfevents.1", "step-10/.metadata", "step-10/__0_0.distcp"),
    *("a.zarr/.zarray", "head/weights.pt", "head.pt", "config.yaml", "train.py", "gitlog.txt", "venvs.txt"),
    *("loss-1.csv", "log.~1~", "a~1.txt", "lr:.001/loss.csv", "na\u00efve.csv", "\u8868/\u5b8c.csv", "environment/x"),
    *("latest.py", "train_config.py", "model.pth", "config.json", "model.config.yaml", "logfile", "profile", "a.file"),
    *(
        "test/loss.csv",
        "test.csv",
        "tests.txt",
        "log~1.csv",
        page("README"),
        page("report"),
        "src.txt",
        "data.arc",
        "a.src",
    ),
    *("requirements.txt", "config.toml", "objects/x", "refs/x", "config", "worktree", "custom/site.py", "dist/a.whl"),
)


def test_a_name_that_tools_obey_is_fetched_at_no_depth_and_in_no_spelling(run: Run, spotrun: Spotrun) -> None:
    run.lists(dict.fromkeys((*NAMES, *LEFT, *FETCHED), "text"))
    became = outcomes(said := spotrun("fetch", "demo", "--json"))
    assert became == {
        **dict.fromkeys(NAMES, "refused"),
        **dict.fromkeys(LEFT, "left"),
        **dict.fromkeys(FETCHED, "fetched"),
    }
    assert read(run.folder) == dict.fromkeys(FETCHED, "text")
    assert said.code == 1, "no agent stores such a name of a script"


def test_reason_names_the_tool_that_would_obey_the_file(run: Run, spotrun: Spotrun) -> None:
    tools = {
        ".git/config": "git or another version control",
        ".vscode/.hg/hgrc": "git or another version control",
        "HEAD": "git may treat",
        "venv/x": "no agent stores",
        ".envrc": "a shell",
        "sitecustomize.so": "Python",
        "test_a.py": "pytest or unittest",
        "Makefile": "make",
        "ruff.toml": "a linter",
        "package.json": "Node.js",
        page("CLAUDE"): "a coding assistant",
        "matplotlibrc": "Jupyter, Matplotlib",
        "-rf": "programs",
        "a\x1bb": "a terminal",
        "a\u202eb": "a terminal",
        "mkdocs.yml": "Jupyter, Matplotlib",
        "GIT~1/config": "Windows",
    }
    run.lists(dict.fromkeys(tools, "text"))
    said = spotrun("fetch", "demo", "--json")
    problems = {file["path"]: file["problem"] for file in said.json["files"]}
    assert {path: tool for path, tool in tools.items() if not problems[path].startswith(tool)} == {}


def test_a_hidden_file_of_an_honest_script_stays_in_the_store_and_is_named(run: Run, spotrun: Spotrun) -> None:
    run.lists({"out/.hydra/config.yaml": "lr: 1", "out/loss.csv": "0.5"})
    said = spotrun("fetch", "demo")
    assert (said.code, read(run.folder)) == (0, {"out/loss.csv": "0.5"})
    line = "not fetched: out/.hydra/config.yaml: a shell, an editor or another tool may obey a file of that name\n"
    assert line in said.out
    assert line in spotrun("fetch", "demo", "--list").out
    alone = spotrun("fetch", "demo", ".hydra/")
    assert (alone.code, "1 file could not be fetched; out/.hydra/config.yaml: " in alone.err) == (1, True)


@pytest.mark.exhaustive
def test_a_hidden_folder_or_one_of_git_takes_no_files_wherever_the_command_is_called(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spotrun: Spotrun
) -> None:
    for words in ([tmp_path], ["--bare", tmp_path / "bare"]):
        subprocess.run(["git", "init", "-q", *words], check=True)
    of_a_work_tree(tmp_path / "linked")
    (tmp_path / "link").symlink_to(tmp_path / ".git" / "hooks")
    (tmp_path / ".config/project").mkdir(parents=True)
    (tmp_path / "plain").mkdir()
    run.lists({"pre-push": "exit"})
    before = read(tmp_path)
    hidden = (".git", ".git/hooks", ".ssh", "a/.config/b", "link", "bare/hooks", "linked/x", "\u200b.hidden")
    for place in (*hidden, "venv", "a/.venv/x", "__pycache__", "node_modules", "CVS", "x.git", "lib/site-packages"):
        said = spotrun("fetch", "demo", "--to", place)
        assert (said.code, "--to results" in said.err) == (2, True), place
    for current in (".config", ".config/project", ".git/hooks", "link", "bare", "bare/hooks", "linked"):
        monkeypatch.chdir(tmp_path / current)
        for options in ([], ["--to", "."], ["--to", "autostart"]):
            said = spotrun("fetch", "demo", *options)
            assert (said.code, "by its full path, such as --to ~/results" in said.err) == (2, True), current
    assert spotrun("fetch", "demo", "--to", tmp_path / ".ssh").code == 2
    assert read(tmp_path) == before
    assert spotrun("fetch", "demo", "--list").code == 0, "nothing is written"
    assert spotrun("fetch", "demo", "--to", tmp_path / "plain/new").code == 0
    assert read(tmp_path / "plain") == {"new/pre-push": "exit"}


def test_a_hidden_folder_above_the_home_does_not_count(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spotrun: Spotrun
) -> None:
    home = tmp_path / ".users/one"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    run.lists({"a": "1"})
    assert spotrun("fetch", "demo", "--to", home / "results").code == 0
    assert spotrun("fetch", "demo", "--to", home / ".results").code == 2
    assert spotrun("fetch", "demo", "--to", home.parent / ".two/results").code == 2
    assert read(home) == {"results/a": "1"}


def test_list_marks_what_would_not_be_fetched(run: Run, spotrun: Spotrun) -> None:
    run.lists({".envrc": "1", ".git/config": "1", "a.csv": "1"})
    lines = spotrun("fetch", "demo", "--list").out.splitlines()
    assert [line.split("  ")[-1] for line in lines[:3]] == ["(not fetched)", "(not fetched)", "a.csv"]
    listed = spotrun("fetch", "demo", "--list", "--json")
    assert [file.get("outcome") for file in listed.json["files"]] == ["left", "refused", None]


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENAMETOOLONG])
def test_file_that_cannot_be_read_here_is_named_and_the_others_are_fetched(
    number: int, run: Run, monkeypatch: pytest.MonkeyPatch, spotrun: Spotrun
) -> None:
    run.lists({"a": "1", "locked": "1", "z": "1"})
    run.folder.mkdir()
    (run.folder / "locked").write_text("0")

    def refuse(root: int, path: str) -> int:
        """A user without rights, as tests may run as root."""
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fetching, "open_for_reading", refuse)
    said = spotrun("fetch", "demo")
    assert (said.code, read(run.folder)) == (1, {"a": "1", "locked": "0", "z": "1"})
    assert f"could not be fetched; locked: it cannot be read or written here: {os.strerror(number)}" in said.err


def test_empty_target_is_refused(run: Run, tmp_path: Path, spotrun: Spotrun) -> None:
    run.lists({"a": "1"})
    said = spotrun("fetch", "demo", "--to", "")
    assert (said.code, "--to is empty" in said.err, (tmp_path / "a").exists()) == (2, True, False)


# -- what was changed here -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("modified_ns", [NEVER_NS, 10**18, FAR_NS])
def test_fetch_replaces_its_own_files_and_keeps_the_users_at_any_time(
    modified_ns: int, run: Run, spotrun: Spotrun
) -> None:
    folder = run.folder
    run.lists(dict.fromkeys(("edited", "kept", "mine", "equal"), "v1") | {"long": "long"})
    folder.mkdir()
    for path, text in (("mine", "by hand"), ("equal", "v1")):
        (folder / path).write_text(text)
        os.utime(folder / path, ns=(1, 1))
    first = outcomes(spotrun("fetch", "demo", "--json"))
    assert first == {"edited": "fetched", "kept": "fetched", "mine": "changed_here", "equal": "same", "long": "fetched"}
    (folder / "edited").write_text("by hand")
    os.utime(folder / "edited", ns=(1, 1))
    run.lists(dict.fromkeys(("edited", "kept", "mine", "equal", "long"), "v2"), modified_ns)
    said = spotrun("fetch", "demo")
    mine = {"edited": "by hand", "mine": "by hand", "equal": "v1"}
    assert read(folder) == {**mine, "kept": "v2", "long": "v2", "long.~1~": "long"}
    stays = "in the folder was changed, or not written by fetch, and is kept; add --force to replace it"
    assert all(f"{path} {stays}\n" in said.out for path in mine)
    spotrun("fetch", "demo", "--force")
    assert read(folder) == dict.fromkeys(("edited", "kept", "mine", "equal", "long"), "v2") | {"long.~1~": "long"}
    run.lists({"mine": "v3"}, modified_ns)
    assert outcomes(spotrun("fetch", "demo", "--json")) == {"mine": "fetched"}, "it is fetch's own since --force"


def test_two_runs_in_one_folder_replace_what_fetch_wrote_and_nothing_else(runs: Path, spotrun: Spotrun) -> None:
    one, other = Run(runs), Run(runs, uid="1123456789")
    one.lists({"a": "one", "b": "one"})
    other.lists({"a": "two", "b": "two"}, FAR_NS)
    spotrun("fetch", "demo-0123456789", "--to", "results")
    Path("results/b").write_text("by hand")
    spotrun("fetch", "demo-1123456789", "--to", "results")
    assert read(Path("results")) == {"a": "two", "b": "by hand"}


# -- space -----------------------------------------------------------------------------------------------------------


def small_disk(monkeypatch: pytest.MonkeyPatch, free_bytes: int, total_bytes: int = 1 << 40) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=total_bytes, free=free_bytes))


def test_files_that_do_not_fit_on_the_disk_are_refused_before_any_is_written(
    runs: Path, monkeypatch: pytest.MonkeyPatch, spotrun: Spotrun
) -> None:
    """A piece of 16 MiB, named over and over, makes a file of any size from a list of some kilobytes."""
    run = Run(runs)
    run.lists({"small": "text", "huge": "x" * PIECE_MAX_BYTES}, times=100)
    small_disk(monkeypatch, 10**9)
    said = spotrun("fetch", "demo")
    assert said.code == 1
    assert "the files need 1,677.7 MB, but the disk of demo-0123456789-files has only 1,000.0 MB free" in said.err
    assert "try: name only the files that you need (--list shows their sizes), or use --to to name" in said.err
    assert not run.folder.exists()
    assert spotrun("fetch", "demo", "small").code == 0
    small_disk(monkeypatch, 0, total_bytes=0)  # as of a mounted folder that does not say its size
    assert spotrun("fetch", "demo", "small", "--to", "elsewhere").code == 0


def test_files_that_are_there_already_or_are_kept_need_no_space(
    run: Run, monkeypatch: pytest.MonkeyPatch, spotrun: Spotrun
) -> None:
    run.lists({"same": "v1", "changed": "v1", "longer": "v1 and more", "grows": "v1"})
    spotrun("fetch", "demo")
    (run.folder / "users").write_text("by hand")
    run.lists({"same": "v1", "changed": "v2", "longer": "v2", "grows": "v2 and", "users": "of the run"})
    small_disk(monkeypatch, 5)
    assert "the files need 0.0 MB" in spotrun("fetch", "demo").err
    small_disk(monkeypatch, 6)  # for `longer`, whose earlier bytes are kept under another name, and `grows`
    said = spotrun("fetch", "demo")
    assert (said.code, read(run.folder)["changed"], read(run.folder)["grows"]) == (0, "v2", "v2 and")
    small_disk(monkeypatch, 0)
    assert spotrun("fetch", "demo").code == 0
    assert "the files need 0.0 MB" in spotrun("fetch", "demo", "--force").err
    small_disk(monkeypatch, 3)
    assert spotrun("fetch", "demo", "--force").code == 0


@pytest.mark.parametrize("damage", ["cut off", "gone", "no text", "unreadable"])
def test_without_a_readable_record_each_file_is_the_users(
    damage: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spotrun: Spotrun
) -> None:
    monkeypatch.setenv("SPOTRUN_KNOWN", str(tmp_path / "known"))
    run.lists({"a": "v1"})
    spotrun("fetch", "demo")
    (record,) = (path for path in (tmp_path / "known").rglob("*") if path.is_file())
    assert record.stat().st_mode & 0o077 == 0
    whole = record.read_bytes()
    record.unlink()
    if damage == "unreadable":
        record.mkdir()
    elif damage != "gone":
        record.write_bytes(whole[:-5] if damage == "cut off" else b"\xff\n[")
    run.lists({"a": "v2"})
    said = spotrun("fetch", "demo")
    assert (said.code, read(run.folder)) == (0, {"a": "v1"})
    assert (f"note: {record}: Is a directory; the next fetch replaces these files only with --force" in said.err) == (
        damage == "unreadable"
    )
    spotrun("fetch", "demo", "--force")
    run.lists({"a": "v3"})
    spotrun("fetch", "demo")
    assert read(run.folder)["a"] == ("v2" if damage == "unreadable" else "v3")
