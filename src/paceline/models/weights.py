"""Fresh weights: the one place that says how they are drawn, from torch's global generator and nothing else."""

from torch import nn


def draw_convolutions(model: nn.Module) -> None:
    """Draw every convolution from He's normal distribution.

    The variance is 2 / (kernel size · output channels), as in He et al. 2015 and every residual network since. Linear
    and normalisation layers keep torch's own start: uniform in ±1/√fan_in, and scale 1 with shift 0.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
