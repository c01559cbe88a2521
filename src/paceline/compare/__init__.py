"""`paceline compare`: two runs, checkpoints or weight files, tensor by tensor."""
