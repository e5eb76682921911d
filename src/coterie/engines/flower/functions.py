"""Training and testing by an app's own functions, as in Flower's quickstart, for most tasks.

A function that trains a net on a data set, and one that tests it, are enough to train on halves of
the data, to choose among models and to keep layers: the rest of a task is the same as with
Coterie's own training.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, Subset

from coterie import training
from coterie.core import Stage, Training
from coterie.data.batches import Items
from coterie.data.described import described
from coterie.data.schema import Schema
from coterie.data.world import ClientData, Objective, Split
from coterie.engines.served import Ensemble
from coterie.settings import UserError
from coterie.training.learner import PullToShared
from coterie.training.optimizer_state import KeptOptimizer

Train = Callable[[nn.Module, Dataset[Any], dict[str, Any]], Any]
"""Function of (net, data set, config) that trains the net in place."""

Test = Callable[[nn.Module, Dataset[Any]], tuple[float, float]]
"""Function of (net, data set) that returns the mean loss and the accuracy."""


@dataclass(frozen=True)
class Functions:
    """An app's own functions, and the data sets that they get.

    Attributes:
        train: Trains the net.
        test: Tests the net.
        pool: The client's training set, followed by its test set.
    """

    train: Train
    test: Test
    pool: Dataset[Any]

    def described(self) -> Schema:
        """The types of the first example, if it can be read without the app's own loader; the loss is not known."""
        split = Split(Items(self.pool), torch.arange(1))
        try:
            return described(ClientData(train=split, validation=split, test=split), None)
        except UserError:
            # Its items need another way to make a batch of them.
            return Schema()


def client_data(data_sets: Any) -> tuple[ClientData, Dataset[Any]]:
    """Describe a client's own data sets.

    Args:
        data_sets: The training set and the test set. Each has a length and can be indexed.

    Returns:
        The splits, which have positions instead of examples, and the pool to which the positions
        refer.

    Raises:
        TypeError: These are not two data sets.
    """
    # The data sets must have a length and positions, as PyTorch's map-style data sets have.
    try:
        train_set, test_set = data_sets
        train_count = len(train_set)
        example_count = train_count + len(test_set)
        is_usable = hasattr(train_set, "__getitem__") and hasattr(test_set, "__getitem__")
    except (TypeError, ValueError):
        is_usable = False
    if not is_usable:
        raise TypeError(
            "with train and test, client_app's data must return two data sets, for training and for tests, that have a length "
            "and can be indexed; of a DataLoader, pass its data set"
        )
    # The examples are in the pool, so that the splits have no inputs and no targets.
    no_inputs = torch.empty(example_count, 0)

    def split(start: int, end: int) -> Split:
        return Split(no_inputs, torch.arange(start, end), torch.zeros(end - start))

    splits = ClientData(
        train=split(0, train_count), validation=split(0, 0), test=split(train_count, example_count)
    )
    return splits, ConcatDataset([train_set, test_set])


class FunctionLearner(training.Learner):
    """A learner that trains and tests by an app's own functions. They get the net on the CPU and may move it.

    Args:
        module: The module.
        functions: The functions.
        objective: Combines the outputs of an ensemble.

    Attributes:
        config: Entries that ``train`` gets in its config besides the training settings.
    """

    def __init__(self, module: nn.Module, functions: Functions, objective: Objective) -> None:
        super().__init__(module, objective)
        self.functions = functions
        self.own_code = True
        self.config: dict[str, Any] = {}

    def load(self, model_row: Tensor) -> None:
        """Load a model ``(d,)``."""
        self.module.to("cpu")
        self.layout.load(self.module, model_row)
        self.reset()

    def train(
        self,
        model_row: Tensor,
        examples: Split,
        training: Training,
        learning_rate: float,
        generator: torch.Generator,
        *,
        stages: Sequence[Stage] = (),
        pull_term: PullToShared | None = None,
        correction: Tensor | None = None,
        kept: KeptOptimizer | None = None,
    ) -> Tensor:
        """Train from ``model_row`` ``(d,)`` and return the trained row; the global generator is seeded by the task.

        Raises:
            ValueError: The task trains in stages, with a pull, with corrected gradients or with an
                optimizer that keeps its state, which the app's function does not do.
        """
        if kept is not None:
            raise ValueError(
                "this app trains by a function of its own, whose optimizer training.keep_optimizer cannot keep"
            )
        if stages or pull_term is not None or correction is not None:
            raise ValueError(
                "this app trains by a function of its own, so it cannot train in stages, pull to another model or correct "
                "gradients"
            )
        self.load(model_row)
        self.module.train()
        settings = {
            setting_name: setting_value
            for setting_name, setting_value in asdict(training).items()
            if setting_value is not None
        }
        train_config = {**self.config, **settings, "lr": learning_rate}
        self.functions.train(self.module, self._examples(examples.index), train_config)
        return self.layout.row(self.module.to("cpu"))

    def sums(
        self, model_rows: Sequence[Tensor], parts: Sequence[training.Part]
    ) -> list[list[training.Sums]]:
        """Measure a model, or the ensemble of several models, by the app's function; see :meth:`.Learner.sums`."""
        return [
            [self._sum(model_rows, example_positions)] * len(targets)
            for _, example_positions, targets in parts
        ]

    def gradient(self, model_row: Tensor, examples: Split) -> Tensor:
        """Raise ``ValueError``: a function that trains computes no gradient of all examples."""
        raise ValueError(
            "this app trains by a function of its own, so it cannot compute a gradient"
        )

    def losses(self, model_row: Tensor, examples: Split) -> Tensor:
        """Raise ``ValueError``: a function that tests returns the mean loss only."""
        raise ValueError(
            "this app tests by a function of its own, so it cannot report losses of single examples"
        )

    def seen(
        self, model_row: Tensor, data: Split, layer: str
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Raise ``ValueError``: a function that tests shows no features."""
        raise ValueError(
            "this app tests by a function of its own, so it cannot compare examples with each other"
        )

    def train_mixture(self, *task: Any) -> tuple[Tensor, Tensor, float]:
        """Raise ``ValueError``: a function that trains one net does not train a mixture of two."""
        raise ValueError(
            "this app trains by a function of its own, so it cannot mix a personal model with the shared one"
        )

    def _sum(self, model_rows: Sequence[Tensor], example_positions: Tensor) -> training.Sums:
        """Sums over examples, from the means that the app's function returns."""
        # The function returns means, and the server adds up sums.
        example_count = len(example_positions)
        if not example_count:
            return {}
        mean_loss, mean_accuracy = self.functions.test(
            self._net_of(model_rows), self._examples(example_positions)
        )
        return {
            "loss": (float(mean_loss) * example_count, example_count),
            "accuracy": (float(mean_accuracy) * example_count, example_count),
        }

    def _net_of(self, model_rows: Sequence[Tensor]) -> nn.Module:
        """The net with one model, or the ensemble of several."""
        # Only an ensemble needs copies of the net.
        if len(model_rows) == 1:
            self.load(model_rows[0])
            return self.module.eval()
        # The app's function gets one net, whatever is in it.
        member_nets = []
        for model_row in model_rows:
            self.load(model_row)
            member_nets.append(copy.deepcopy(self.module))
        return Ensemble(member_nets, self.objective.combine).eval()

    def _examples(self, example_positions: Tensor) -> Dataset[Any]:
        return Subset(self.functions.pool, example_positions.tolist())
