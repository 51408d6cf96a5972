"""What an attempt trains: a training with snapshots, a command with state in files, or a command with neither."""
