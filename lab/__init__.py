"""Hosts, a Slurm cluster and planted causes on one machine, for tests/lab and benchmarks; most of it needs root."""
