"""The shapes of well-known models: parameters and FLOPs by layer."""

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer, in forward order."""

    parameters: float
    macs: float
    """Multiply-adds per sample."""


def conv(channels: tuple[int, int], kernel: int, size: int) -> Layer:
    """Return a convolution with its batch norm, with an output of size × size pixels."""
    weights = channels[0] * channels[1] * kernel**2
    return Layer(weights + 2 * channels[1], weights * size**2)


def dense(inputs: int, outputs: int, times: int = 1) -> Layer:
    """Return a linear layer that is applied `times` times per sample."""
    return Layer(inputs * outputs + outputs, inputs * outputs * times)


def resnet(*blocks: int) -> list[Layer]:
    """Return a bottleneck residual network for images of 224 pixels."""
    layers, channels = [conv((3, 64), 7, 112)], 64
    for stage, number in enumerate(blocks):
        width, size = 64 << stage, 56 >> stage
        for block in range(number):
            before = size * 2 if block == 0 and stage else size
            layers += [conv((channels, width), 1, before), conv((width, width), 3, size)]
            layers += [conv((width, 4 * width), 1, size)]
            if block == 0:
                layers.append(conv((channels, 4 * width), 1, size))
            channels = 4 * width
    return [*layers, dense(2048, 1000)]


def resnext(*blocks: int) -> list[Layer]:
    """Return a residual network whose 3 × 3 convolutions have 32 groups of 4 channels."""
    layers, channels = [conv((3, 64), 7, 112)], 64
    for stage, number in enumerate(blocks):
        width, size = 128 << stage, 56 >> stage
        for block in range(number):
            before = size * 2 if block == 0 and stage else size
            grouped = Layer(9 * width**2 / 32 + 2 * width, 9 * width**2 / 32 * size**2)
            layers += [conv((channels, width), 1, before), grouped, conv((width, 2 * width), 1, size)]
            if block == 0:
                layers.append(conv((channels, 2 * width), 1, size))
            channels = 2 * width
    return [*layers, dense(2048, 1000)]


def efficientnet(width: float, depth: float, pixels: int) -> list[Layer]:
    """Return EfficientNet-B0, made wider and deeper: expansion, depthwise convolution, squeeze, projection."""
    stages = [(1, 16, 1, 3, 2), (6, 24, 2, 3, 4), (6, 40, 2, 5, 8), (6, 80, 3, 3, 16), (6, 112, 3, 5, 16),
              (6, 192, 4, 5, 32), (6, 320, 1, 3, 32)]  # fmt: skip
    channels = _in_eights(32 * width)
    layers = [conv((3, channels), 3, pixels // 2)]
    for expand, base, repeats, kernel, reduction in stages:
        outputs, size = _in_eights(base * width), pixels // reduction
        for _ in range(math.ceil(repeats * depth)):
            inner = channels * expand
            layers += [conv((channels, inner), 1, size)] if expand > 1 else []
            layers += [Layer(inner * (kernel**2 + 2), inner * kernel**2 * size**2), dense(inner, channels // 4),
                       dense(channels // 4, inner), conv((inner, outputs), 1, size)]  # fmt: skip
            channels = outputs
    top = _in_eights(1280 * width)
    return [*layers, conv((channels, top), 1, pixels // 32), dense(top, 1000)]


def _in_eights(channels: float) -> int:
    return int(8 * max(1, round(channels / 8)))


def vgg(*blocks: int) -> list[Layer]:
    """Return a VGG network: most parameters are in the last layers, most FLOPs in the first."""
    layers, channels = [], 3
    for stage, number in enumerate(blocks):
        width = min(64 << stage, 512)
        for _ in range(number):
            layers.append(conv((channels, width), 3, 224 >> stage))
            channels = width
    return [*layers, dense(25088, 4096), dense(4096, 4096), dense(4096, 1000)]


def alexnet() -> list[Layer]:
    """Return torchvision's AlexNet."""
    convs = [((3, 64), 11, 55), ((64, 192), 5, 27), ((192, 384), 3, 13), ((384, 256), 3, 13), ((256, 256), 3, 13)]
    return [*(conv(*one) for one in convs), dense(9216, 4096), dense(4096, 4096), dense(4096, 1000)]


