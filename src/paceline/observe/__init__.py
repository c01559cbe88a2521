"""Observing training scripts that know nothing of Paceline."""
