"""Port of what an attempt trains, and its implementations: a training with snapshots, a command with state in files, or a command with neither."""
