"""The files in a run's folder that turn a rented machine into an instance with an agent."""

from __future__ import annotations
