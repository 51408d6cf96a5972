#!/bin/sh
# The script of every job of spotrun. Its arguments are the command to run.
exec "$@"
