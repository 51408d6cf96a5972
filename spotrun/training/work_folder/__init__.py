"""The files of the work folder as a part of snapshots: frozen at a boundary, and put back when training resumes."""
