"""The networks of the papers by name, and any ``nn.Module`` of the user.

A builder takes the shape of one input and the number of classes. It makes a module with fresh
parameters from torch's global generator, and engines call it in a seeded scope. Layers are called
``conv1``, ``conv2``, ... and ``fc1``, ``fc2``, ... (``fc`` for a single dense layer); methods that
use single layers refer to these names. No network ends in a softmax.
"""

from __future__ import annotations

import importlib
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import torch

from coterie.extensions import imported
from coterie.models.layout import averaged
from coterie.randomness import seeded
from coterie.settings import SettingError, UserError, nearest

Shape = tuple[int, ...]
Builder = Callable[[Shape, int], "torch.nn.Module"]


def dense(
    shape: Shape, classes: int, hidden: Sequence[int] = (64,), dropout: float = 0.0
) -> torch.nn.Module:
    """Make a fully connected network with ReLU after each hidden layer.

    Args:
        shape: Shape of one input, which is flattened.
        classes: Number of outputs.
        hidden: Widths of the hidden layers.
        dropout: Probability of dropout before the last layer.

    Returns:
        A module with logits ``(b, classes)``.
    """
    layers: OrderedDict[str, torch.nn.Module] = OrderedDict(flatten=torch.nn.Flatten())
    _dense_layers(layers, math.prod(shape), hidden, classes, dropout)
    return torch.nn.Sequential(layers)


@dataclass(frozen=True)
class Conv:
    """One convolution.

    Attributes:
        out: Output channels.
        kernel: Kernel size.
        padding: Zero padding at each side.
        pool: Whether pooling by 2 follows.
    """

    out: int
    kernel: int
    padding: int
    pool: bool


def convolutional(
    shape: Shape,
    classes: int,
    convs: Sequence[Conv],
    hidden: Sequence[int] = (),
    *,
    dropout: float = 0.0,
    norm: bool = False,
    average: bool = False,
    pooling: Literal["max", "mean"] = "max",
) -> torch.nn.Module:
    """Make a network of convolutions with ReLU, then dense layers.

    Args:
        shape: Shape of one input, (channels, height, width).
        classes: Number of outputs.
        convs: The convolutions.
        hidden: Widths of the hidden dense layers.
        dropout: Probability of dropout before the last dense layer.
        norm: Whether BatchNorm follows each layer except the last.
        average: Whether the last feature map is averaged and not flattened.
        pooling: What pooling takes of each 2 x 2 square, its maximum or its mean.

    Returns:
        A module with logits ``(b, classes)``.

    Raises:
        UserError: The inputs are not images, or they are too small.
    """
    if len(shape) != 3:
        raise UserError(
            f"a convolutional net needs images (channels, height, width), got inputs of shape {shape}"
        )
    layers: OrderedDict[str, torch.nn.Module] = OrderedDict()
    (channels, *feature_size) = shape
    for conv_number, conv in enumerate(convs, 1):
        layers[f"conv{conv_number}"] = torch.nn.Conv2d(
            channels, conv.out, conv.kernel, padding=conv.padding
        )
        if norm:
            layers[f"norm{conv_number}"] = torch.nn.BatchNorm2d(conv.out)
        # The maximum before ReLU: the same result, and a quarter of the work for ReLU.
        if conv.pool and pooling == "max":
            layers[f"pool{conv_number}"] = torch.nn.MaxPool2d(2)
        layers[f"relu{conv_number}"] = torch.nn.ReLU()
        if conv.pool and pooling == "mean":
            layers[f"pool{conv_number}"] = torch.nn.AvgPool2d(2)
        # The shape of the feature maps, which the next layer gets.
        channels = conv.out
        stride = 2 if conv.pool else 1
        feature_size = [
            (side_length + 2 * conv.padding - conv.kernel + 1) // stride
            for side_length in feature_size
        ]
    if min(feature_size) < 1:
        raise UserError(f"images of {shape[1]} x {shape[2]} are too small for this net")
    if average:
        layers["average"] = torch.nn.AdaptiveAvgPool2d(1)
        feature_size = [1, 1]
    layers["flatten"] = torch.nn.Flatten()
    _dense_layers(layers, channels * math.prod(feature_size), hidden, classes, dropout, norm)
    return torch.nn.Sequential(layers)


