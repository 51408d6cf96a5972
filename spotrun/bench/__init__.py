"""How fast a training runs on each type that may train it, by short runs of the job itself."""
