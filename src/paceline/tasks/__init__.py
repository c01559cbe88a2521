"""Tasks: how a batch becomes a loss, and how outputs become metrics."""
