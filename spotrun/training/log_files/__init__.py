"""Includes in checkpoints the logs that loggers write to files and to servers."""
