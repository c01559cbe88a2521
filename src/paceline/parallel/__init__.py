"""Ranks: detecting the rank of this process, joining the others, and collectives."""
