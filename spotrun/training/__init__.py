"""
Makes a training script work with its agent, in any framework: takes snapshots, resumes exactly, and preserves the order
of the data.
"""
