"""Code that several verbs of the command line share: it prepares, opens, looks after and ends runs."""
