"""Bytes of a checkpoint: their layout, upload, verification, restore and retirement."""
