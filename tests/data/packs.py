"""A folder of images as a source of packs."""

from paceline.data.augment.pipeline import Augmentation
from paceline.data.augment.policy import parse_policy
from paceline.data.pack_writer import PackOptions
from paceline.data.sources.image_folder import ImageOptions, open_image_folder

JPEG = PackOptions(size=None)
POLICY = Augmentation(policy=parse_policy("resized-crop,flip,erase0.25"), seed=2)


def silent(*_):
    pass


def open_source(root, size=32, **options):
    return open_image_folder(root, ImageOptions(size=size, **options), POLICY)
