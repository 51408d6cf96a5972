"""Handles a checkpoint's bytes: their layout, upload, verification, restore and retirement."""
