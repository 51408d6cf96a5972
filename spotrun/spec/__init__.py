"""Reads a job file and flags into one immutable `RunSpec`, or lists every problem with its line."""
