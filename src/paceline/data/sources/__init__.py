"""One module per place that images come from."""
