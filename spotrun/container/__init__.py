"""Container images in their registries, and containers on this machine by docker or podman."""

from __future__ import annotations

ENTRANCE = "enter"
"""In the folder of an instance whose training is in a container: the program that opens a shell there."""
