"""
Makes scripts that use the Trainer of transformers exactly resumable. Implements the interface in
spotrun/training/framework.py.

A script needs no extra line, because autoload calls `entry.install` as soon as transformers.trainer has been imported.
Importing this package does not import transformers.
"""
