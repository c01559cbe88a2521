"""What analysis found, as people read it."""