def _dense_layers(
    layers: OrderedDict[str, torch.nn.Module],
    input_width: int,
    hidden: Sequence[int],
    classes: int,
    dropout: float,
    norm: bool = False,
) -> None:
    """Add the hidden dense layers and the last one, for inputs of this width."""
    for layer_number, hidden_width in enumerate(hidden, 1):
        layers[f"fc{layer_number}"] = torch.nn.Linear(input_width, hidden_width)
        if norm:
            layers[f"fc_norm{layer_number}"] = torch.nn.BatchNorm1d(hidden_width)
        layers[f"fc_relu{layer_number}"] = torch.nn.ReLU()
        input_width = hidden_width
    if dropout:
        layers["dropout"] = torch.nn.Dropout(dropout)
    layers[f"fc{len(hidden) + 1}" if hidden else "fc"] = torch.nn.Linear(input_width, classes)


def next_word(
    shape: Shape, classes: int, embedding: int = 128, hidden: int = 256, layers: int = 2
) -> torch.nn.Module:
    """Make a word model: embedding, LSTM, dense layer.

    Args:
        shape: Shape of one input, (tokens,).
        classes: Number of words.
        embedding: Width of the embedding.
        hidden: Width of the LSTM.
        layers: Layers of the LSTM.

    Returns:
        A module with logits ``(b, t, words)`` for tokens ``(b, t)``.

    Raises:
        UserError: The inputs are not sequences of tokens.
    """
    # Imported here because it imports torch.
    from coterie.models.next_word import NextWord

    if len(shape) != 1:
        raise UserError(
            f"a word model needs sequences of tokens, and the inputs have shape {shape}"
        )
    return NextWord(classes, embedding, hidden, layers)


def residual(shape: Shape, classes: int, norm: Literal["batch", "group"]) -> torch.nn.Module:
    """Make ResNet-20 for small images.

    Args:
        shape: Shape of one input, (channels, height, width).
        classes: Number of outputs.
        norm: The norm after each convolution: BatchNorm, or GroupNorm with two groups.

    Returns:
        A module with logits ``(b, classes)``.

    Raises:
        UserError: The inputs are not images.
    """
    # Imported here because it imports torch.
    from coterie.models.image_nets import ResNet, batch_norm, group_norm

    if len(shape) != 3:
        raise UserError(
            f"resnet20 needs images (channels, height, width), got inputs of shape {shape}"
        )
    make_norm = batch_norm if norm == "batch" else group_norm
    return ResNet(shape[0], classes, blocks=3, norm=make_norm)


def vision_transformer(
    shape: Shape, classes: int, patch: int = 4, width: int = 96, depth: int = 4, heads: int = 3
) -> torch.nn.Module:
    """Make a small vision transformer.

    Args:
        shape: Shape of one input, (channels, height, width).
        classes: Number of outputs.
        patch: Side of a patch in pixels.
        width: Width of a token.
        depth: Number of blocks.
        heads: Number of heads of attention.

    Returns:
        A module with logits ``(b, classes)``.

    Raises:
        UserError: The inputs are not images whose sides are multiples of a patch.
    """
    # Imported here because it imports torch.
    from coterie.models.image_nets import VisionTransformer

    is_image = len(shape) == 3
    if not is_image or shape[1] % patch or shape[2] % patch:
        raise UserError(
            f"vit needs images (channels, height, width) with sides that are multiples of {patch}, got inputs of shape {shape}"
        )
    channels, height, width_of_image = shape
    return VisionTransformer(
        (channels, height, width_of_image),
        classes,
        patch=patch,
        width=width,
        depth=depth,
        heads=heads,
    )


TORCHVISION = "torchvision.models:"
"""What the names of torchvision's models begin with."""


def of_torchvision(name: str, shape: Shape, classes: int) -> torch.nn.Module:
    """Make a model of torchvision without pretrained weights, by its name there, such as ``resnet18``.

    Args:
        name: The name.
        shape: Shape of one input, (3, height, width).
        classes: Number of outputs.

    Raises:
        UserError: torchvision is not installed, has no such model, or the inputs are no images of
            three channels.
    """
    try:
        models = importlib.import_module("torchvision.models")
    except ImportError:
        raise UserError(
            f"the model {TORCHVISION}{name} needs torchvision: pip install torchvision"
        ) from None
    known_names = models.list_models()
    if name not in known_names:
        raise UserError(f"torchvision has no model {name!r}{nearest(name, known_names)}")
    if len(shape) != 3 or shape[0] != 3:
        raise UserError(
            f"the model {TORCHVISION}{name} needs images of three channels, got inputs of shape {shape}"
        )
    module: torch.nn.Module = models.get_model(name, weights=None, num_classes=classes)
    return module


