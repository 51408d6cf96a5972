"""
A cloud on this machine. Its instances are real process trees; its market is simulated.

Runs on Linux only: it relies on subreapers, parent-death signals and /proc.
"""

from __future__ import annotations
