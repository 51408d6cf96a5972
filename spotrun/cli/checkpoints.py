"""`spotrun checkpoints`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spotrun.cli.options import JsonOption, LaunchStoreOption, RunArgument, SpecArgument, StoreOption, print_json
from spotrun.cli.plain_help import HELP, Verbs, add_verbs
from spotrun.errors import CheckpointDamaged, ObjectMissing, RunNotFound, SpecInvalid, needs_extra

if TYPE_CHECKING:
    from spotrun.run.state import Commit, RunState
    from spotrun.runs.open_run import OpenRun


def list_checkpoints(run: RunArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List a run's checkpoints, newest first."""
    from spotrun.runs.open_run import open_run

    opened = open_run(run, store)
    state, damage = opened.read_whole_part()
    commits = list(reversed(state.commits))
    if as_json:
        print_json([_told(commit) for commit in commits])
    elif not commits:
        print(f"{opened.id} has no checkpoints")
    else:
        _print_commits(commits)
        _print_newest(state)
    if damage is not None:
        raise damage


def _print_commits(commits: list[Commit]) -> None:
    from spotrun.report.describe import gigabytes
    from spotrun.report.describe import size as size_of
    from spotrun.report.tables import NOTHING, FiguresTable, print_table

    fits = ("fit",) if commits[0].event.fit > 1 else ()
    heads = ("checkpoint", *fits, "step", "epoch", "size", "sent", "why", "state")
    table = FiguresTable("", heads, texts=(len(heads) - 2, len(heads) - 1), gap=2)
    for commit in commits:
        fate = "retired" if commit.retired_at else "cut off" if commit.cut_off else "" if commit.usable else "suspect"
        event = commit.event
        sent = gigabytes(event.stored_bytes) if event.borrows else NOTHING
        size, epoch, step = gigabytes(event.size_bytes), str(event.epoch + 1), f"{event.step:,}"
        if event.files is not None and not event.has_image:
            step, epoch = NOTHING, NOTHING
            size, sent = size_of(event.files.size_bytes), size_of(event.files.sent_bytes)
        fit = [str(event.fit)] if fits else []
        table.add_row([str(commit.number), *fit, step, epoch, size, sent, event.why, fate])
    print_table(table)


def _print_newest(state: RunState) -> None:
    """Print the step of the newest checkpoint if the training is known to have gone further."""
    from spotrun.report.folding import say

    newest, last = state.latest_commit(), next(reversed(state.attempts.values()))
    reached = [trainer.exited.step for trainer in last.trainers if trainer.exited is not None]
    if last.end is not None and last.end.last_step is not None:
        reached.append(last.end.last_step)
    if newest is not None and newest.event.has_image and max(reached, default=0) > newest.event.step:
        say(f"newest checkpoint: step {newest.event.step:,}; the training had reached step {max(reached):,}")


def _told(commit: Commit) -> dict[str, Any]:
    """Return the checkpoint for `--json`. Epochs are counted from 1, as in all other output."""
    from msgspec import to_builtins

    entry = {**to_builtins(commit.event), "epoch": commit.event.epoch + 1}
    return {"commit": commit.number, "usable": commit.usable, **entry}


