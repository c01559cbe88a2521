"""DataParallel over threads: the semantics of nn.DataParallel, and the same bits every time."""

import copy
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional

from paceline.core.errors import ModelError
from paceline.models.zoo import build_model
from paceline.parallel.threads import ThreadedParallel


class Watched(nn.Module):
    """Notes the threads that it runs in; `meet` makes every replica wait for the others, forward and backward."""

    def __init__(self, inner, num_replicas=1):
        super().__init__()
        self.inner = inner
        self.notes = Notes(num_replicas)

    def forward(self, images):
        output = self.inner(images)
        self.notes.meet("forward")
        if output.requires_grad:
            output.register_hook(lambda _: self.notes.meet("backward"))
        return output


class Notes:
    """Shared by all replicas: a deep copy is the same object."""

    def __init__(self, num_replicas):
        self.barrier = threading.Barrier(num_replicas, timeout=30)
        self.threads = []

    def __deepcopy__(self, _):
        return self

    def meet(self, phase):
        self.barrier.wait()
        self.threads.append((phase, threading.current_thread().name, torch.get_num_threads()))


def plain_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GELU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 5))


def norm_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5))


def batch(number=13):
    generator = torch.Generator().manual_seed(2)
    return torch.randn(number, 3, 8, 8, generator=generator), torch.randint(5, (number,), generator=generator)


def gradients(model, images, labels):
    images = images.clone().requires_grad_()
    model.zero_grad()
    output = model(images)
    functional.cross_entropy(output, labels).backward()
    return [output.detach(), images.grad, *(parameter.grad.clone() for parameter in model.parameters())]


@pytest.mark.parametrize("num_replicas", [1, 2, 3, 4])
def test_the_gradient_is_that_of_the_whole_batch(num_replicas):
    model = plain_model()
    expected = gradients(model, *batch())
    got = gradients(ThreadedParallel(model, num_replicas), *batch())
    for one, other in zip(got, expected, strict=True):
        assert (one - other).norm() < 1e-6 * other.norm()


def test_batch_norm_sees_chunks_and_keeps_the_statistics_of_the_first():
    model = norm_model()
    images, labels = batch()
    by_hand = [copy.deepcopy(model) for _ in range(3)]
    output = torch.cat([replica(chunk) for replica, chunk in zip(by_hand, images.chunk(3), strict=True)])
    functional.cross_entropy(output, labels).backward()
    sums = [
        sum(same[1:], start=same[0])
        for same in zip(*([parameter.grad for parameter in replica.parameters()] for replica in by_hand), strict=True)
    ]
    parallel = ThreadedParallel(model, 3)
    got = gradients(parallel, images, labels)
    torch.testing.assert_close(got[0], output.detach(), rtol=0, atol=0)
    torch.testing.assert_close(got[2:], sums, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(dict(model.named_buffers()), dict(by_hand[0].named_buffers()), rtol=0, atol=0)


def test_forward_and_backward_run_concurrently_with_cores_divided_between_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    model = Watched(plain_model(), num_replicas=2)
    gradients(ThreadedParallel(model, 2), *batch())
    torch.set_num_threads(before)
    for phase in ("forward", "backward"):
        assert sorted(note for note in model.notes.threads if note[0] == phase) == [
            (phase, "replica_0", 2),
            (phase, "replica_1", 2),
        ]


def test_updates_frozen_parameters_and_modes_reach_every_replica():
    model, twin = norm_model(), norm_model()
    parallel = ThreadedParallel(model, 2)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1, momentum=0.9)
    images, labels = batch(12)
    for _ in range(3):
        gradients(parallel, images, labels)
        optimizer.step()
    twin.load_state_dict(parallel.state_dict())
    for fresh in (ThreadedParallel(twin, 2).eval(), twin):
        torch.testing.assert_close(parallel.eval()(images), fresh(images))
    parallel.train()
    model[0].requires_grad_(requires_grad=False)
    model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    parallel.zero_grad(set_to_none=True)
    functional.cross_entropy(parallel(images), labels).backward()
    assert [parameter.grad is None for parameter in model.parameters()] == [True, True, *[False] * 4]


