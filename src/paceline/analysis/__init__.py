"""Numbers from records: no input, no output."""
