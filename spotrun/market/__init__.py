"""What is known of offerings, their prices, and how often they are lost."""
