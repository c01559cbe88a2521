"""Trackers receive records and never influence training."""
