"""Adds the logs of loggers to checkpoints. A logger may write to files or to a server."""
