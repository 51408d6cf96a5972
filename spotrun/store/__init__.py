"""The object store: one port, and a driver for each kind of address."""
