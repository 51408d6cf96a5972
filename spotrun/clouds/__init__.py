"""One package for each cloud, with its driver, prices, checks and nights, behind one port."""
