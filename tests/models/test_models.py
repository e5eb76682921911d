"""The papers' nets: parameter counts as printed, shapes, names of layers, and what cannot be built."""

import pickle
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

from coterie.models import nets
from coterie.models.layout import Layout
from coterie.randomness import seeded
from coterie.settings import UserError

PRINTED = [
    ("linear", (20,), 4, 20 * 4 + 4),
    ("mlp", (1, 8, 8), 10, 64 * 64 + 64 + 64 * 10 + 10),
    ("hcct-mlp", (1, 28, 28), 10, 50_890),
    ("hcct-cnn", (3, 32, 32), 10, 1_126_950),
    ("fedbn-cnn", (3, 28, 28), 10, 14_219_210),
    ("flhc-cnn", (1, 28, 28), 10, 1_663_370),
    ("flhc-cnn", (1, 28, 28), 62, 1_690_046),
    ("flhc-cnn-valid", (1, 28, 28), 10, 582_026),
    ("flhc-cnn-valid", (1, 28, 28), 62, 608_702),
    ("cfl-convnet", (1, 28, 28), 62, 18_506),
    ("ifca-mlp", (1, 28, 28), 10, 159_010),
    ("acfl-cnn", (3, 32, 32), 10, 130_826),
    ("acfl-cnn-early", (3, 32, 32), 10, 130_826),
    ("lenet5", (1, 28, 28), 10, 61_706),
    # Ours, where the paper prints none.
    ("cfl-cnn", (1, 28, 28), 10, 29_066),
    ("hcct-cnn-narrow", (3, 32, 32), 10, 41_834),
    ("fedbn-cnn-narrow", (3, 28, 28), 10, 56_514),
    ("cfl-cifar-cnn", (3, 32, 32), 10, 2_193_226),
    ("cfl-lstm", (30,), 10_000, 4_771_600),
    ("resnet20-bn", (3, 32, 32), 10, 269_722),
    ("resnet20-gn", (3, 32, 32), 10, 269_722),
    ("vit", (3, 32, 32), 10, 459_562),
]


def inputs(shape: tuple[int, ...], classes: int) -> torch.Tensor:
    tokens = len(shape) == 1 and classes > 100
    return torch.zeros(2, *shape, dtype=torch.int64 if tokens else torch.float32)


@pytest.mark.parametrize(("name", "shape", "classes", "count"), PRINTED)
@seeded(0)
def test_parameters_are_as_many_as_printed(
    name: str, shape: tuple[int, ...], classes: int, count: int
) -> None:
    module = nets.make(name, shape, classes).eval()
    assert Layout(module).trainable == count
    outputs = module(inputs(shape, classes))
    assert outputs.shape == ((2, 30, classes) if name == "cfl-lstm" else (2, classes))
    # No softmax at the end: logits are free to be negative and sum to anything.
    assert not torch.allclose(outputs.sum(-1), torch.ones(()), atol=1e-3)


def test_every_model_is_counted() -> None:
    assert set(nets.MODELS) == {name for name, *_ in PRINTED}


@seeded(0)
def test_layers_have_the_names_that_methods_go_by() -> None:
    layers = {
        name: list(Layout(nets.make(name, shape, classes)).columns)
        for name, shape, classes, _ in PRINTED
    }
    assert layers["linear"] == ["fc"]
    assert layers["acfl-cnn"] == ["conv1", "conv2", "conv3", "conv4", "conv5", "fc"]
    assert layers["flhc-cnn"] == ["conv1", "conv2", "fc1", "fc2"]
    assert layers["lenet5"] == ["conv1", "conv2", "fc1", "fc2", "fc3"]
    assert layers["cfl-lstm"] == ["embedding", "lstm", "fc"]
    assert layers["fedbn-cnn"][:2] == ["conv1", "norm1"]
    assert layers["fedbn-cnn"][-1] == "fc3"


@seeded(0)
def test_lenet_takes_means_of_what_relu_leaves() -> None:
    net, images = nets.make("lenet5", (3, 32, 32), 10), torch.randn(2, 3, 32, 32)
    parts = dict(net.named_children())
    seen = images
    for number in (1, 2):
        seen = parts[f"conv{number}"](seen).clamp(min=0)
        seen = (
            seen[..., ::2, ::2]
            + seen[..., 1::2, ::2]
            + seen[..., ::2, 1::2]
            + seen[..., 1::2, 1::2]
        ) / 4
    seen = seen.flatten(1)
    for number in (1, 2):
        seen = parts[f"fc{number}"](seen).clamp(min=0)
    assert torch.allclose(net(images), parts["fc3"](seen), atol=1e-6)


@seeded(0)
def test_a_factory_makes_fresh_models_and_can_be_sent() -> None:
    before = torch.get_rng_state()
    make = pickle.loads(pickle.dumps(nets.factory("mlp", (1, 8, 8), 10)))
    assert torch.equal(before, torch.get_rng_state())  # the trial of the shapes draws nothing
    a, b = Layout(make()).row(make()), Layout(make()).row(make())
    assert not torch.equal(a, b)


@pytest.mark.parametrize(
    ("name", "shape", "sentence"),
    [
        ("flhc-cn", (1, 28, 28), "there is no model 'flhc-cn'; did you mean flhc-cnn?"),
        (
            "flhc-cnn",
            (20,),
            r"needs images \(channels, height, width\), got inputs of shape \(20,\)",
        ),
        ("cfl-convnet", (1, 8, 8), "images of 8 x 8 are too small for this net"),
        ("cfl-lstm", (1, 8, 8), "needs sequences of tokens"),
        ("nowhere:Net", (20,), "the model 'nowhere:Net' cannot be imported"),
        ("math:Net", (20,), "the model 'math:Net' cannot be imported"),
    ],
)
def test_models_that_cannot_be_built(name: str, shape: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        nets.factory(name, shape, 10)


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (3.14, "'users_own:Net' fails with shape .* 'float' object is not callable"),
        (lambda shape, classes: nn.Linear(shape, classes), "fails with shape"),
        (lambda shape, classes: nn.Identity(), "has no trainable parameter"),
        (lambda shape, classes: 3, "must make an nn.Module, but makes int"),
    ],
)
def test_a_net_of_the_users_that_is_none(
    monkeypatch: pytest.MonkeyPatch, made: object, sentence: str
) -> None:
    module = types.ModuleType("users_own")
    module.Net = made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_own", module)
    with pytest.raises(UserError, match=sentence):
        nets.factory("users_own:Net", (3,), 2)


@seeded(0)
def test_a_net_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The installed command has its own folder on the path, not the user's.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    (tmp_path / "net_of_this_folder.py").write_text(
        "from torch import nn\n\n\ndef Net(shape, classes):\n    return nn.Linear(*shape, classes)\n"
    )
    (tmp_path / "broken_net.py").write_text("def (\n")
    assert nets.factory("net_of_this_folder:Net", (3,), 2)().weight.shape == (2, 3)
    with pytest.raises(UserError, match="'broken_net:Net' cannot be imported: invalid syntax"):
        nets.factory("broken_net:Net", (3,), 2)


@seeded(0)
def test_a_net_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("users_own")
    module.Net = lambda shape, classes: nn.Linear(*shape, classes)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_own", module)
    assert nets.factory("users_own:Net", (3,), 2)().weight.shape == (2, 3)
