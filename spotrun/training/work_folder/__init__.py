"""Records the work folder's files for a snapshot, between two steps, and restores them when training resumes."""
