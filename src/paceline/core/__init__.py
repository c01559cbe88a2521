"""Frozen facts that every other layer builds on: settings, world, errors, units, keys."""
