"""Container images in their registries, and containers that docker or podman runs on this machine."""

from __future__ import annotations

ENTRANCE = "enter"
"""The program that opens a shell in a training's container, as a name in the instance's folder."""
