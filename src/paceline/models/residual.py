"""Residual networks in general: blocks with projection shortcuts, stems, and the body that stacks them."""

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


def conv3x3(num_in: int, num_out: int, stride: int = 1) -> nn.Conv2d:
    """Return a padded 3×3 convolution without bias: the normalisation after it has one."""
    return nn.Conv2d(num_in, num_out, kernel_size=3, stride=stride, padding=1, bias=False)


def conv1x1(num_in: int, num_out: int, stride: int = 1) -> nn.Conv2d:
    """Return a 1×1 convolution without bias."""
    return nn.Conv2d(num_in, num_out, kernel_size=1, stride=stride, bias=False)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, num_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.num_out = width
        self.conv1 = conv3x3(num_in, width, stride)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut, self.shortcut_norm = _shortcut(num_in, self.num_out, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Add the residual to the shortcut."""
        hidden = functional.relu(self.norm1(self.conv1(images)))
        hidden = self.norm2(self.conv2(hidden))
        return functional.relu(hidden + self.shortcut_norm(self.shortcut(images)))

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        """The normalisation that scales the residual."""
        return self.norm2


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions beside a shortcut, the last four times as wide; the 3×3 one carries the stride."""

    expansion = 4

    def __init__(self, num_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.num_out = width * self.expansion
        self.conv1 = conv1x1(num_in, width)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width, stride)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = conv1x1(width, self.num_out)
        self.norm3 = nn.BatchNorm2d(self.num_out)
        self.shortcut, self.shortcut_norm = _shortcut(num_in, self.num_out, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Add the residual to the shortcut."""
        hidden = functional.relu(self.norm1(self.conv1(images)))
        hidden = functional.relu(self.norm2(self.conv2(hidden)))
        hidden = self.norm3(self.conv3(hidden))
        return functional.relu(hidden + self.shortcut_norm(self.shortcut(images)))

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        """The normalisation that scales the residual."""
        return self.norm3


def _shortcut(num_in: int, num_out: int, stride: int) -> tuple[nn.Module, nn.Module]:
    """Return a projection and its normalisation where the shape changes, and two identities elsewhere."""
    if stride == 1 and num_in == num_out:
        return nn.Identity(), nn.Identity()
    return conv1x1(num_in, num_out, stride), nn.BatchNorm2d(num_out)


def small_image_stem(in_channels: int, width: int) -> nn.Sequential:
    """Return the start of a network that keeps the resolution: one 3×3 convolution."""
    return nn.Sequential(
        OrderedDict(conv1=conv3x3(in_channels, width), norm1=nn.BatchNorm2d(width), relu=nn.ReLU()),
    )


def imagenet_stem(in_channels: int, width: int) -> nn.Sequential:
    """Return the start of a network that quarters the resolution: a 7×7 convolution and a pool, both of stride 2."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(in_channels, width, kernel_size=7, stride=2, padding=3, bias=False),
            norm1=nn.BatchNorm2d(width),
            relu=nn.ReLU(),
            pool=nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
        )
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The body of a residual network: blocks per stage, and how wide they are."""

    block: type[BasicBlock] | type[Bottleneck]
    num_blocks: tuple[int, ...]
    widths: tuple[int, ...]

    @property
    def num_features(self) -> int:
        """Channels of the last stage, the input of the classifier."""
        return self.widths[-1] * self.block.expansion


class ResNet(nn.Module):
    """A stem, stages of residual blocks that halve the resolution from the second on, a mean, a classifier."""

    def __init__(self, stem: nn.Module, plan: Plan, num_classes: int) -> None:
        super().__init__()
        self.stem = stem
        self.stages = _stages(plan)
        self.linear = nn.Linear(plan.num_features, num_classes)
        draw_convolutions(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        features = self.stages(self.stem(images))
        return self.linear(features.mean(dim=(2, 3)))


def start_as_identity(model: ResNet) -> None:
    """Scale every residual by 0 at the start, so that each block starts as its shortcut (Goyal et al. 2017)."""
    for block in model.modules():
        if isinstance(block, BasicBlock | Bottleneck):
            nn.init.zeros_(block.last_norm.weight)


def _stages(plan: Plan) -> nn.Sequential:
    stages = nn.Sequential()
    num_in = plan.widths[0]
    for stage_index, (width, num_blocks) in enumerate(zip(plan.widths, plan.num_blocks, strict=True)):
        stage = nn.Sequential()
        for block_index in range(num_blocks):
            stride = 2 if stage_index > 0 and block_index == 0 else 1
            block = plan.block(num_in, width, stride)
            stage.append(block)
            num_in = block.num_out
        stages.append(stage)
    return stages


def draw_convolutions(model: nn.Module) -> None:
    """Draw every convolution from He's normal distribution.

    The variance is 2 / (kernel size · output channels), as in He et al. 2015 and every residual network since. Linear
    and normalisation layers keep torch's own start: uniform in ±1/√fan_in, and scale 1 with shift 0.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
