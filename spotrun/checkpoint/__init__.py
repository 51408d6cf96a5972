"""The bytes of a checkpoint: how they are laid out, sent, verified, restored and retired."""
