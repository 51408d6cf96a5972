"""`spotrun version`"""

from __future__ import annotations


def version() -> None:
    """Show the version, the commit if it is known, and which extras are installed."""
    from spotrun.runs.installed import told

    print(told())
