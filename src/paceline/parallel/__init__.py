"""Ranks: finding out that one is a rank, joining the others, and agreeing with them."""
