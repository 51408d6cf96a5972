"""Container images in their registries, and containers that docker or podman runs on this machine."""

from __future__ import annotations

ENTRANCE = "enter"
"""The name, in the instance's folder, of the program that opens a shell in the training's container."""
