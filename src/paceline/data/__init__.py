"""The images: where they come from, in which order, and how they reach the model."""
