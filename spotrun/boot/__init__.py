"""The files in a run's folder that make a rented machine an instance with an agent."""

from __future__ import annotations
