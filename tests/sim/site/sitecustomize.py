"""Python imports this at start-up when its folder is on PYTHONPATH: the process then has a simulated GPU."""

from tests.sim.renaming import rename_cuda

rename_cuda()
