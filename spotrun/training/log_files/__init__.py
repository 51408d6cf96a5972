"""Includes the logs that loggers write to files and to servers in checkpoints."""
