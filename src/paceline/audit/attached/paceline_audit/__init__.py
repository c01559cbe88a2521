"""Evidence of how a training script uses torch, gathered inside its processes during an audit."""
