"""One set of files: rules, survey, store and restore, for the files of a training and for the state of a command."""
