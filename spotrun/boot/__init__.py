"""What a rented machine needs from the run's folder to become an instance with an agent."""

from __future__ import annotations
