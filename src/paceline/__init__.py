"""Paceline: train one PyTorch model the same way on one device, one node or many."""
