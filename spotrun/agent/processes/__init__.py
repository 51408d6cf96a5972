"""Trainers: their processes, their sockets, and their signs of life."""
