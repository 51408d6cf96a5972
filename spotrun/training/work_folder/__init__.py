"""Freezes the files of the work folder at a boundary, for snapshots, and restores them when training resumes."""
