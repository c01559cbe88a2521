"""Auditing training scripts: evidence of a short run, and the rules that judge it."""
