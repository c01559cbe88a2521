"""How busy the machine is: sampled at most once a second."""

import torch

from paceline.engine import utilisation
from paceline.engine.utilisation import UtilisationSampler

CPU = torch.device("cpu")


def test_a_process_without_a_gpu_reports_cpu_and_memory():
    sample = UtilisationSampler(CPU).sample()
    assert set(sample) == {"cpu_percent", "memory_gb"}
    assert 0.01 < sample["memory_gb"] < 1000, "gigabytes, not bytes"


def test_samples_that_follow_closely_are_the_same(monkeypatch):
    monkeypatch.setattr(utilisation, "SECONDS_BETWEEN_SAMPLES", 3600.0)
    sampler = UtilisationSampler(CPU)
    first = sampler.sample()
    held = torch.ones(20_000_000)  # 80 MB
    assert sampler.sample() is first
    assert held.sum() > 0


def test_a_later_sample_is_a_new_one(monkeypatch):
    monkeypatch.setattr(utilisation, "SECONDS_BETWEEN_SAMPLES", 0.0)
    sampler = UtilisationSampler(CPU)
    first = sampler.sample()
    held = torch.ones(20_000_000)
    assert sampler.sample()["memory_gb"] > first["memory_gb"] + 0.04
    assert held.sum() > 0
