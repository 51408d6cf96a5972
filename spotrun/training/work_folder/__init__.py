"""Freezes the work folder's files at a boundary, for a snapshot, and restores them when training resumes."""
