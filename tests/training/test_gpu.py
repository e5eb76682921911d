"""Training on a CUDA GPU is that of the plain loop on the CPU, up to rounding. Skipped where there is none."""

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import nn

from coterie.core import Training
from coterie.data.objective import Objective
from coterie.data.world import Split
from coterie.engines import rounds
from coterie.methods import FLHC
from coterie.models import nets
from coterie.randomness import generator, seeded
from coterie.runs.experiment import make
from coterie.training.blocks import Block
from coterie.training.graphs import Recorded
from coterie.training.learner import Learner

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

IMAGE = (1, 28, 28)


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    """Convolutions in float32: PyTorch's default on a GPU is TF32, with ten bits."""
    before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    yield
    torch.backends.cudnn.allow_tf32 = before


def normed(momentum: float | None) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 5, 2),
        nn.BatchNorm2d(4, momentum=momentum),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 12 * 12, 10),
    )


MODELS = {
    "mlp": partial(nets.make, "mlp", IMAGE, 10),
    "cfl-cnn": partial(nets.make, "cfl-cnn", IMAGE, 10),
    "normed": partial(normed, 0.1),
    "normed, mean of all batches": partial(
        normed, None
    ),  # it reads its count of batches, so its steps are not recorded
}
PLAIN = Training(batch=8, epochs=3)
TRAININGS = [
    PLAIN,
    Training(batch=8, epochs=2, momentum=0.9, weight_decay=0.3),
    Training(batch=8, epochs=2, clip=0.5, proximal=3.0),
    Training(batch=8, epochs=2, optimizer="adam"),
]


def trained(
    model: str, training: Training, device: str, precision: str = "fp32", together: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of three clients after training, and the row from which they start."""
    splits = []
    sizes = (
        (44, 44, 44) if "normed" in model else (41, 46, 44)
    )  # the last batch is shorter; without BatchNorm it is padded
    for client, size in enumerate(sizes):
        gen = generator(7, client)
        x = torch.rand(size, *IMAGE, generator=gen)
        splits.append(Split(x, torch.arange(size), torch.randint(0, 10, (size,), generator=gen)))
    with seeded(0):
        learner = Learner(MODELS[model](), Objective(), device=device, precision=precision)
        start = learner.layout.row(MODELS[model]()).cpu()
    lr = 0.001 if training.optimizer == "adam" else 0.05
    if not together:
        rows = [
            learner.train(start, split, training, lr, generator(1, i))
            for i, split in enumerate(splits)
        ]
        return torch.stack(rows), start
    gens = [generator(1, i) for i in range(3)]
    return Block(learner, [start] * 3).train(splits, training, lr, gens).cpu().clone(), start


@pytest.mark.parametrize("together", [True, False], ids=["block", "alone"])
@pytest.mark.parametrize("training", TRAININGS, ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_training_is_that_of_the_cpu(model: str, training: Training, together: bool) -> None:
    expected, start = trained(model, training, "cpu", together=False)
    found, same = trained(model, training, "cuda", together=together)
    assert torch.equal(start, same)
    assert (found - expected).norm() < 2e-2 * (expected - start).norm()


@pytest.mark.parametrize("training", TRAININGS[:3], ids=str)
@pytest.mark.parametrize("model", ["mlp", "cfl-cnn", "normed", "normed, mean of all batches"])
def test_recorded_steps_are_the_steps(
    model: str, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a graph for whole batches, and one for the last and shorter batch of each epoch."""
    made: list[Recorded] = []
    record = Recorded.record
    monkeypatch.setattr(
        Recorded, "record", lambda own, tensors: made.append(own) or record(own, tensors)
    )
    monkeypatch.setattr(Recorded, "BEFORE", 1)
    recorded, _ = trained(model, training, "cuda")
    assert len(made) == (0 if "mean" in model else 2)
    monkeypatch.setattr(Recorded, "BEFORE", 10**9)
    called, start = trained(model, training, "cuda")
    assert (recorded - called).norm() < 1e-3 * (called - start).norm()


@pytest.mark.parametrize("together", [True, False], ids=["block", "alone"])
@pytest.mark.parametrize("model", ["mlp", "cfl-cnn", "normed"])
def test_bf16_is_near_fp32(model: str, together: bool) -> None:
    expected, start = trained(model, PLAIN, "cuda")
    found, _ = trained(model, PLAIN, "cuda", "bf16", together)
    assert 0 < (found - expected).norm() < 0.2 * (expected - start).norm()


def test_a_run_ends_as_on_the_cpu() -> None:
    world = make(
        {
            "scenario": {"name": "digits/label-swap", "clients": 8},
            "training": {"lr": 0.1, "batch": 8},
            "methods": ["fedavg"],
        }
    ).world(0)
    method, how = (
        FLHC(warmup=2, threshold=None, groups=4),
        {"rounds": 4, "seed": 0, "eval_every": 4},
    )
    (*_, cpu), (*_, gpu) = (
        rounds.rounds(method, world, device=device, **how) for device in ("cpu", "cuda")
    )
    assert gpu.assignment.groups == cpu.assignment.groups
    assert torch.allclose(gpu.position.state.models, cpu.position.state.models, atol=1e-3)
