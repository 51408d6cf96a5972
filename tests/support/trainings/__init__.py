"""
Trainings that are killed and resumed, and the agent that they talk to.

`Zygote` is a process that has imported torch and Lightning and forks a trainer for each job (10 ms instead of 3 s).
`Agent` speaks the link from the other end: arenas by memfd, snapshots kept, kills, resumes. `training.train` is the
training: its job has an option for everything that may go wrong on a resume. It writes a trace, with a line for each
batch, validation and epoch. A resumed callback cuts the trace back to where the snapshot was taken, so at the end it
holds the history that survived.
"""
