"""Saves what loggers write, to files and to servers, as part of a checkpoint."""
