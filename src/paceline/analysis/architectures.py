"""The shapes of well-known models: how parameters and arithmetic are spread from the first layer to the last."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer on the way forward."""

    parameters: float
    macs: float
    """Multiplications and additions of one sample."""


Layers = list[Layer]


def conv(channels: tuple[int, int], kernel: int, size: int) -> Layer:
    """Return a convolution with its batch norm, for a map of size × size pixels that it gives out."""
    weights = channels[0] * channels[1] * kernel**2
    return Layer(weights + 2 * channels[1], weights * size**2)


def dense(inputs: int, outputs: int, times: int = 1) -> Layer:
    """Return a matrix that is applied so many times to a sample."""
    return Layer(inputs * outputs + outputs, inputs * outputs * times)


def resnet(*blocks: int) -> Layers:
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


def vgg(*blocks: int) -> Layers:
    """Return a VGG network: most of its parameters are in the last layers, most arithmetic in the first."""
    layers, channels = [], 3
    for stage, number in enumerate(blocks):
        width = min(64 << stage, 512)
        for _ in range(number):
            layers.append(conv((channels, width), 3, 224 >> stage))
            channels = width
    return [*layers, dense(25088, 4096), dense(4096, 4096), dense(4096, 1000)]


def alexnet() -> Layers:
    """Return AlexNet as torchvision has it."""
    convs = [((3, 64), 11, 55), ((64, 192), 5, 27), ((192, 384), 3, 13), ((384, 256), 3, 13), ((256, 256), 3, 13)]
    return [*(conv(*one) for one in convs), dense(9216, 4096), dense(4096, 4096), dense(4096, 1000)]


def inception3() -> Layers:
    """Return Inception v3 in strokes as broad as its stages."""
    stages = [(0.03, 0.9), (0.26, 0.6), (0.37, 0.25), (0.40, 0.25), (1.3, 0.4), (1.3, 0.38), (1.7, 0.45), (1.7, 0.45),
              (2.1, 0.55), (1.7, 0.25), (5.0, 0.35), (6.1, 0.4)]  # fmt: skip
    return [*(Layer(millions * 1e6, giga * 1e9) for millions, giga in stages), dense(2048, 1000)]


def transformer(depth: int, width: int, tokens: int, words: int = 30522) -> Layers:
    """Return an encoder or decoder stack; the gradient of its embedding, shared with the output, comes last."""
    block = Layer(12 * width**2 + 13 * width, tokens * (12 * width**2 + 2 * tokens * width))
    embedding = Layer((words + 512) * width, 0)
    head = Layer(width**2, tokens * (width**2 + 0.15 * words * width))
    return [embedding, *[block] * depth, head]


KNOWN: dict[str, Callable[[], Layers]] = {
    "resnet50": lambda: resnet(3, 4, 6, 3),
    "resnet101": lambda: resnet(3, 4, 23, 3),
    "resnet152": lambda: resnet(3, 8, 36, 3),
    "vgg16": lambda: vgg(2, 2, 3, 3, 3),
    "vgg19": lambda: vgg(2, 2, 4, 4, 4),
    "alexnet": alexnet,
    "inception3": inception3,
    "bert-base": lambda: transformer(12, 768, 128),
    "bert-large": lambda: transformer(24, 1024, 128),
    "gpt2": lambda: transformer(12, 768, 1024, 50257),
    "gpt2-xl": lambda: transformer(48, 1600, 1024, 50257),
}

GPUS = {"p100": 5.4e12, "v100": 8.8e12, "v100-fp16": 22e12, "a100": 19e12, "a100-fp16": 45e12, "h100-fp16": 75e12}
"""Operations a second that training a convolutional network usually gets out of a device."""


def list_shapes() -> list[str]:
    """Return the names of the models whose shape is known."""
    return list(KNOWN)


def find_shape(name: str) -> Layers | None:
    """Return the layers of a model whose name is known, however it is spelt: ResNet-50, resnet50, BERT_large."""
    plain = {_plain(known): known for known in KNOWN}
    alias = {"inceptionv3": "inception3", "bert": "bert-base", "gpt2small": "gpt2"}
    key = _plain(name)
    key = _plain(alias.get(key, key))
    return KNOWN[plain[key]]() if key in plain else None


def even(parameters: float, layers: int = 50) -> Layers:
    """Return a model of which nothing is known but its size: parameters and arithmetic go hand in hand."""
    return [Layer(parameters / layers, 1.0)] * layers


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")
