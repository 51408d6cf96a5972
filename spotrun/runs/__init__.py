"""Opens, prepares, attends and ends runs: the code that several verbs of the command line share."""