_MCMAHAN = [Conv(32, 5, 2, True), Conv(64, 5, 2, True)]
_VALID = [Conv(32, 5, 0, True), Conv(64, 5, 0, True)]
_NOTEBOOK = [Conv(6, 5, 0, True), Conv(16, 5, 0, True)]
_LENET = [Conv(6, 5, 2, True), Conv(16, 5, 0, True)]
_CFL_SIZES = [Conv(8, 5, 0, True), Conv(16, 5, 0, True)]
_CIFAR = [Conv(32, 3, 1, False), Conv(64, 3, 1, True), Conv(128, 3, 1, True)]
_CNN4 = [Conv(16, 3, 1, False), Conv(32, 3, 1, True), Conv(64, 3, 1, True), Conv(128, 3, 1, True)]
_CNN4_NARROW = [
    Conv(8, 3, 1, True),
    Conv(16, 3, 1, True),
    Conv(16, 3, 1, True),
    Conv(32, 3, 1, False),
]
_FEDBN = [Conv(64, 5, 2, True), Conv(64, 5, 2, True), Conv(128, 5, 2, False)]
_FEDBN_NARROW = [Conv(8, 5, 2, True), Conv(8, 5, 2, True), Conv(16, 5, 2, False)]
_ACFL_EARLY = [
    Conv(32, 3, 1, True),
    Conv(64, 3, 1, True),
    Conv(64, 3, 1, False),
    Conv(64, 3, 1, True),
    Conv(64, 3, 1, False),
]
_ACFL_LATE = [
    Conv(32, 3, 1, False),
    Conv(64, 3, 1, True),
    Conv(64, 3, 1, False),
    Conv(64, 3, 1, True),
    Conv(64, 3, 1, False),
]

MODELS: Mapping[str, Builder] = MappingProxyType(
    {
        # One dense layer: logistic regression.
        "linear": partial(dense, hidden=()),
        # d-64-classes: 4,810 parameters on digits.
        "mlp": dense,
        # IFCA's MNIST net, 784-200-10: 159,010.
        "ifca-mlp": partial(dense, hidden=(200,)),
        # HCCT's FMNIST net, 784-64-10 with the published code's dropout: 50,890. That code has a
        # softmax before the cross entropy; it is left out, because the cross entropy already
        # includes one.
        "hcct-mlp": partial(dense, hidden=(64,), dropout=0.5),
        # HCCT's CIFAR-10 net CNN_4: 1,126,950.
        "hcct-cnn": partial(convolutional, convs=_CNN4, hidden=(500,), dropout=0.25),
        # A smaller version, for studies on a few cores; ours: 41,834. It pools earlier.
        "hcct-cnn-narrow": partial(convolutional, convs=_CNN4_NARROW, hidden=(64,), dropout=0.25),
        # HCCT's Digit net, from FedBN (Li et al. 2021), BatchNorm throughout: 14,219,210 trainable
        # on 3 x 28 x 28.
        "fedbn-cnn": partial(convolutional, convs=_FEDBN, hidden=(2048, 512), norm=True),
        # A smaller version, for studies on a few cores; ours: 56,514.
        "fedbn-cnn-narrow": partial(convolutional, convs=_FEDBN_NARROW, hidden=(64,), norm=True),
        # FL+HC's CNN with the padding of McMahan et al.'s: 1,663,370 on MNIST; without padding:
        # 582,026.
        "flhc-cnn": partial(convolutional, convs=_MCMAHAN, hidden=(512,)),
        "flhc-cnn-valid": partial(convolutional, convs=_VALID, hidden=(512,)),
        # The ConvNet of CFL's published notebook: 18,506 with EMNIST's 62 classes.
        "cfl-convnet": partial(convolutional, convs=_NOTEBOOK),
        # LeNet-5 (LeCun et al. 1998) with ReLU, as in FLUX's code: 61,706 on MNIST.
        "lenet5": partial(convolutional, convs=_LENET, hidden=(120, 84), pooling="mean"),
        # CFL's "multi-layer CNN" for MNIST, whose sizes the paper does not give; ours: 29,066.
        "cfl-cnn": partial(convolutional, convs=_CFL_SIZES, hidden=(96,)),
        # CFL's "5-layer CNN" for CIFAR-10, sizes ours: 2,193,226.
        "cfl-cifar-cnn": partial(convolutional, convs=_CIFAR, hidden=(256,)),
        # CFL's two-layer LSTM for AG News, sizes ours: 4,771,600 with 10,000 words.
        "cfl-lstm": next_word,
        # ACFL's five convolutions and one dense layer, 511 KB: 130,826. The positions of the
        # pooling are ours.
        "acfl-cnn": partial(convolutional, convs=_ACFL_LATE, average=True),
        # The same layers with earlier pooling, for studies on a few cores: a quarter of the
        # operations.
        "acfl-cnn-early": partial(convolutional, convs=_ACFL_EARLY, average=True),
        # ResNet-20 for CIFAR (He et al. 2016): 269,722. With GroupNorm no examples are mixed.
        "resnet20-bn": partial(residual, norm="batch"),
        "resnet20-gn": partial(residual, norm="group"),
        # A small vision transformer, sizes ours: 459,562 on CIFAR-10.
        "vit": vision_transformer,
    }
)
"""Name -> builder: ``builder((channels, height, width), classes)`` makes a module."""


