"""The files in a run's folder by which a rented machine becomes an instance with an agent."""

from __future__ import annotations
