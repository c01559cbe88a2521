"""The file of a benchmark keeps the keys of earlier versions, and reads back as it was written."""

import json
from dataclasses import replace

import pytest

from paceline.bench.bench_folder import BenchFolder, read_bench, write_bench
from paceline.bench.bench_text import bench_values
from paceline.core.errors import RunError
from tests.bench.sample_bench import make_bench

BENCH = make_bench({0: [100, 98, 102, 101, 99], 1: [180, 176, 184, 182, 178]}, devices=[1, 2])


def test_a_benchmark_is_read_back_as_it_was_written(tmp_path):
    write_bench(BenchFolder(tmp_path), BENCH)
    assert read_bench(BenchFolder(tmp_path)) == BENCH


def test_the_file_and_the_json_output_name_variants_and_measurements(tmp_path):
    write_bench(BenchFolder(tmp_path), BENCH)
    values = json.loads(BenchFolder(tmp_path).results.read_text())
    assert [variant["mode"] for variant in values["variants"]] == [one.mode for one in BENCH.variants]
    assert [one["variant"] for one in values["measurements"]] == [one.variant for one in BENCH.measurements]
    (group,) = bench_values(BENCH, tmp_path)["groups"]
    assert [result["variant"]["per_node"] for result in group["results"]] == [1, 2]


def test_a_file_of_an_earlier_version_is_the_same_benchmark(tmp_path):
    """It counts images, and has contenders and samples."""
    bench = replace(BENCH, environment={"train_samples": 1280})
    write_bench(BenchFolder(tmp_path), bench)
    file = BenchFolder(tmp_path).results
    text = file.read_text()
    for key in ("samples_per_s", "test_samples", "train_samples"):
        assert f'"{key}"' in text
        text = text.replace(f'"{key}"', f'"{key.replace("samples", "images")}"')
    for key, old in {"measurements": "samples", "variants": "contenders", "variant": "contender"}.items():
        assert f'"{key}"' in text
        text = text.replace(f'"{key}"', f'"{old}"')
    file.write_text(text)
    assert read_bench(BenchFolder(tmp_path)) == bench


@pytest.mark.parametrize("text", ["{}", "[]", "{"])
def test_a_damaged_file_is_refused_with_what_to_do(tmp_path, text):
    BenchFolder(tmp_path).results.write_text(text)
    with pytest.raises(RunError, match="cannot be read") as problem:
        read_bench(BenchFolder(tmp_path))
    assert problem.value.hint == "run paceline bench again"
