"""Trackers receive records and never steer."""