def verify(run: RunArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Read every usable checkpoint back, with its files, and compare the checksums."""
    from spotrun.checkpoint.outputs import verify_files
    from spotrun.checkpoint.restore import verify as verify_commit
    from spotrun.report.tables import plain
    from spotrun.runs.open_run import open_run
    from spotrun.units import count_of

    opened = open_run(run, store)
    read: list[dict[str, Any]] = []
    for commit in opened.ledger.refresh().restore_candidates():
        damage = None
        try:
            if commit.event.has_image:
                verify_commit(opened.store, commit)
            verify_files(opened.store, commit)
        except (CheckpointDamaged, ObjectMissing) as error:
            damage = plain(error.message)
        event = commit.event
        read.append({"commit": commit.number, "step": event.step, "epoch": event.epoch + 1, "damage": damage})
        if not as_json:
            print(
                f"{commit.number:6}  step {event.step:>8,}  {f'DAMAGED: {damage}' if damage else 'whole'}", flush=True
            )
    damaged = [each for each in read if each["damage"] is not None]
    if as_json:
        print_json({"ok": not damaged, "checkpoints": read})
    elif not read:
        print(f"{opened.id} has no usable checkpoints")
    if damaged:
        none_left = len(damaged) == len(read)
        raise CheckpointDamaged(
            f"{len(damaged)} of {count_of(len(read), 'checkpoint')} cannot be read back",
            hint="no checkpoint is intact: restore the objects, or launch a new run"
            if none_left
            else "a resume continues from the newest checkpoint that is intact",
        )


StepOption = Annotated[
    int | None, typer.Option("--step", metavar="N", help="Export the checkpoint of this step, not the newest.")
]


def export_checkpoint(
    run: RunArgument,
    out: Annotated[Path, typer.Argument(metavar="OUT.ckpt", help="The file to write.")],
    step: StepOption = None,
    store: StoreOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a checkpoint as an ordinary Lightning checkpoint file."""
    from spotrun.checkpoint.restore import fetch
    from spotrun.runs.open_run import open_run

    if out.is_dir():
        raise SpecInvalid(f"{out} is a folder", hint=f"name the file to write: {out / 'run.ckpt'}")
    if out.exists() and not force:
        raise SpecInvalid(f"{out} exists already", hint="name another file, or add --force")
    if not out.parent.is_dir():
        raise SpecInvalid(f"there is no folder {out.parent}", hint="create it, or name another file")
    opened = open_run(run, store)
    commit = _commit_of(opened.id, opened.ledger.refresh(), step)
    if not commit.event.has_image:
        raise SpecInvalid(
            f"checkpoint {commit.number} of {opened.id} contains only files, and no training state to export",
            hint=f"`spotrun fetch {opened.typed}` fetches its files",
        )
    with needs_extra("lightning", "a Lightning checkpoint"):
        from spotrun.checkpoint.snapshot import map_image
        from spotrun.lightning.checkpoint_file import export
    image = fetch(opened.store, commit)
    export(map_image(image.fd, image.size_bytes), out)
    event = commit.event
    print(f"wrote {out}: step {event.step:,}, epoch {event.epoch + 1}, of checkpoint {commit.number} of {opened.id}")


def _commit_of(run_id: str, state: RunState, step: int | None) -> Commit:
    """
    Return the newest usable checkpoint. If `step` is given, return the newest checkpoint of that step, even if it is
    suspect or the training later resumed from an earlier step.
    """
    held = [commit for commit in state.commits if commit.retired_at is None]
    chosen = state.restore_candidates() if step is None else [c for c in reversed(held) if c.event.step == step]
    if chosen:
        return chosen[0]
    known = ", ".join(str(each) for each in sorted({commit.event.step for commit in held}))
    wanted = "" if step is None else f" of step {step}"
    hint = f"it has checkpoints of these steps: {known}" if held else f"`spotrun why {run_id}` says how far it has come"
    raise RunNotFound(f"{run_id} has no checkpoint{wanted}", hint=hint)


def import_checkpoint(
    file: Annotated[Path, typer.Argument(metavar="FILE.ckpt", help="A Lightning checkpoint.")],
    spec_path: SpecArgument,
    name: Annotated[str | None, typer.Option("--name", "-n", metavar="NAME", help="Give the run this name.")] = None,
    store: LaunchStoreOption = None,
) -> None:
    """
    Create a run of JOB.yaml that begins from a Lightning checkpoint.

    `spotrun resume` then trains the run.
    """
    from spotrun import address
    from spotrun.runner.creation import prepare_run
    from spotrun.runs.known import create_known
    from spotrun.runs.open_run import default_store, who
    from spotrun.runs.pinning import with_baseline_price
    from spotrun.runs.prepared import show_start
    from spotrun.spec.file import load_spec, placed

    uri = None if store is None else address.absolute(store)
    overrides = {"name": name, "checkpoint.uri": uri}
    with placed(spec_path, overrides):
        spec = with_baseline_price(load_spec(spec_path, overrides, default_store()))
    show_start(file)
    run = create_known(prepare_run(spec, f"cli:{who()}", file), "cli")
    print(f"made {run.id}; nothing is rented yet: `spotrun resume {run.typed}` trains it")


def prune(
    run: RunArgument,
    store: StoreOption = None,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep",
            metavar="N",
            min=1,
            help="Keep this many of the newest checkpoints, instead of the job's keep_last.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted, and delete nothing.")] = False,
) -> None:
    """
    Delete checkpoints that the job's rules do not keep.

    The rules are keep_last, keep_best and keep_every. Uploads that never became a checkpoint are deleted too.
    """
    from spotrun.checkpoint import pruning
    from spotrun.report.describe import gigabytes
    from spotrun.runs.open_run import open_run
    from spotrun.units import count_of

    opened = open_run(run, store)
    state = opened.ledger.refresh()
    rule = opened.spec.checkpoint
    if keep is not None:
        rule = rule.model_copy(update={"keep_last": keep})
    if state.terminal is None:
        _ask_the_agent(opened, rule.keep_last, dry_run=dry_run)
        return
    gone = pruning.plan(state, opened.store, rule) if dry_run else pruning.prune(opened.ledger, opened.store, rule)
    for commit in gone.commits:
        print(f"{commit.number:6}  step {commit.event.step:>8,}  {gigabytes(commit.event.size_bytes):>10}")
    verb = "would be deleted" if dry_run else "deleted"
    counts = f"{count_of(len(gone.commits), 'checkpoint')}, {count_of(len(gone.objects), 'object')}"
    print(f"{counts}, {gigabytes(gone.size_bytes)} {verb}")


def _ask_the_agent(opened: OpenRun, keep: int, *, dry_run: bool) -> None:
    """
    Record a request that the agent delete checkpoints: until a run has ended, only its current attempt is allowed to do
    so (protocol 23). With `dry_run`, only print how many checkpoints the agent would delete.
    """
    from msgspec.structs import replace

    from spotrun.checkpoint.retention import to_retire
    from spotrun.run.events import PruneRequested
    from spotrun.run.state import Prune
    from spotrun.runs.open_run import who
    from spotrun.units import count_of

    event = PruneRequested(by=who(), keep=keep)
    if dry_run:
        state = opened.ledger.state
        asked = replace(state, prune=Prune(number=state.next_number, keep=keep))
        count = len(to_retire(asked, opened.spec.checkpoint, None))
        print(
            f"{opened.id} has not ended: after the next checkpoint, its agent would delete "
            f"{count_of(count, 'checkpoint')}"
        )
        return
    opened.ledger.append(lambda _: event)
    print(f"{opened.id} has not ended: after the next checkpoint, its agent will keep only {keep} of these checkpoints")


app = typer.Typer(
    context_settings=HELP,
    name="checkpoints",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="List, verify, export, import and prune checkpoints.",
)
VERBS: Verbs = {
    "ls": (list_checkpoints, "resnet50"),
    "verify": (verify, "resnet50"),
    "export": (export_checkpoint, "resnet50 out.ckpt --step 500"),
    "import": (import_checkpoint, "out.ckpt train.yaml"),
    "prune": (prune, "resnet50 --keep 1 --dry-run"),
}
"""The verbs, each with the arguments of an example for its help."""
add_verbs(app, "spotrun checkpoints", VERBS)
