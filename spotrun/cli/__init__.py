"""The `spotrun` command. Each verb has a short module of its own."""
