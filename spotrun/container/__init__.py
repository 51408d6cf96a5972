"""Container images in their registries, and containers on this machine by docker or podman."""

from __future__ import annotations

ENTRANCE = "enter"
"""The program that opens a shell in a training's container; its name in the instance's folder."""
