"""Adds the logs of loggers to checkpoints, whether a logger writes to files or to a server."""
