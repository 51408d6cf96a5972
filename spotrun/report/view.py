"""Shows work in progress: as a continuously updated screen on a terminal, as plain lines elsewhere."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import Generic, Self, TypeVar

from rich.console import Console, RenderableType
from rich.live import Live

Update = TypeVar("Update")


class View(AbstractContextManager["View[Update]"], Generic[Update]):
    """
    A context manager that shows the progress of some work. Enter it before the work begins, and leave it after its end.
    """

    @abstractmethod
    def show(self, update: Update) -> None: ...

    def __exit__(self, *_: object) -> None:
        return


class Screen(View[Update]):
    """A view that redraws one screen of a terminal. If `transient` is True, the screen is cleared at the end."""

    def __init__(self, console: Console, *, refresh_per_second: float, transient: bool) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=refresh_per_second, transient=transient)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    @property
    def width(self) -> int:
        """The number of columns of the terminal. It may change at any time."""
        return self._console.width

    @property
    def height(self) -> int:
        """The number of lines of the terminal. It may change at any time. Lines that do not fit are not shown."""
        return self._console.height

    def show(self, update: Update) -> None:
        self._live.update(self.render(update))

    @abstractmethod
    def render(self, update: Update) -> RenderableType: ...
