"""What a training would cost at several places, by prices and speeds that are named. Nothing is rented. Pure."""
