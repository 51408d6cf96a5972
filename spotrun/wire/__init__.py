"""What agent and trainer have between them. The standard library alone: a trainer's Python may have nothing of ours."""
