"""Training. Read loop.py first."""
