"""Google Compute Engine."""

from __future__ import annotations
