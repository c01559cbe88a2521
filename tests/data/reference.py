"""One image at a time, slowly and obviously: what the batched augmentation must agree with.

Written with Pillow and plain loops, from the description of each step. Random numbers are addressed as the contract
says (seed, purpose, epoch, details, sample id) and hashed one by one.
"""

from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import NormalDist

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from paceline.core.keys import mix
from paceline.data.augment.draws import Purpose, beta_table

TABLE = 4096


@dataclass(frozen=True)
class SampleDraws:
    seed: int
    epoch: int
    sample: int

    def bits(self, purpose, *detail):
        return mix(self.seed, purpose, self.epoch, *detail, self.sample)

    def halves(self, purpose, *detail):
        bits = self.bits(purpose, *detail)
        return bits >> 32, bits & 0xFFFFFFFF

    def quarters(self, purpose, *detail):
        bits = self.bits(purpose, *detail)
        return bits >> 48, (bits >> 32) & 0xFFFF, (bits >> 16) & 0xFFFF, bits & 0xFFFF


def below(count, half):
    return half * count >> 32


def quantile(quarter):
    return ((quarter >> 4) + 0.5) / TABLE


def picture(planes):
    """Return a Pillow image of C×H×W bytes."""
    return Image.fromarray(planes[0] if len(planes) == 1 else planes.transpose(1, 2, 0))


def planes(image):
    """Return the C×H×W bytes of a Pillow image."""
    array = np.asarray(image)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def crop(image, draws, *, padding, reflect=False):
    width, height = image.size
    top, left = (below(2 * padding + 1, half) for half in draws.halves(Purpose.CROP))
    if not reflect:
        wide = ImageOps.expand(image, border=padding, fill=0)
        return wide.crop((left, top, left + width, top + height))
    result = image.copy()
    for y in range(height):
        for x in range(width):
            from_y, from_x = y + top - padding, x + left - padding
            result.putpixel((x, y), image.getpixel((_bounce(from_x, width), _bounce(from_y, height))))
    return result


def _bounce(position, size):
    position = abs(position)
    return position if position < size else 2 * (size - 1) - position


def flip(image, draws):
    return ImageOps.mirror(image) if draws.bits(Purpose.FLIP) >> 63 else image


def alternating_flip(image, draws):
    first = mix(draws.seed, Purpose.FLIP, 0, draws.sample) >> 63
    return ImageOps.mirror(image) if (first + draws.epoch) % 2 else image


def log_uniform(quantile, low, high):
    return exp(log(low) + (log(high) - log(low)) * quantile)


