"""Whether two trainings did the same, bit for bit."""