def takes_tokens(name: str) -> bool:
    """Whether a model may take integers: a next-word model, or a model of the user."""
    is_own = name not in MODELS and not name.startswith(TORCHVISION)
    return name == "cfl-lstm" or is_own


def make(name: str, shape: Shape, classes: int) -> torch.nn.Module:
    """Make a fresh module.

    Args:
        name: One of :data:`MODELS`, or ``package.module:Name`` of a callable that takes ``(shape,
            classes)`` and returns an ``nn.Module``.
        shape: Shape of one input.
        classes: Number of classes.

    Returns:
        The module.

    Raises:
        UserError: The name is unknown.

    Example:
        >>> from coterie.randomness import seeded
        >>> with seeded(0):
        ...     sum(p.numel() for p in make("mlp", (1, 8, 8), 10).parameters())
        4810
    """
    return builder(name)(shape, classes)


def factory(name: str, shape: Shape, classes: int) -> Callable[[], torch.nn.Module]:
    """Check that a model can be made, and return a function that makes it.

    The function can be sent to worker processes.

    Args:
        name: As for :func:`make`.
        shape: Shape of one input.
        classes: Number of classes.

    Returns:
        A function that makes a fresh module.

    Raises:
        UserError: The name is unknown, or the model does not fit the shape.
    """
    if name in MODELS:
        # The device "meta" needs no memory and draws no random number.
        with torch.device("meta"):
            make(name, shape, classes)
    else:
        _try(name, shape, classes)
    return partial(make, name, shape, classes)


def check_maker(maker: Any, argument: str) -> None:
    """Check that a user has passed a function that makes a module, and not the module.

    Args:
        maker: The value that the user passed.
        argument: Name of the argument, for the message.

    Raises:
        SettingError: It is no function.
    """
    is_module = isinstance(maker, torch.nn.Module)
    if is_module or not callable(maker):
        received = f"the module {type(maker).__name__}" if is_module else f"{maker!r:.60}"
        raise SettingError(
            f"{argument} must be a function that makes a fresh module, "
            f"such as lambda: Net(), got {received}"
        )


def described(maker: Callable[[], torch.nn.Module]) -> dict[str, Any] | None:
    """The name, shape and classes of a function that :func:`factory` returned, and the averaged buffers if they are not all.

    Args:
        maker: A function that makes a module.

    Returns:
        The description; None for any other function.
    """
    # The description of the model, and which of its buffers are averaged.
    if isinstance(maker, partial) and maker.func is averaged:
        inner_description = described(maker.args[0])
        return inner_description and {**inner_description, "buffers": list(maker.args[1])}
    if not isinstance(maker, partial) or maker.func is not make:
        return None
    name, shape, classes = maker.args
    return {"name": name, "shape": list(shape), "classes": classes}


def _try(name: str, shape: Shape, classes: int) -> None:
    """Make a user's model once; raises :class:`~coterie.settings.UserError` if it cannot be made or trained."""
    model_builder = builder(name)
    try:
        with seeded(0):
            module = model_builder(shape, classes)
    except Exception as error:
        raise UserError(
            f"the model {name!r} fails with shape {shape} and {classes} classes: {error}"
        ) from error
    if not isinstance(module, torch.nn.Module):
        raise UserError(
            f"the model {name!r} must make an nn.Module, but makes {type(module).__name__}"
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise UserError(f"the model {name!r} has no trainable parameter")


def builder(name: str) -> Builder:
    """Return the builder called ``name``.

    Args:
        name: As for :func:`make`.

    Returns:
        The builder.

    Raises:
        UserError: The name is unknown or cannot be imported.
    """
    if name in MODELS:
        return MODELS[name]
    if name.startswith(TORCHVISION):
        return partial(of_torchvision, name.removeprefix(TORCHVISION))
    if ":" not in name:
        model_names = f"{', '.join(MODELS)}, or package.module:Name"
        raise UserError(f"there is no model {name!r}{nearest(name, MODELS)} (known: {model_names})")
    user_builder: Builder = imported(name, "model")
    return user_builder
