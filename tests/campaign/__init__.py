"""Random cases of `--exact bitwise`, each compared with one rank that nobody killed: to the last bit."""
