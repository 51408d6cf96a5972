"""Opens, prepares, attends and ends the runs that the verbs name: what several verbs share."""
