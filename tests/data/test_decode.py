"""Decoding: every kind of image becomes RGB, smaller where that is enough, the same with either decoder."""

from importlib.util import find_spec

import numpy as np
import pytest
from PIL import Image

from paceline.data import decode as module
from paceline.data.decode import BadImageError, decode, image_size, shrink_factor
from tests.data.pictures import encoded, picture

PLAIN = picture(60, 80)


@pytest.fixture(params=["Pillow", "simplejpeg"])
def decoder(request, monkeypatch):
    """Run a test with each decoder that is there."""
    if request.param == "Pillow":
        monkeypatch.setattr(module, "_simplejpeg", lambda: None)
    elif find_spec("simplejpeg") is None:
        pytest.skip("simplejpeg is not installed")
    return request.param


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_each_format_gives_its_pixels_and_size(decoder, form):
    data = encoded(PLAIN, form)
    assert image_size(data) == (60, 80)
    pixels = decode(data)
    assert pixels.shape == (60, 80, 3)
    assert pixels.dtype == np.uint8
    assert np.abs(pixels.astype(int) - np.asarray(PLAIN)).mean() < 8


@pytest.mark.parametrize(("form", "mode"), [("JPEG", "L"), ("PNG", "L"), ("PNG", "1"), ("PNG", "LA"), ("PNG", "I;16")])
def test_grey_images_become_three_equal_planes(decoder, form, mode):
    grey = PLAIN.convert("L")
    image = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257) if mode == "I;16" else grey.convert(mode)
    pixels = decode(encoded(image, form))
    assert pixels.shape == (60, 80, 3)
    assert np.array_equal(pixels[..., 0], pixels[..., 2])
    if mode in ("L", "LA", "I;16"):
        assert np.abs(pixels[..., 0].astype(int) - np.asarray(grey)).mean() < 4


def test_palette_and_transparency_become_rgb(decoder):
    palette = decode(encoded(PLAIN.convert("P", palette=Image.Palette.ADAPTIVE), "PNG"))
    assert np.abs(palette.astype(int) - np.asarray(PLAIN)).mean() < 12
    clear = PLAIN.convert("RGBA")
    clear.putalpha(0)
    assert decode(encoded(clear, "PNG")).max() == 0


def test_cmyk_becomes_rgb_with_the_same_colours(decoder):
    pixels = decode(encoded(PLAIN.convert("CMYK"), "JPEG", quality=95))
    assert np.abs(pixels.astype(int) - np.asarray(PLAIN)).mean() < 12


@pytest.mark.parametrize(
    ("at_least", "shape"), [(None, (60, 80, 3)), ((30, 40), (30, 40, 3)), ((31, 40), (60, 80, 3)), ((7, 9), (8, 10, 3))]
)
def test_a_large_jpeg_is_decoded_no_larger_than_needed(decoder, at_least, shape):
    assert decode(encoded(PLAIN), at_least=at_least).shape == shape


@pytest.mark.skipif(find_spec("simplejpeg") is None, reason="simplejpeg is not installed")
@pytest.mark.parametrize("size", [(61, 83), (500, 375), (33, 17), (9, 15)])
@pytest.mark.parametrize("at_least", [None, (4, 4), (30, 17), (120, 90)])
def test_both_decoders_give_the_same_pixels(monkeypatch, size, at_least):
    data = encoded(picture(*size), quality=85)
    fast = decode(data, at_least=at_least)
    monkeypatch.setattr(module, "_simplejpeg", lambda: None)
    assert np.array_equal(fast, decode(data, at_least=at_least))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not an image",
        encoded(PLAIN)[:300],
        encoded(PLAIN, "PNG")[:-200],
        b"\xff\xd8\xff\xe0",
        encoded(PLAIN)[:-400],
    ],
)
def test_bytes_that_are_no_whole_image_are_refused(decoder, data):
    with pytest.raises(BadImageError):
        decode(data)


def test_the_scale_is_the_largest_that_stays_large_enough():
    assert shrink_factor((800, 600), (100, 75)) == 8
    assert shrink_factor((800, 600), (101, 75)) == 4
    assert shrink_factor((20, 20), (224, 224)) == 1
    assert shrink_factor((20, 20), None) == 1
