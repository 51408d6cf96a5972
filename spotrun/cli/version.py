"""`spotrun version`"""

from __future__ import annotations


def version() -> None:
    """Show the version, its git commit if known, and the installed extras."""
    from spotrun.runs.installed import told

    print(told())
