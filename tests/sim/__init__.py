"""A simulated GPU: Paceline's own CUDA code on a machine without one, in pure Python; docs/gpu.md."""
