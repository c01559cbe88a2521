"""Training whose result is the same to the last bit at every world size."""
