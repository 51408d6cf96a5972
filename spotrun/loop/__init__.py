"""Makes a script's own training loop exactly resumable, also with Fabric and accelerate: `from spotrun import Loop`."""
