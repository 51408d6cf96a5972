"""Container images in their registries, and containers on this machine by docker or podman."""

from __future__ import annotations
