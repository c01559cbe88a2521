"""`paceline bench`: interleaved rounds of several variants, and their statistics."""
