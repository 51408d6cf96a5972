"""Code that several commands share: it creates, opens, looks after and ends runs."""
