"""Data sets: where samples come from, in which order, and how they reach the model."""
