"""Training. Read loop.py first, then passes.py and run_steps.py."""
