#!/bin/sh
# The script of every job of spotrun. What one of them does is in its arguments.
exec "$@"
