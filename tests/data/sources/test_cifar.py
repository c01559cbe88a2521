"""CIFAR in all its forms, and what is said about damaged copies. The sets here are small fakes of the same layout."""

import io
import pickle
import tarfile
from dataclasses import replace

import numpy as np
import pytest

from paceline.core.errors import DataError
from paceline.data.source_files import md5_of
from paceline.data.sources.cifar import CIFAR10, CIFAR100, open_cifar, open_cifar10

TEN = replace(CIFAR10, num_train=10, num_test=2, contents={})
HUNDRED = replace(CIFAR100, num_train=4, num_test=2, contents={})
NAMES = [f"thing{index}" for index in range(10)]


def some_arrays(seed, num=2, classes=10):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (num, 3072), dtype=np.uint8), rng.integers(0, classes, num)


TRAIN = [some_arrays(seed) for seed in range(5)]
TEST = some_arrays(9)


def write_python(folder):
    folder.mkdir(parents=True)
    for name, (pixels, labels) in zip(
        [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"], [*TRAIN, TEST], strict=True
    ):
        content = {b"data": pixels, b"labels": labels.tolist(), b"batch_label": b"x"}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": [name.encode() for name in NAMES]}, protocol=2))
    return folder


def write_binary(folder):
    folder.mkdir(parents=True)
    for name, (pixels, labels) in zip(
        [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"], [*TRAIN, TEST], strict=True
    ):
        rows = np.concatenate([labels[:, None].astype(np.uint8), pixels], axis=1)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(NAMES) + "\n\n")
    return folder


def pack(folder, archive):
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, folder.name)
    return archive


def assert_is_ten(data):
    pixels = np.concatenate([pixels for pixels, _ in TRAIN])
    assert data.classes == tuple(NAMES)
    assert data.train.labels.tolist() == [label for _, labels in TRAIN for label in labels]
    assert np.array_equal(data.train.images.numpy(), pixels.reshape(-1, 3, 32, 32))
    assert np.array_equal(data.test.images.numpy(), TEST[0].reshape(-1, 3, 32, 32))


@pytest.mark.parametrize("subfolder", ["", "cifar10"])
@pytest.mark.parametrize(
    ("write", "name"), [(write_python, "cifar-10-batches-py"), (write_binary, "cifar-10-batches-bin")]
)
def test_both_versions_are_read_from_the_data_folder_and_from_a_subfolder(tmp_path, write, name, subfolder):
    write(tmp_path / subfolder / name)
    assert_is_ten(open_cifar(TEN, tmp_path, None))


@pytest.mark.parametrize(
    ("write", "name", "archive"),
    [
        (write_python, "cifar-10-batches-py", "cifar-10-python.tar.gz"),
        (write_binary, "cifar-10-batches-bin", "cifar-10-binary.tar.gz"),
    ],
)
def test_archives_are_read_without_unpacking_once_their_md5_is_right(tmp_path, write, name, archive):
    path = pack(write(tmp_path / "made" / name), tmp_path / archive)
    with pytest.raises(DataError, match=rf"{archive} is damaged or another file: its md5 is .*, expected"):
        open_cifar(TEN, tmp_path, None)
    md5 = md5_of(path)
    known = replace(TEN, remotes=tuple(replace(r, md5=md5) for r in (*TEN.remotes, *TEN.alternatives)))
    assert_is_ten(open_cifar(known, tmp_path, None))


def test_cifar100_uses_its_fine_labels_in_both_versions(tmp_path):
    pixels, fine = some_arrays(1, 4, 100)
    coarse = fine // 5
    names = [f"fine{index}" for index in range(100)]
    python, binary = tmp_path / "a" / "cifar-100-python", tmp_path / "b" / "cifar-100-binary"
    for folder in (python, binary):
        folder.mkdir(parents=True)
    for name, num in (("train", 4), ("test", 2)):
        content = {b"data": pixels[:num], b"fine_labels": fine[:num].tolist(), b"coarse_labels": coarse[:num].tolist()}
        (python / name).write_bytes(pickle.dumps(content, protocol=2))
        rows = np.concatenate([coarse[:num, None], fine[:num, None], pixels[:num]], axis=1).astype(np.uint8)
        (binary / f"{name}.bin").write_bytes(rows.tobytes())
    (python / "meta").write_bytes(pickle.dumps({b"fine_label_names": names}, protocol=2))
    (binary / "fine_label_names.txt").write_text("\n".join(names))
    one, other = (open_cifar(HUNDRED, tmp_path / folder, None) for folder in "ab")
    assert one.classes == other.classes == tuple(names)
    for data in (one, other):
        assert data.train.labels.tolist() == fine.tolist()  # pyright: ignore[reportAttributeAccessIssue]


