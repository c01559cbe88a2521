"""`paceline report`: runs and benchmarks as one HTML page."""
