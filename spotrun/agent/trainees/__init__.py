"""Port of what an attempt trains: a training with snapshots, a command with state in files, or one with neither."""
