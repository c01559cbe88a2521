"""Names that the simulator and its tests share; imports nothing, so that tests need not install the device."""

NAME = "gpusim"
"""The simulated device."""
BARE = "bare"
"""In the place of a command of Paceline: the bare loop."""
BEFORE_FORWARD = "before ddp's forward"
"""A phase of its own, because DDP rebuilds its buckets there."""
