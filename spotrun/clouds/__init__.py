"""The interface that all clouds implement, and one package for each cloud: its driver, prices, checks and nights."""
