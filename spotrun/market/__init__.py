"""Knowledge about offerings: their prices, their speeds, and how often they are lost."""
