"""
Exact resume for scripts that use the Trainer of transformers: implements the port of spotrun/training/framework.py.

A script needs no extra line, because autoload calls `entry.install` after the import of transformers.trainer. Importing
this package does not import transformers.
"""
