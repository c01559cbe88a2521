"""Augmentation of whole batches, each random decision addressed by seed, epoch and sample id."""
