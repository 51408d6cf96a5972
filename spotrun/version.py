"""The version of this spotrun."""

__version__ = "0.1.0"
