"""spotrun: train on interruptible GPUs, exactly, and know what every epoch cost."""

__version__ = "0.1.0"
