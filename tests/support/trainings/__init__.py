"""
Trainings that are killed and resumed, and the agent that they talk to.

`Zygote` is a process that has imported torch and Lightning and forks a trainer for each job (10 ms instead of 3 s).
`Agent` speaks the link from the other end: arenas by memfd, snapshots kept, kills, resumes. `training.train` is the
training: everything that may go wrong on a resume is an option of its job, and it writes a trace, a line per batch,
validation and epoch, which a resumed callback cuts back to where the snapshot was taken, as a user's own log would
be. What is in it at the end is the history that survived.
"""
