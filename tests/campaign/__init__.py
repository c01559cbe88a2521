"""Random cases of `--exact bitwise`, each compared with an uninterrupted run on one rank, to the last bit."""