def box(size, draws, smallest):
    """Return left, top, width, height of the resized crop."""
    width, height = size
    for attempt in range(10):
        half, *_ = draws.halves(Purpose.RESIZED_CROP, 0, attempt)
        *_, quarter = draws.quarters(Purpose.RESIZED_CROP, 0, attempt)
        area = width * height * (smallest + (1 - smallest) * half / 2**32)
        ratio = log_uniform(quantile(quarter), 3 / 4, 4 / 3)
        w, h = round(sqrt(area * ratio)), round(sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            upper, lower = draws.halves(Purpose.RESIZED_CROP, 1)
            return below(width - w + 1, lower), below(height - h + 1, upper), w, h
    h, w = min(height, round(width * 4 / 3)), min(width, round(height * 4 / 3))
    return (width - w) // 2, (height - h) // 2, w, h


def resized_crop(image, draws, smallest=0.08):
    left, top, width, height = box(image.size, draws, smallest)
    cropped = image.crop((left, top, left + width, top + height))
    return cropped.resize(image.size, Image.Resampling.BICUBIC)


def jitter(image, draws, *, kind, strength):
    enhancer, purpose = {
        "brightness": (ImageEnhance.Brightness, Purpose.BRIGHTNESS),
        "contrast": (ImageEnhance.Contrast, Purpose.CONTRAST),
        "saturation": (ImageEnhance.Color, Purpose.SATURATION),
    }[kind]
    low = max(0.0, 1 - strength)
    return enhancer(image).enhance(low + (1 + strength - low) * draws.halves(purpose)[0] / 2**32)


COLOUR_OPS = 10
"""Operations of RandAugment with a smaller number than this are exact; the others interpolate."""


def rand_choice(draws, layer):
    """Return the operation of a layer, or None."""
    chance, op, *_ = draws.quarters(Purpose.RAND, layer)
    return None if chance >= 0.5 * 2**16 else op * 15 >> 16


def rand_layer(image, draws, layer, *, magnitude=9.0, spread=0.5, increasing=True, fill):
    op = rand_choice(draws, layer)
    if op is None:
        return image
    *_, strength, side = draws.quarters(Purpose.RAND, layer)
    scattered = magnitude + spread * NormalDist().inv_cdf(quantile(strength))
    level = min(10.0, max(0.0, scattered)) / 10
    sign = -1 if side >= 2**15 else 1
    factor = max(0.1, 1 + sign * 0.9 * level) if increasing else 1.8 * level + 0.1
    operations = {
        0: lambda: ImageOps.autocontrast(image),
        1: lambda: ImageOps.equalize(image),
        2: lambda: ImageOps.invert(image),
        3: lambda: ImageOps.posterize(image, max(1, 4 - int(4 * level) if increasing else int(4 * level))),
        4: lambda: ImageOps.solarize(image, 256 - int(256 * level) if increasing else int(256 * level)),
        5: lambda: (
            image.point([min(255, i + min(128, int(110 * level))) if i < 128 else i for i in range(256)] * 3)
            if image.mode == "RGB"
            else image.point([min(255, i + min(128, int(110 * level))) if i < 128 else i for i in range(256)])
        ),
        6: lambda: ImageEnhance.Contrast(image).enhance(factor),
        7: lambda: ImageEnhance.Brightness(image).enhance(factor),
        8: lambda: ImageEnhance.Color(image).enhance(factor),
        9: lambda: ImageEnhance.Sharpness(image).enhance(factor),
        10: lambda: affine(image, (1, 0.3 * level * sign, 0, 0, 1, 0), fill),
        11: lambda: affine(image, (1, 0, 0, 0.3 * level * sign, 1, 0), fill),
        12: lambda: affine(image, (1, 0, 0.45 * level * sign * image.width, 0, 1, 0), fill),
        13: lambda: affine(image, (1, 0, 0, 0, 1, 0.45 * level * sign * image.height), fill),
        14: lambda: image.rotate(30 * level * sign, resample=Image.Resampling.BICUBIC, fillcolor=fill),
    }
    return operations[op]()


def affine(image, matrix, fill):
    return image.transform(
        image.size, Image.Transform.AFFINE, matrix, resample=Image.Resampling.BICUBIC, fillcolor=fill
    )


def normalised(planes_, mean, std):
    result = np.empty(planes_.shape, np.float32)
    for plane, (m, s) in enumerate(zip(mean, std, strict=True)):
        centre = np.float32(m) * np.float32(255)
        scale = np.float32(1) / (np.float32(s) * np.float32(255))
        for y in range(planes_.shape[1]):
            for x in range(planes_.shape[2]):
                result[plane, y, x] = (np.float32(planes_[plane, y, x]) - centre) * scale
    return result


def erase(values, draws, chance):
    channels, height, width = values.shape
    if draws.halves(Purpose.ERASE, 0)[0] / 2**32 >= chance:
        return values
    result = values.copy()
    for attempt in range(10):
        half, *_ = draws.halves(Purpose.ERASE, 2, attempt)
        *_, quarter = draws.quarters(Purpose.ERASE, 2, attempt)
        area = (0.02 + (1 / 3 - 0.02) * half / 2**32) * height * width
        aspect = log_uniform(quantile(quarter), 0.3, 1 / 0.3)
        h, w = round(sqrt(area * aspect)), round(sqrt(area / aspect))
        if 0 < h < height and w < width:
            break
    else:
        return result
    upper, lower = draws.halves(Purpose.ERASE, 1)
    top, left = below(height - h + 1, upper), below(width - w + 1, lower)
    key = draws.bits(Purpose.ERASE_NOISE)
    for y in range(top, top + h):
        for x in range(left, left + w):
            bits = mix_after_zero(key + y * width + x)
            for plane in range(channels):
                index = (bits >> (12 * plane)) & (TABLE - 1)
                result[plane, y, x] = NormalDist().inv_cdf((index + 0.5) / TABLE)
    return result


def mix_after_zero(value):
    """Return what `mix_each` gives for this id under key 0: one round of the hash."""
    return mix(value % 2**64)


def cutout(values, draws, size):
    _, height, width = values.shape
    upper, lower = draws.halves(Purpose.CUTOUT)
    top, left = below(height, upper) - size // 2, below(width, lower) - size // 2
    result = values.copy()
    for y in range(max(0, top), min(height, top + size)):
        for x in range(max(0, left), min(width, left + size)):
            result[:, y, x] = 0
    return result


def partner(draws, pool):
    return below(pool, draws.halves(Purpose.MIX, 0)[0])


def mixup(values, other, draws, alpha):
    """Return the blend and the share of the first image."""
    share = np.float32(beta_table(alpha)[draws.quarters(Purpose.MIX, 0)[2] >> 4])
    return values * share + other * (np.float32(1) - share), share


def cutmix(values, other, draws, alpha):
    _, height, width = values.shape
    extent = sqrt(1 - beta_table(alpha)[draws.quarters(Purpose.MIX, 0)[2] >> 4])
    h, w = int(extent * height), int(extent * width)
    upper, lower = draws.halves(Purpose.MIX, 1)
    top, left = below(height, upper) - h // 2, below(width, lower) - w // 2
    result, taken = values.copy(), 0
    for y in range(max(0, top), min(height, top + h)):
        for x in range(max(0, left), min(width, left + w)):
            result[:, y, x] = other[:, y, x]
            taken += 1
    return result, np.float32(1 - taken / (height * width))