def test_a_missing_set_says_how_to_fetch_it_and_what_to_put_where_offline(tmp_path):
    with pytest.raises(DataError, match="cifar10 is not in") as caught:
        open_cifar10(tmp_path)
    hint = caught.value.hint or ""
    assert f"paceline data fetch cifar10 --data-dir {tmp_path}" in hint
    assert "cifar-10-python.tar.gz (md5 c58f30108f718f92721af3b95e74349a)" in hint
    assert str(tmp_path / "cifar10") in hint


def test_a_file_cut_short_is_named(tmp_path):
    folder = write_binary(tmp_path / "cifar-10-batches-bin")
    path = folder / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"data_batch_3.bin is damaged: it has 6,046 bytes, which is not a multiple"):
        open_cifar(TEN, tmp_path, None)


def test_whole_records_that_are_missing_are_noticed(tmp_path):
    folder = write_binary(tmp_path / "cifar-10-batches-bin")
    path = folder / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:3073])
    with pytest.raises(DataError, match="has 9 training images, cifar10 has 10"):
        open_cifar(TEN, tmp_path, None)


def test_a_missing_file_of_an_unpacked_folder_is_named(tmp_path):
    (write_python(tmp_path / "cifar-10-batches-py") / "data_batch_2").unlink()
    with pytest.raises(DataError, match="data_batch_2 cannot be read"):
        open_cifar(TEN, tmp_path, None)


def test_a_flipped_bit_in_an_unpacked_file_is_noticed(tmp_path):
    folder = write_binary(tmp_path / "cifar-10-batches-bin")
    known = replace(TEN, contents={"test_batch.bin": md5_of(folder / "test_batch.bin")})
    assert_is_ten(open_cifar(known, tmp_path, None))
    content = bytearray((folder / "test_batch.bin").read_bytes())
    content[1000] ^= 4
    (folder / "test_batch.bin").write_bytes(content)
    with pytest.raises(DataError, match=r"test_batch.bin is damaged or another file"):
        open_cifar(known, tmp_path, None)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({b"data": np.zeros((3, 3072), np.uint8), b"labels": [1, 2]}, "3 images and 2 labels"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 10]}, "between 0 and 9"),
        ({b"data": np.zeros((2, 3072), np.uint8)}, "KeyError: 'labels'"),
        ({b"data": np.zeros((2, 17), np.uint8), b"labels": [1, 2]}, "reshape"),
        ([1, 2, 3], "it holds a list"),
    ],
)
def test_wrong_content_of_a_batch_is_named(tmp_path, content, says):
    folder = write_python(tmp_path / "cifar-10-batches-py")
    (folder / "data_batch_4").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(DataError, match=says) as caught:
        open_cifar(TEN, tmp_path, None)
    assert "data_batch_4 is damaged" in caught.value.message


class Bomb:
    def __reduce__(self):
        return (print, ("a pickle ran code",))


def test_a_pickle_that_wants_to_run_code_is_refused(tmp_path, capsys):
    folder = write_python(tmp_path / "cifar-10-batches-py")
    (folder / "data_batch_1").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DataError, match=r"it would run builtins.print"):
        open_cifar(TEN, tmp_path, None)
    assert capsys.readouterr().out == ""


def test_an_archive_that_ends_early_is_named(tmp_path):
    path = pack(write_python(tmp_path / "made" / "cifar-10-batches-py"), tmp_path / "cifar-10-python.tar.gz")
    path.write_bytes(path.read_bytes()[:-2000])
    known = replace(TEN, remotes=(replace(TEN.remotes[0], md5=None),))
    with pytest.raises(DataError, match="is damaged"):
        open_cifar(known, tmp_path, None)


def test_pickles_of_newer_pythons_are_read_too(tmp_path):
    folder = write_python(tmp_path / "cifar-10-batches-py")
    pixels, labels = TEST
    buffer = io.BytesIO()
    pickle.dump({"data": pixels, "labels": labels.tolist()}, buffer, protocol=4)
    (folder / "test_batch").write_bytes(buffer.getvalue())
    assert_is_ten(open_cifar(TEN, tmp_path, None))
