"""
Records the state of the work folder's files for a snapshot, at a boundary, and restores the files when training
resumes.
"""
