"""Code that several commands share, for creating, opening, observing and ending runs."""
