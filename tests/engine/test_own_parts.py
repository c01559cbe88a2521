"""Optimizer, schedule and augmentation of the user's own: what they get, and what is refused."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import paceline
from paceline.core.errors import ConfigError, DataError, RunError
from paceline.data.augment.policy import parse_policy
from paceline.data.catalog import open_data
from paceline.engine.job import build_job
from paceline.records.code import refuse_code_inside
from paceline.records.folder import RunFolder
from tests.states import differences, final_state

OWN = """
import random
import numpy as np
import torch
from torch.utils.data import TensorDataset

CALLS = []


def momentum(params, lr):
    return torch.optim.SGD(params, lr, momentum=0.8, weight_decay=0.1)


def nesterov(params, lr, weight_decay):
    return torch.optim.SGD(params, lr, momentum=0.9, nesterov=True, foreach=True, weight_decay=weight_decay)


def slower_bias(model, lr):
    biases = [value for name, value in model.named_parameters() if name.endswith("bias")]
    others = [value for name, value in model.named_parameters() if not name.endswith("bias")]
    return torch.optim.SGD([{"params": others}, {"params": biases, "lr": lr / 4}], lr)


class Counting(torch.optim.SGD):
    '''Keeps how many steps it has taken in a group, and a tensor there: its steps become smaller.'''

    def __init__(self, params, lr):
        super().__init__(params, lr)
        for group in self.param_groups:
            group["taken"], group["total"] = 0, torch.zeros(())

    def step(self, closure=None):
        for group in self.param_groups:
            group["taken"] += 1
            group["total"] += 1.0
            group["lr"] /= group["taken"] + group["total"].item()
        return super().step(closure)


def nothing(params, lr):
    torch.optim.SGD(params, lr)


def a_class(params, lr):
    return torch.optim.SGD


def no_rate(params):
    return torch.optim.SGD(params, 0.1)


def half(model, lr):
    return torch.optim.SGD(list(model.parameters())[:2], lr)


def foreign(params, lr):
    return torch.optim.SGD([*params, {"params": [torch.nn.Parameter(torch.ones(2))]}], lr)


def raises(params, lr):
    return 1 / 0


def factor(step, total_steps):
    return 1 - step / total_steps


def halving(step):
    return 0.5**step


def negative(step):
    return 1.0 - step


def text(step):
    return "much"


def failing(step):
    return [1.0][step]


def invert(image):
    CALLS.append(image.shape)
    return 255 - image


def noisy(image):
    noise = torch.randint(-20, 20, image.shape) + random.randrange(9) + np.random.randint(9)
    return (image.int() + noise).clamp(0, 255).byte()


STREAM = np.random.default_rng(0)


def unseeded(image):
    return image * int(STREAM.integers(2))


def floats(image):
    return image / 255


def smaller(image):
    return image[:, 1:]


def forgets(image):
    image.mul_(2)


def shift(sample):
    inputs, target = sample
    return inputs + torch.rand(()), target


def images():
    torch.manual_seed(0)
    return TensorDataset(torch.randn(60, 1, 8, 8), torch.arange(60) % 3)