def test_nothing_is_kept_for_backward_without_gradients():
    parallel = ThreadedParallel(plain_model(), 2)
    with torch.no_grad():
        assert not parallel(batch()[0]).requires_grad
    with torch.inference_mode():
        assert parallel(batch()[0]).shape == (13, 5)


def test_fewer_images_than_threads_use_fewer_replicas():
    parallel = ThreadedParallel(plain_model(), 4)
    for number in (1, 2, 5):
        torch.testing.assert_close(parallel(batch(number)[0]), parallel.module(batch(number)[0]))


@pytest.mark.bf16
def test_autocast_reaches_the_threads():
    parallel = ThreadedParallel(plain_model(), 2)
    with torch.autocast("cpu", torch.bfloat16):
        assert parallel(batch()[0]).dtype == torch.bfloat16
    assert parallel(batch()[0]).dtype == torch.float32


def test_keys_are_those_of_the_model_inside():
    parallel = ThreadedParallel(norm_model(), 3)
    state = norm_model().state_dict()
    assert list(parallel.state_dict()) == list(state)
    parallel.load_state_dict({key: torch.zeros_like(value) for key, value in state.items()})
    assert parallel.eval()(batch()[0]).abs().sum() == 0
    assert len(list(parallel.parameters())) == len(list(norm_model().parameters()))


def test_a_run_with_dropout_repeats_bit_for_bit():
    def train():
        torch.manual_seed(1)
        parallel = ThreadedParallel(build_model("cnn", num_classes=10, image_shape=(3, 8, 8)), 4)
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
        for step in range(5):
            torch.default_generator.manual_seed(step)
            gradients(parallel, *batch(40))
            optimizer.step()
        return parallel.state_dict()

    torch.testing.assert_close(train(), train(), rtol=0, atol=0)


class Draws(nn.Module):
    """Returns random numbers, drawn in one of several ways."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, images):
        return self.draw(images)


DRAWS = {
    "dropout": lambda images: functional.dropout(torch.ones_like(images), training=True),
    "dropout2d": lambda images: functional.dropout2d(torch.ones_like(images), p=0.3, training=True),
    "alpha_dropout": lambda images: functional.alpha_dropout(torch.ones_like(images), training=True),
    "rrelu": lambda images: functional.rrelu(-torch.ones_like(images), training=True),
    "bernoulli": lambda images: torch.bernoulli(torch.full_like(images, 0.5)),
    "rand": lambda images: torch.rand(images.shape),
    "randn_like": torch.randn_like,
    "randint": lambda images: torch.randint(5, 10, images.shape),
    "randperm": lambda images: torch.stack([torch.randperm(100) for _ in images]),
    "uniform_": lambda images: torch.empty_like(images).uniform_(),
    "normal": lambda images: torch.normal(images, 1.0),
    "multinomial": lambda images: torch.multinomial(torch.ones(len(images), 1000), 8),
}


@pytest.mark.parametrize("name", DRAWS)
def test_every_draw_is_a_function_of_seed_and_replica(name):
    parallel = ThreadedParallel(Draws(DRAWS[name]), 4)
    images = torch.zeros(8, 3, 8, 8)
    torch.manual_seed(7)
    first, second = parallel(images), parallel(images)
    torch.manual_seed(7)
    again = parallel(images)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    chunks = first.chunk(4)
    assert not any(torch.equal(chunks[0], other) for other in chunks[1:])


def test_models_that_threads_cannot_run_are_refused():
    images = torch.ones(8, 3, 8, 8)
    with pytest.raises(ModelError, match="returns a tuple, which threads cannot put together"):
        ThreadedParallel(Draws(lambda images: (images, images)), 2)(images)
    with pytest.raises(ModelError, match="returns a number"):
        ThreadedParallel(Draws(lambda images: images.sum()), 2)(images)
    with pytest.raises(ModelError, match=r"native_dropout\.default, which takes no generator") as caught:
        ThreadedParallel(Draws(lambda images: torch.native_dropout(images, 0.5, True)[0]), 2)(images)
    assert caught.value.hint == "use --mode ddp"
