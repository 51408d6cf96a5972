"""The files in a run's folder with which a rented machine installs and starts its agent."""

from __future__ import annotations
