"""CINIC-10: CIFAR-10's classes with 270,000 images, in folders train, valid and test."""

from pathlib import Path

from paceline.core.errors import DataError
from paceline.core.units import count
from paceline.data.augment.pipeline import Augmentation
from paceline.data.on_demand import BadImages
from paceline.data.sources.image_folder import ImageOptions, as_data_set, list_images, require_same_classes
from paceline.data.sources.published import PublishedSet, Remote, first_existing
from paceline.data.split import DataSet

CINIC10 = PublishedSet(
    name="cinic10",
    title="CINIC-10: CIFAR-10 extended with images from ImageNet",
    num_train=90_000,
    num_test=90_000,
    num_classes=10,
    image="32×32×3",
    download_bytes=687_544_992,
    remotes=(
        Remote(
            file="CINIC-10.tar.gz",
            md5="6ee4d0c996905fe93221de577967a372",
            url="https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
            unpacks_to=".",
        ),
    ),
    folders=("CINIC-10",),
    page="https://datashare.ed.ac.uk/handle/10283/3192",
)
MEAN, STD = (0.4789, 0.4723, 0.4305), (0.2421, 0.2383, 0.2587)


def open_cinic10(data_dir: Path, augmentation: Augmentation | None = None, bad_images: BadImages = "fail") -> DataSet:
    """Open CINIC-10's train and test folders; its valid folder is not used."""
    root = find_cinic10(data_dir)
    if root is None:
        raise CINIC10.missing(data_dir)
    train, test = list_images(root / "train"), list_images(root / "test")
    require_same_classes(train, test)
    for listing, expected in ((train, CINIC10.num_train), (test, CINIC10.num_test)):
        if len(listing.names) != expected:
            raise DataError(
                f"{listing.root} has {count(len(listing.names))} images, cinic10 has {count(expected)} there",
                hint=f"unpack CINIC-10.tar.gz into {CINIC10.home(data_dir)} again",
            )
    return as_data_set(train, test, ImageOptions(size=32, mean=MEAN, std=STD, bad_images=bad_images), augmentation)


def find_cinic10(data_dir: Path) -> Path | None:
    """Return the folder that has train and test, or None."""
    folders = [path for folder in CINIC10.search_folders(data_dir) for path in (folder / "CINIC-10", folder)]
    train = first_existing(folder / "train" / "airplane" for folder in folders)
    return None if train is None else train.parent.parent
