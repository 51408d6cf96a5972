"""The files in a run's folder from which a rented machine installs and starts its agent."""

from __future__ import annotations
