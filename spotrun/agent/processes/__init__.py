"""Trainers: their processes, their socket, and their signs of life."""
