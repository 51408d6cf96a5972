"""`spotrun view`"""

from __future__ import annotations

from typing import Annotated

import typer

from spotrun.cli.options import StoreOption
from spotrun.runs.completion import run_names


def view(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]", help="The run to begin with, by id, name or address.", autocompletion=run_names
        ),
    ] = None,
    store: StoreOption = None,
    port: Annotated[
        int,
        typer.Option(
            "--port", metavar="PORT", min=0, max=65535, help="Serve at this port.", show_default="any free port"
        ),
    ] = 0,
) -> None:
    """
    Show all runs, or one run, as live pages in a web browser.

    The pages are served only on this machine, at an address that contains a random word, until you press Ctrl-C. The
    page of a run is its HTML report, which is kept up to date.
    """
    from spotrun.runs.open_run import default_store, open_run
    from spotrun.view.pages import Pages
    from spotrun.view.server import serve

    if run is None:
        serve(Pages(store or default_store()), port)
        return
    opened = open_run(run, store)
    serve(Pages(opened.runs.uri, [opened]), port, opened.id)