def inception3() -> list[Layer]:
    """Return Inception v3, one layer per stage."""
    stages = [(0.03, 0.9), (0.26, 0.6), (0.37, 0.25), (0.40, 0.25), (1.3, 0.4), (1.3, 0.38), (1.7, 0.45), (1.7, 0.45),
              (2.1, 0.55), (1.7, 0.25), (5.0, 0.35), (6.1, 0.4)]  # fmt: skip
    return [*(Layer(millions * 1e6, giga * 1e9) for millions, giga in stages), dense(2048, 1000)]


def transformer(depth: int, width: int, tokens: int, vocabulary: int = 30522) -> list[Layer]:
    """Return an encoder stack; the gradient of its embedding, shared with the output, comes last."""
    block = Layer(12 * width**2 + 13 * width, tokens * (12 * width**2 + 2 * tokens * width))
    embedding = Layer((vocabulary + 512) * width, 0)
    head = Layer(width**2, tokens * (width**2 + 0.15 * vocabulary * width))
    return [embedding, *[block] * depth, head]


def decoder(depth: int, width: int, tokens: int, vocabulary: int) -> list[Layer]:
    """Return a decoder-only stack with logits for every token; its embedding is also the last layer, stored once."""
    block = Layer(12 * width**2 + 13 * width, tokens * (12 * width**2 + 2 * tokens * width))
    embedding = Layer((vocabulary + tokens) * width, 0)
    return [embedding, *[block] * depth, Layer(2 * width, tokens * vocabulary * width)]


KNOWN: dict[str, Callable[[], list[Layer]]] = {
    "resnet50": lambda: resnet(3, 4, 6, 3),
    "resnet101": lambda: resnet(3, 4, 23, 3),
    "resnet152": lambda: resnet(3, 8, 36, 3),
    "resnext101": lambda: resnext(3, 4, 23, 3),
    "efficientnet-b0": lambda: efficientnet(1.0, 1.0, 224),
    "efficientnet-b4": lambda: efficientnet(1.4, 1.8, 380),
    "vgg16": lambda: vgg(2, 2, 3, 3, 3),
    "vgg19": lambda: vgg(2, 2, 4, 4, 4),
    "alexnet": alexnet,
    "inception3": inception3,
    "bert-base": lambda: transformer(12, 768, 128),
    "bert-large": lambda: transformer(24, 1024, 128),
    "gpt2": lambda: decoder(12, 768, 1024, 50257),
    "gpt2-xl": lambda: decoder(48, 1600, 1024, 50257),
}

GPUS = {"p100": 5.4e12, "v100": 8.8e12, "v100-fp16": 22e12, "a100": 19e12, "a100-fp16": 45e12, "h100-fp16": 75e12}
"""Typical FLOP/s of a device when it trains a convolutional network."""


def list_shapes() -> list[str]:
    """Return the names of the known models."""
    return list(KNOWN)


def find_shape(name: str) -> list[Layer] | None:
    """Return the layers of a known model, in any spelling of its name: ResNet-50, resnet50, BERT_large."""
    plain = {_plain(known): known for known in KNOWN}
    alias = {"inceptionv3": "inception3", "bert": "bert-base", "gpt2small": "gpt2", "resnext10132x4d": "resnext101"}
    key = _plain(name)
    key = _plain(alias.get(key, key))
    return KNOWN[plain[key]]() if key in plain else None


def is_image_model(name: str) -> bool:
    """Return whether a known model takes images of the size of ImageNet's."""
    return find_shape(name) is not None and not _plain(name).startswith(("bert", "gpt"))


def even(parameters: float, layers: int = 50) -> list[Layer]:
    """Return a model of which only the size is known, with parameters and FLOPs spread evenly over its layers."""
    return [Layer(parameters / layers, 1.0)] * layers


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")
