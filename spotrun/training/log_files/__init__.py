"""Saves the files and servers that loggers write to, as part of a checkpoint."""
