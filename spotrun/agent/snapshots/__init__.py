"""Holds snapshots until they are saved: in arenas in memory, and in frozen files."""
