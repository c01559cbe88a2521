"""Bitwise training: every bit of the result is the same at every world size."""
