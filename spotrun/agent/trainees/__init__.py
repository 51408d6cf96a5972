"""The programs that an attempt may run: a training with snapshots, a command with state in files, or neither."""