three = 3
"""


@pytest.fixture
def own(tmp_path, small_config):
    path = tmp_path / "own.py"
    path.write_text(OWN)

    def config(**settings):
        named = {key: f"{path}:{value[1:]}" if str(value).startswith("@") else value for key, value in settings.items()}
        return small_config(**({"model": "mlp", "epochs": 1, "steps": 4} | named))

    return config


def test_an_own_optimizer_keeps_the_values_that_it_sets_itself(own, alone):
    optimizer = build_job(own(optimizer="@momentum", lr=0.3), alone).optimizer
    assert {(group["lr"], group["momentum"], group["weight_decay"]) for group in optimizer.param_groups} == {
        (0.3, 0.8, 0.1)
    }


def test_a_class_of_a_package_is_an_optimizer_and_gets_the_settings_that_it_takes(own, alone):
    job = build_job(own(optimizer="torch.optim:RMSprop", weight_decay=0.01, no_decay_norm=True), alone)
    assert type(job.optimizer) is torch.optim.RMSprop
    assert {group["weight_decay"] for group in job.optimizer.param_groups} == {0.01, 0.0}
    assert job.config.base_lr == 0.001


def test_sgd_by_its_own_name_trains_like_ours(own):
    results = [
        paceline.train(own(optimizer=name, momentum=0.9, weight_decay=0.0, lr=0.1, exact="bitwise"))
        for name in ("sgd", "@nesterov")
    ]
    one, other = (final_state(Path(result.folder)) for result in results)
    assert differences(one["model"], other["model"]) == []


def test_the_schedule_scales_the_learning_rate_of_each_own_group_alike(own, alone):
    job = build_job(own(optimizer="@slower_bias", lr=0.4), alone)
    assert [group["lr_factor"] for group in job.optimizer.param_groups] == [1.0, 0.25]


def test_an_own_optimizer_resumes_exactly_with_the_state_in_its_groups(own):
    settings = {"optimizer": "@Counting", "schedule": "@halving", "augment": "@noisy", "steps": None}
    whole = paceline.train(own(**settings, epochs=2, name="whole"))
    half = paceline.train(own(**settings, epochs=1, name="half"))
    resumed = paceline.train(own(**settings, epochs=2, name="half"), resume=half.folder)
    one, other = final_state(Path(whole.folder)), final_state(Path(resumed.folder))
    assert differences(one["model"], other["model"]) == []
    assert differences(one["optimizer_groups"], other["optimizer_groups"]) == []
    assert one["optimizer_groups"][0]["taken"] == one["optimizer_groups"][0]["total"].item() > 2


@pytest.mark.parametrize(
    ("settings", "says", "hint"),
    [
        ({"optimizer": "@nothing"}, "own.py:nothing returned None, not a torch.optim.Optimizer", "return torch.optim"),
        ({"optimizer": "@a_class"}, "own.py:a_class returned the class SGD, not a torch.optim.Opt", "def build"),
        ({"optimizer": "@no_rate"}, "own.py:no_rate takes no argument lr", "def build(params, lr)"),
        ({"optimizer": "@half"}, r"own.py:half leaves out .* and \d+ other parameters", "--freeze"),
        ({"optimizer": "@foreign"}, "own.py:foreign has parameters that are not trainable", "give it params"),
        ({"optimizer": "@raises"}, "own.py:raises raised ZeroDivisionError", "own.py, line"),
        ({"optimizer": "@momentun"}, "own.py has no function or class momentun", "did you mean momentum?"),
        ({"optimizer": "torch.optim:LBFGS"}, "LBFGS, computes the loss again in step", "needs no argument"),
        ({"optimizer": "no_such.module:Sgd"}, "there is no module no_such.module", "looked in"),
        ({"optimizer": "torch.optim:Sdg"}, "torch.optim has no function or class Sdg", "did you mean SGD?"),
        ({"optimizer": "@momentum", "weight_decay": 0.3}, "--weight-decay 0.3 has no effect", "add the argument"),
        ({"optimizer": "@slower_bias", "lr_for": ("*=2",)}, "--lr-for has no effect", "params"),
        ({"schedule": "@negative"}, "own.py:negative returned -2.0 at step 3", "at least 0"),
        ({"schedule": "@text"}, "own.py:text returned much at step 0", "a number"),
        ({"schedule": "@failing"}, "own.py:failing raised IndexError at step 3", r"failing(step)"),
        ({"schedule": "@three"}, "own.py has no function or class three", "known"),
    ],
)
def test_a_wrong_part_is_refused_at_the_start(own, alone, settings, says, hint):
    with pytest.raises(ConfigError, match=says) as caught:
        build_job(own(**settings), alone)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"optimizer": "sdg"}, "--optimizer is sdg, which is not known"),
        ({"schedule": "cosin"}, "--schedule is cosin, which is not known"),
        ({"optimizer": "my.py:build", "momentum": 0.5}, "--momentum is 0.5, but the optimizer is my.py:build"),
    ],
)
def test_a_wrong_name_is_refused_with_the_nearest(own, settings, says):
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        own(**settings)
    assert caught.value.hint is not None


@pytest.mark.parametrize(("name", "rates"), [("@factor", [0.8, 0.6, 0.4, 0.2]), ("@halving", [0.8, 0.4, 0.2, 0.1])])
def test_an_own_schedule_is_a_factor_of_each_step(own, alone, name, rates):
    plan = build_job(own(schedule=name, lr=0.8), alone).lr_plan
    assert [plan.at(step) for step in range(4)] == pytest.approx(rates)
    assert str(plan).endswith(f"own.py:{name[1:]}")


def test_an_own_step_changes_training_images_only_the_same_in_every_batch(own):
    plain, changed = open_data(own()), open_data(own(augment="@invert"))
    ids = np.arange(6)
    assert torch.equal(plain.train.fetch(ids, None).images, changed.train.fetch(ids, None).images)
    assert not torch.equal(plain.train.fetch(ids, 0).images, changed.train.fetch(ids, 0).images)
    noisy = open_data(own(augment="@noisy")).train
    together, alone = noisy.fetch(ids, 1).images, [noisy.fetch(ids[i : i + 1], 1).images[0] for i in reversed(range(6))]
    assert torch.equal(together, torch.stack(alone[::-1]))
    assert not torch.equal(together, noisy.fetch(ids, 2).images), "every epoch draws other numbers"


def test_own_steps_stand_beside_ours_in_the_order_of_the_list(own):
    steps = parse_policy(f"crop1,{own(augment='@invert').augment},flip").pixel_steps
    assert [type(step).__name__ for step in steps] == ["Crop", "UserStep", "Flip"]


@pytest.mark.parametrize("data", ["shape-centers", "@images"])
def test_an_own_step_gets_the_whole_sample_of_other_data(own, data):
    plain, changed = open_data(own(data=data)), open_data(own(data=data, augment="@shift"))
    ids = np.arange(4)
    inputs, again = plain.train.fetch(ids, 0), changed.train.fetch(ids, 0)
    moved = (again[0] - inputs[0]).flatten(1)
    assert torch.equal(inputs[1], again[1])
    assert (moved.max(1).values - moved.min(1).values < 1e-5).all()
    assert len(moved[:, 0].unique()) == 4, "each sample draws its own number"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"augment": "@floats"}, "own.py:floats returned a float32 tensor of 1×8×8 for an image of 1×8×8"),
        ({"augment": "@smaller"}, "own.py:smaller returned a uint8 tensor of 1×7×8 for an image of 1×8×8"),
        ({"augment": "@forgets"}, "own.py:forgets returned None"),
        ({"augment": "@shift"}, "own.py:shift raised ValueError"),
        ({"augment": "@unseeded", "exact": "bitwise"}, "own.py:unseeded has its own randomness"),
        ({"augment": "crop2", "data": "@images"}, "these steps do not fit the samples of"),
        ({"augment": "crop2", "data": "shapes"}, "these steps do not fit the samples of shapes"),
    ],
)
def test_a_wrong_step_is_refused(own, alone, settings, says):
    with pytest.raises((DataError, ConfigError), match=re.escape(says)) as caught:
        build_job(own(**settings), alone)
    assert caught.value.hint is not None


def test_the_code_of_every_own_part_is_kept_in_the_run_folder(own):
    result = paceline.train(own(optimizer="@momentum", schedule="@factor", augment="@invert", steps=1))
    assert [path.name.startswith("own") for path in (Path(result.folder) / "code").iterdir()] == [True]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a package in the working directory, which is not on Python's path."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "parts_of_mine" / "inner"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    (folder / "__init__.py").write_text("from .steps import factor")
    (folder / "steps.py").write_text("def factor(step):\n    return 0.5")
    path = list(sys.path)
    yield folder
    sys.path[:] = path
    for name in [name for name in sys.modules if name.partition(".")[0] == "parts_of_mine"]:
        del sys.modules[name]


def test_a_part_in_a_package_of_the_working_directory_is_found_and_kept(package, small_config):
    result = paceline.train(small_config(model="mlp", steps=1, schedule="parts_of_mine.inner:factor"))
    kept = sorted(path.name for path in (Path(result.folder) / "code").iterdir())
    assert len(kept) == 3
    assert any("steps" in name for name in kept)


def test_a_module_inside_a_run_folder_needs_trust(package, small_config):
    config = small_config(schedule="parts_of_mine.inner:factor")
    refuse_code_inside(RunFolder(package / "elsewhere"), config)
    with pytest.raises(RunError, match="name code inside the folder itself"):
        refuse_code_inside(RunFolder(package.parent.parent), config)
    with pytest.raises(RunError, match="name code inside the folder itself"):
        refuse_code_inside(RunFolder(package.parent), small_config(augment=f"crop1,{package / 'steps.py'}:factor"))
