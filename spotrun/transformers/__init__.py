"""
Exact resume for scripts that use the Trainer of transformers. Implements the interface in
spotrun/training/framework.py.

A script needs no extra line, because autoload calls `entry.install` after the import of transformers.trainer. Importing
this package does not import transformers.
"""
