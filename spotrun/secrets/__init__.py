"""Names secrets by reference, reads their values, and hides secrets in text."""
