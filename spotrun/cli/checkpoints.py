"""`spotrun checkpoints`"""

from __future__ import annotations

import typer

from spotrun.cli.options import JsonOption, RunArgument, StoreOption, print_json

app = typer.Typer(no_args_is_help=True, help="List a run's checkpoints, and check that they can be read back.")


@app.command("ls")
def list_checkpoints(run: RunArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show a run's checkpoints, newest first."""
    from spotrun.cli.wiring import open_run
    from spotrun.report.describe import gigabytes
    from spotrun.report.tables import plain

    commits = list(reversed(open_run(run, store).ledger.refresh().commits))
    if as_json:
        print_json([{"commit": commit.number, "usable": commit.usable, **_facts(commit.event)} for commit in commits])
        return
    for commit in commits:
        fate = "retired" if commit.retired_at else "cut off" if commit.cut_off else "" if commit.usable else "suspect"
        event = commit.event
        size = gigabytes(event.size_bytes)
        where = f"{commit.number:6}  step {event.step:>8,}  epoch {event.epoch + 1:>4}"
        print(f"{where}  {size:>10}  {plain(event.why):10} {fate}")


def _facts(event: object) -> dict[str, object]:
    import msgspec

    facts = msgspec.to_builtins(event)
    assert isinstance(facts, dict)
    return facts


@app.command()
def verify(run: RunArgument, store: StoreOption = None) -> None:
    """Read every usable checkpoint back and compare its checksums."""
    from spotrun.checkpoint.restore import verify as verify_commit
    from spotrun.cli.wiring import open_run
    from spotrun.errors import CheckpointDamaged, ObjectMissing
    from spotrun.report.tables import plain

    opened = open_run(run, store)
    damaged = []
    for commit in opened.ledger.refresh().restore_candidates():
        try:
            verify_commit(opened.store, commit)
        except (CheckpointDamaged, ObjectMissing) as error:
            damaged.append(commit.number)
            print(f"{commit.number:6}  step {commit.event.step:>8,}  DAMAGED: {plain(error.message)}")
        else:
            print(f"{commit.number:6}  step {commit.event.step:>8,}  whole")
    if damaged:
        raise CheckpointDamaged(
            f"{len(damaged)} of the usable checkpoints cannot be read back",
            hint="nothing is lost while one is whole: a resume walks back to it",
        )
