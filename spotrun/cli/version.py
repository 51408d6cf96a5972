"""`spotrun version`"""

from __future__ import annotations

from spotrun import __version__


def version() -> None:
    """Show the version."""
    print(f"spotrun {__version__}")
