"""Side-by-side comparisons: ratios of interleaved runs against a named peer, never a time on its own."""
