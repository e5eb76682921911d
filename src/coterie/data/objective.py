"""The loss that clients minimise and the metrics of their tests, of which one is the main metric.

Metrics have the names that torchmetrics gives them. A metric such as the accuracy is a mean over
predictions. Others, such as the area under the ROC curve, have no such form: they take a client's
whole test set at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch

from coterie.data import losses
from coterie.data.batches import Batch, joined, mapped, size
from coterie.data.target_scale import LossOfStandardized, TargetScale
from coterie.pooling import SIGN, ErrorSums, flat, pooled
from coterie.settings import SettingError, brief, coerced, known_list, nearest
from coterie.settings.calls import public

Sums = dict[str, tuple[float, float]]
"""Name -> (sum, count) over predictions; of a loss with class weights, the sums of weighted losses
and of weights."""

Better = Literal["greater", "smaller"]

TEMPERATURES = tuple(2 ** (step / 2) for step in range(13))
"""The temperatures 1 to 64 by which logits are divided where models are compared by their losses.
"""

MAX_NUMBERS_AT_ONCE = 1 << 17
"""Losses at all temperatures are computed in one call for outputs of up to so many numbers, as more
would take much memory."""

IGNORED = -100
"""The class that losses and metrics leave out, as PyTorch's cross entropy does: the padding of
sequences."""


# ----------------------------------------------------------------------------------------------------
# Losses.


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy in nats; outputs ``(b, classes)`` or ``(b, t, classes)``, targets ``(b,)`` or ``(b, t)``."""
    return torch.nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean squared error; outputs ``(b, m)`` and targets ``(b, m)``, or ``(b, 1)`` and ``(b,)``."""
    return torch.nn.functional.mse_loss(outputs, targets.to(outputs.dtype).view_as(outputs))


def binary_cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean binary cross entropy in nats of logits ``(b, m)`` and labels of 0 and 1 ``(b, m)``, or ``(b, 1)`` and ``(b,)``."""
    return torch.nn.functional.binary_cross_entropy_with_logits(
        outputs, targets.to(outputs.dtype).view_as(outputs)
    )


_TORCH_FUNCTION_OF_LOSS: Mapping[Any, str] = {
    squared_error: "mse_loss",
    binary_cross_entropy: "binary_cross_entropy_with_logits",
}
"""Built-in losses of numbers and labels -> the name of torch's function with a value for each of
them."""


def mean_probability(outputs: torch.Tensor) -> torch.Tensor:
    """Logarithm ``(b, classes)`` of the mean class probabilities of m models with outputs ``(m, b, classes)``."""
    return outputs.log_softmax(-1).logsumexp(0) - math.log(len(outputs))


def mean_label_probability(outputs: torch.Tensor) -> torch.Tensor:
    """Logits ``(b, labels)`` of the mean probabilities of m models with logits ``(m, b, labels)``."""
    return torch.logit(outputs.sigmoid().mean(0), eps=1e-7)


def mean_output(outputs: torch.Tensor) -> torch.Tensor:
    """Mean ``(b, ...)`` of the outputs ``(m, b, ...)`` of m models, for regression."""
    return outputs.mean(0)


COMBINED = {
    function.__name__: function
    for function in (mean_probability, mean_label_probability, mean_output)
}
"""Ways to combine the outputs of an ensemble, by the name under which an export has them."""


# ----------------------------------------------------------------------------------------------------
# Means over predictions: functions of (outputs, targets) with one value per prediction.


def predicted(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the predicted classes in the shape of ``targets``: the greatest output, or 1 for a positive logit."""
    if outputs.shape == targets.shape or outputs.shape == (*targets.shape, 1):
        return (outputs.view_as(targets) > 0).to(targets.dtype)
    return outputs.argmax(-1)


def counted(targets: torch.Tensor) -> torch.Tensor:
    """Mask of the targets that count, in their shape: all but :data:`IGNORED`."""
    if targets.is_floating_point():
        return torch.ones_like(targets, dtype=torch.bool)
    return targets != IGNORED


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """1.0 where the prediction is the target, otherwise 0.0, for each prediction."""
    return (predicted(outputs, targets) == targets)[counted(targets)].float()


def exact_match(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """1.0 for each example ``(b,)`` of which all predictions are right, such as a whole sequence."""
    right = (predicted(outputs, targets) == targets) | ~counted(targets)
    return right.flatten(1).all(1).float() if right.dim() > 1 else right.float()


def log_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy in nats of each prediction."""
    prediction_losses = torch.nn.functional.cross_entropy(
        outputs.flatten(0, -2), targets.flatten(), reduction="none"
    )
    return prediction_losses[counted(targets).flatten()]


def absolute_errors(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Absolute error of each prediction."""
    return (outputs - targets.view_as(outputs)).abs().flatten()


def squared_errors(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Squared error of each prediction."""
    return (outputs - targets.view_as(outputs)).square().flatten()


# ----------------------------------------------------------------------------------------------------
# Metrics of a whole test set.


def _scores(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Scores ``(b, m)`` and labels of 0 and 1 ``(b, m)``: one column for two classes, otherwise one for each class."""
    # One logit for each target: a binary target, or several labels.
    if outputs.shape == targets.shape or outputs.shape == (*targets.shape, 1):
        return _columns(outputs.double(), len(targets)), _columns(targets, len(targets))

    # Logits of classes: the score of a class is its log odds against all others.
    is_counted = counted(targets).flatten()
    logits = outputs.double().flatten(0, -2)[is_counted]
    classes = targets.flatten()[is_counted]
    if logits.shape[1] == 2:
        odds = logits[:, 1:] - logits[:, :1]
        labels = classes[:, None]
    else:
        odds = _log_odds(logits)
        labels = torch.nn.functional.one_hot(classes, logits.shape[1])
    rounding = TIED_SHARE * max(1.0, float(logits.abs().max())) if logits.numel() else 0.0
    return _ranked(odds.numpy(), rounding), labels.numpy()


TIED_SHARE = 1e-12
"""Log odds that differ by less, relative to the greatest logit or to 1, are equal: they differ by
rounding."""


def _log_odds(logits: torch.Tensor) -> torch.Tensor:
    """The logarithm of ``p / (1 - p)`` of each class, ``(b, m)``, also of chances that are all but 0 or 1."""
    log_chances = logits.log_softmax(1)
    odds = log_chances - torch.log(-torch.expm1(log_chances))
    # The chance of an example's likeliest class may be so near 1 that 1 - p is computed as the sum
    # of the others' chances, and not as a difference.
    likeliest = logits.argmax(1, keepdim=True)
    log_of_others = logits.scatter(1, likeliest, -math.inf).logsumexp(1, keepdim=True)
    return odds.scatter(1, likeliest, logits.gather(1, likeliest) - log_of_others)


def _ranked(scores: np.ndarray, rounding: float) -> np.ndarray:
    """Ranks of the scores ``(b, m)`` in each column; scores that differ from the next lower one by rounding have its rank."""
    order = np.argsort(scores, axis=0, kind="stable")
    ordered_scores = np.take_along_axis(scores, order, axis=0)
    # The rank grows by 1 wherever a score is higher by more than rounding.
    is_higher = np.zeros(scores.shape)
    is_higher[1:] = ordered_scores[1:] - ordered_scores[:-1] > rounding
    ranks = np.empty(scores.shape)
    np.put_along_axis(ranks, order, is_higher.cumsum(axis=0), axis=0)
    return ranks


def _columns(values: torch.Tensor, rows: int) -> np.ndarray:
    array: np.ndarray = values.reshape(rows, -1).numpy()
    return array


def _over_columns(
    score_function: Callable[..., float], outputs: torch.Tensor, targets: torch.Tensor
) -> float:
    """Mean of a score over the columns in which both labels occur; NaN if there is none."""
    scores, labels = _scores(outputs, targets)
    column_scores = []
    for column in range(labels.shape[1]):
        # With one label alone, the score is not defined.
        if 0 < labels[:, column].sum() < len(labels):
            column_scores.append(score_function(labels[:, column], scores[:, column]))
    return float(np.mean(column_scores)) if column_scores else math.nan


def auroc(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Area under the ROC curve; the mean over classes or labels, one against the rest, that occur and do not always occur."""
    from sklearn.metrics import roc_auc_score

    return _over_columns(roc_auc_score, outputs, targets)


def average_precision(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Average precision; the mean over classes or labels, one against the rest, that occur and do not always occur."""
    from sklearn.metrics import average_precision_score

    return _over_columns(average_precision_score, outputs, targets)


def _labels(
    outputs: torch.Tensor, targets: torch.Tensor
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Targets and predictions, and how scikit-learn averages over them: class 1 of two classes, otherwise all classes."""
    # A single label in a column of its own is a binary target.
    if targets.dim() == 2 and targets.shape[1] == 1 and outputs.shape == targets.shape:
        outputs = outputs[:, 0]
        targets = targets[:, 0]
    predictions = predicted(outputs, targets)
    if targets.dim() > 1 and outputs.shape == targets.shape:
        return targets.numpy().astype(int), predictions.numpy().astype(int), {"average": "macro"}
    is_counted = counted(targets)
    is_binary = outputs.shape[-1] <= 2 or outputs.shape == targets.shape
    return (
        targets[is_counted].numpy().astype(int),
        predictions[is_counted].numpy().astype(int),
        {"average": "binary" if is_binary else "macro"},
    )


def f1(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """F1 score: of class 1 of two classes, otherwise the mean over the classes or labels that occur."""
    from sklearn.metrics import f1_score

    true_labels, predictions, average = _labels(outputs, targets)
    return float(f1_score(true_labels, predictions, zero_division=0.0, **average))


def recalls(outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
    """Share of right predictions in each class that occurs, by the class."""
    is_counted = counted(targets)
    predictions = predicted(outputs, targets)[is_counted]
    classes = targets[is_counted]
    recall_of_class: dict[str, float] = {}
    # Classes that do not occur have no recall.
    for label in classes.unique():
        is_right = predictions[classes == label] == label
        recall_of_class[str(int(label))] = float(is_right.double().mean())
    return recall_of_class


def balanced_accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Mean over the classes that occur of the share of right predictions in each; NaN without a target."""
    recall_of_class = recalls(outputs, targets)
    if not recall_of_class:
        return math.nan
    return math.fsum(recall_of_class.values()) / len(recall_of_class)


def r2(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Coefficient of determination R2, the mean over the outputs whose targets differ; NaN if those of none do."""
    return pooled([r2_sums(outputs, targets)])


def r2_sums(outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, list[float]]:
    """The sums from which R2 follows, see ``ErrorSums``."""
    true_values = _columns(targets.double(), len(targets))
    predictions = _columns(outputs.double(), len(targets))
    errors = np.square(true_values - predictions).sum(0)
    # The rounded mean of equal targets may be another number: their spread would then not be 0.
    are_equal = true_values.min(0) == true_values.max(0)
    means = np.where(are_equal, true_values[0], true_values.mean(0))
    squares = np.square(true_values - means).sum(0)
    return {
        "rows": [len(true_values)],
        "errors": errors.tolist(),
        "means": means.tolist(),
        "squares": squares.tolist(),
    }


# ----------------------------------------------------------------------------------------------------
# Metrics and objectives.


def unchanged(mean: float) -> float:
    """The mean over predictions itself."""
    return mean


def exponential(mean: float) -> float:
    """Exp of the mean, bounded so that it is finite."""
    return math.exp(min(mean, 700.0))


@public
@dataclass(frozen=True)
class Metric:
    """A number that says how good a model's predictions are.

    Attributes:
        function: Function of a client's (outputs, targets) on the CPU. It returns a number, numbers
            by name, or one value per prediction, which are averaged.
        better: Whether a ``"greater"`` or a ``"smaller"`` value is better.
        whole: Whether the function needs a client's whole test set. If not, it is called with parts
            of it, and returns one value per prediction.
        final: Function of the mean over predictions, such as the root for a root mean squared
            error.
        share: Whether its values are 0 to 1, as an accuracy; FedFA weighs clients by such a main
            metric alone, and reports know the noise of one with ``whole=False`` and ``better="greater"``.
        sums: Function of a client's (outputs, targets) that returns ``ErrorSums``, if the metric of
            several clients' test rows together follows from these; reports then show this in place
            of a mean over clients. None for a metric that is averaged over clients. The root of a
            mean (``final=math.sqrt``) needs no function.

    Raises:
        SettingError: ``better`` is another word.
    """

    function: Callable[[torch.Tensor, torch.Tensor], Any]
    better: Better = "greater"
    whole: bool = True
    final: Callable[[float], float] = unchanged
    share: bool = True
    sums: Callable[[torch.Tensor, torch.Tensor], ErrorSums] | None = None

    def __post_init__(self) -> None:
        for field_name in ("function", "final"):
            function = getattr(self, field_name)
            if not callable(function):
                raise SettingError(
                    f"a metric's {field_name} must be a function, got {brief(function)}"
                )
        for field_name in ("whole", "share"):
            is_true = coerced(f"a metric's {field_name}", getattr(self, field_name), bool)
            object.__setattr__(self, field_name, is_true)
        if self.better not in ("greater", "smaller"):
            raise SettingError(
                f'a metric\'s better must be "greater" or "smaller", got {self.better!r}'
            )

    @property
    def averages_shares(self) -> bool:
        """Whether it is a mean over predictions of numbers from 0 to 1: then test sizes tell its noise."""
        is_mean = not self.whole and self.final is unchanged
        return is_mean and self.share and self.better == "greater"

    def of(self, outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
        """Return the metric of a client's whole test set.

        Args:
            outputs: The outputs for all examples.
            targets: Their targets.

        Returns:
            The number with the empty suffix, or one for each name that the function gives, by its
            suffix.
        """
        # A model that has diverged has no metric.
        if isinstance(outputs, torch.Tensor) and not outputs.isfinite().all():
            return {"": math.nan}
        returned = self.function(outputs, targets)
        if isinstance(returned, Mapping):
            return {f"/{name}": float(value) for name, value in returned.items()}
        values = torch.as_tensor(returned, dtype=torch.float64)
        return {"": self.final(float(values.mean() if values.numel() else math.nan))}

    def error_sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> ErrorSums:
        """Return the sums of a client's whole test set, if the metric is pooled over clients; otherwise none.

        Args:
            outputs: The outputs for all examples.
            targets: Their targets.
        """
        if not len(targets):
            return {}
        if self.sums is not None:
            return self.sums(outputs, targets)
        # The root of a mean follows from the sum of the errors and their number.
        if self.final is not math.sqrt:
            return {}
        errors = self.function(outputs, targets)
        return {"rows": [errors.numel()], "errors": [float(errors.sum(dtype=torch.float64))]}


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "accuracy": Metric(accuracy, whole=False),
        "AUROC": Metric(auroc),
        "AveragePrecision": Metric(average_precision),
        "BalancedAccuracy": Metric(balanced_accuracy),
        "ExactMatch": Metric(exact_match, whole=False),
        "F1Score": Metric(f1),
        "MeanAbsoluteError": Metric(absolute_errors, "smaller", whole=False),
        "MeanSquaredError": Metric(squared_errors, "smaller", whole=False),
        "RootMeanSquaredError": Metric(squared_errors, "smaller", whole=False, final=math.sqrt),
        "R2Score": Metric(r2, share=False, sums=r2_sums),
        "Recall": Metric(recalls),
        "perplexity": Metric(log_loss, "smaller", whole=False, final=exponential),
    }
)
"""Metrics by name. ``Recall`` is given for each class."""


def metric(metric_or_function: Any, name: str) -> Metric:
    """Return a metric.

    Args:
        metric_or_function: A :class:`Metric`, a name of :data:`METRICS`, a torchmetrics object (its
            ``higher_is_better`` is used), or a function of (outputs, targets).
        name: Its name, for messages.

    Returns:
        The metric.

    Raises:
        SettingError: ``given`` is none of these.
    """
    if isinstance(metric_or_function, Metric):
        return metric_or_function
    if isinstance(metric_or_function, str):
        return _metric_by_name(metric_or_function)
    # A class of torchmetrics must be called, to have its settings.
    if isinstance(metric_or_function, type):
        raise SettingError(
            f"metric {name!r} must be an object or a function, "
            f"got the class {metric_or_function.__name__}: call it"
        )
    if all(hasattr(metric_or_function, method) for method in ("update", "compute", "reset")):
        is_loss = getattr(metric_or_function, "higher_is_better", None) is False
        return Metric(_Torchmetric(metric_or_function), "smaller" if is_loss else "greater")
    if not callable(metric_or_function):
        allowed = (
            "a function of (outputs, targets), a torchmetrics object, a coterie.Metric or its name"
        )
        raise SettingError(f"metric {name!r} must be {allowed}, got {metric_or_function!r:.60}")
    return Metric(metric_or_function)


@dataclass(frozen=True)
class _Torchmetric:
    """A torchmetrics object as a function of a whole test set."""

    metric: Any

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> Any:
        self.metric.reset()
        self.metric.update(outputs, targets)
        value = self.metric.compute()
        # A tensor of several numbers has one for each class or label.
        if isinstance(value, torch.Tensor) and value.dim():
            return dict(enumerate(value.tolist()))
        return value


def _usual_combine(loss: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """How an ensemble's outputs are combined for a loss: a mean of class probabilities would be wrong for numbers."""
    inner_loss = loss.loss if isinstance(loss, LossOfStandardized) else loss
    # The built-in losses come first: they are known without torch, and commands that read do not
    # load it.
    if inner_loss is cross_entropy:
        return mean_probability
    if inner_loss is binary_cross_entropy:
        return mean_label_probability
    if inner_loss is squared_error or losses.is_of_numbers(inner_loss):
        return mean_output
    return mean_probability


VALIDATION = "validation_"
"""What the name of a validation score begins with; then the metric follows."""


def metric_of(score_name: str) -> str:
    """The metric of a test score or a validation score.

    >>> metric_of("validation_loss"), metric_of("accuracy")
    ('loss', 'accuracy')
    """
    return score_name.removeprefix(VALIDATION)


RESERVED_NAMES = (
    "loss",
    "client",
    "group",
    "round",
    "run",
    "method",
    "seed",
    "adversary",
    "score",
    "metric",
)
"""Names that tables and records have for other numbers."""


@public
@dataclass(frozen=True, kw_only=True)
class Objective:
    """The loss to minimise and the metrics to report.

    Attributes:
        loss: Function of (outputs, targets) that returns the mean loss of the batch.
        metrics: Names of :data:`coterie.METRICS`, or name -> such a name, :class:`coterie.Metric`,
            torchmetrics object or function. A function takes the outputs and targets of a client's whole test
            set.
        main: The metric by which reports, comparisons and ``target`` judge. None takes the first.
        combine: Function of the outputs ``(m, b, ...)`` of m models that returns the outputs of
            their ensemble. By default the mean of class probabilities; for losses of numbers and of
            labels that are known, of outputs and of probabilities.

    Raises:
        SettingError: A metric is unknown, or ``main`` is not among the metrics.

    Example:
        >>> Objective(loss=squared_error, metrics=["R2Score", "MeanAbsoluteError"], combine=mean_output).main
        'R2Score'
    """

    loss: Callable[[Any, Any], torch.Tensor] = cross_entropy
    metrics: Mapping[str, Any] | Sequence[str] = ("accuracy",)
    main: str = ""
    combine: Callable[[torch.Tensor], torch.Tensor] = mean_probability
    named: Mapping[str, Metric] = field(init=False, repr=False, compare=False)
    plain_classes: bool = field(init=False, repr=False, compare=False)
    """Whether the loss is the cross entropy of classes, in any spelling of torch, for outputs ``(b,
    classes)``."""

    def __post_init__(self) -> None:
        for field_name in ("loss", "combine"):
            function = getattr(self, field_name)
            if not callable(function):
                raise SettingError(
                    f"Objective.{field_name} must be a function, got {brief(function)}"
                )
        # A frozen dataclass takes derived fields only through object.__setattr__.
        metrics = self._checked_metrics()
        named = {name: metric(value, name) for name, value in metrics.items()}
        object.__setattr__(self, "plain_classes", self._is_plain_cross_entropy())
        object.__setattr__(self, "named", named)
        object.__setattr__(self, "main", self.main or next(iter(metrics)))
        # The default stands for the usual way of this loss.
        if self.combine is mean_probability:
            object.__setattr__(self, "combine", _usual_combine(self.loss))
        if self.main not in metrics:
            raise SettingError(
                f"the main metric must be one of {', '.join(metrics)}, got {self.main!r}"
            )

    def _checked_metrics(self) -> Mapping[str, Any]:
        """Name -> metric, as the user gave them; raises SettingError for a name that cannot be used."""
        metrics: Any = self.metrics
        if not isinstance(metrics, Iterable):
            allowed = "names of metrics, such as ['AUROC'], or a mapping from names to functions"
            raise SettingError(f"Objective.metrics must be {allowed}, got {brief(metrics)}")
        if not isinstance(metrics, Mapping):
            names = [metrics] if isinstance(metrics, str) else list(metrics)
            metrics = {name: _metric_by_name(name) for name in names}
        # Without a metric there would be nothing by which a run is judged.
        if not metrics:
            raise SettingError(
                "an objective needs at least one metric besides the loss; "
                "metrics are listed in coterie.METRICS"
            )
        for name in metrics:
            if name in RESERVED_NAMES:
                raise SettingError(
                    f"a metric cannot have the name {name!r}, which tables and records use: "
                    "choose another"
                )
        return metrics

    def _is_plain_cross_entropy(self) -> bool:
        """Whether the loss is the cross entropy of classes, Coterie's or torch's."""
        # The built-in losses are known without torch, which commands that read do not load.
        if self.loss is cross_entropy:
            return True
        if any(self.loss is built_in for built_in in _TORCH_FUNCTION_OF_LOSS):
            return False
        return losses.is_plain_cross_entropy(self.loss)

    @property
    def better(self) -> Better:
        """Whether a greater or a smaller value of the main metric is better."""
        return self.named[self.main].better

    @property
    def whole(self) -> bool:
        """Whether a metric needs a client's whole test set."""
        return any(metric.whole for metric in self.named.values())

    @property
    def target_scale(self) -> TargetScale | None:
        """The constants of standardized targets, see ``target_scale``; None for targets as they are."""
        return self.loss.scale if isinstance(self.loss, LossOfStandardized) else None

    def takes_classes(self, targets: Batch) -> bool:
        """Whether the loss is the built-in cross entropy for these targets.

        Torch's own has the classes of a sequence at another place, and takes class probabilities as
        targets, too.
        """
        if self.loss is cross_entropy:
            return True
        is_class_each = (
            isinstance(targets, torch.Tensor)
            and targets.dim() == 1
            and not targets.is_floating_point()
        )
        return is_class_each and self.plain_classes

    def example_losses(
        self,
        outputs: Batch,
        targets: Batch,
        torch_loss: losses.TorchLoss | str | None = "unknown",
    ) -> losses.ExampleLosses:
        """Return the loss of each example, and its weight in the mean loss.

        Args:
            outputs: The outputs for b examples.
            targets: Their targets.
            torch_loss: Which loss of torch the loss is for them, if this is known already.
        """
        if isinstance(self.loss, LossOfStandardized):
            standardized = self.loss.scale.standardized(targets)
            return self._of_standardized(self.loss).example_losses(outputs, standardized)

        # Classes: the mean over the predictions of an example that count, such as those of a
        # sequence without its padding. An example in which none counts has no weight.
        if self.takes_classes(targets):
            flat_losses = torch.nn.functional.cross_entropy(
                outputs.flatten(0, -2), targets.flatten(), reduction="none"
            )
            prediction_losses = flat_losses.view(len(targets), -1)
            is_counted = counted(targets).view(len(targets), -1)
            counts = is_counted.sum(1)
            means = (prediction_losses * is_counted).sum(1) / counts.clamp(min=1)
            return losses.ExampleLosses(means, (counts > 0).float())

        # The other built-in losses: one call has the same values as a call for each example.
        if self.loss in (squared_error, binary_cross_entropy):
            function = getattr(torch.nn.functional, _TORCH_FUNCTION_OF_LOSS[self.loss])
            labels = targets.to(outputs.dtype).view_as(outputs)
            value_losses = function(outputs, labels, reduction="none")
            means = value_losses.flatten(1).mean(1) if len(value_losses) else torch.zeros(0)
            return losses.ExampleLosses(means)

        if isinstance(torch_loss, str):
            torch_loss = losses.torch_loss(self.loss, outputs, targets)
        return losses.example_losses(self.loss, outputs, targets, torch_loss)

    def at_temperatures(self, outputs: Batch, targets: Batch) -> losses.ExampleLosses:
        """Return the loss of each example at each of ``TEMPERATURES`` ``(t, b)``; at 1 alone if the outputs are no logits.

        Args:
            outputs: The outputs for b examples.
            targets: Their targets.
        """
        if isinstance(self.loss, LossOfStandardized):
            standardized = self.loss.scale.standardized(targets)
            return self._of_standardized(self.loss).at_temperatures(outputs, standardized)

        # A loss of torch says itself how its outputs are cooled; of the built-in losses of logits
        # it is known.
        cooled: Callable[[Any, float], Any] = losses.divided
        is_of_logits = self.loss in (cross_entropy, binary_cross_entropy)
        if not is_of_logits and not self.takes_classes(targets):
            torch_loss = losses.torch_loss(self.loss, outputs, targets)
            if torch_loss is None or torch_loss.cooled is None:
                at_one = self.example_losses(outputs, targets, torch_loss)
                return losses.ExampleLosses(at_one.losses[None], at_one.weights)
            if losses.is_torchs(self.loss):
                in_one_call = torch_loss.at_temperatures(TEMPERATURES, size(targets))
                if in_one_call is not None:
                    return in_one_call
            cooled = torch_loss.cooled
        elif outputs.numel() <= MAX_NUMBERS_AT_ONCE:
            return self._at_temperatures_together(outputs, targets)

        losses_at_temperatures = []
        for temperature in TEMPERATURES:
            cooled_outputs = outputs if temperature == 1 else cooled(outputs, temperature)
            losses_at_temperatures.append(self.example_losses(cooled_outputs, targets))
        return losses.ExampleLosses(
            torch.stack([at_temperature.losses for at_temperature in losses_at_temperatures]),
            losses_at_temperatures[0].weights,
        )

    def _at_temperatures_together(
        self, outputs: torch.Tensor, targets: torch.Tensor
    ) -> losses.ExampleLosses:
        """What :meth:`at_temperatures` returns, in one call: the same examples once for each temperature."""
        temperatures = torch.tensor(TEMPERATURES, dtype=outputs.dtype, device=outputs.device)
        cooled_outputs = outputs / temperatures.view(-1, *[1] * outputs.dim())
        repeated_targets = targets.expand(len(TEMPERATURES), *targets.shape)
        example_losses = self.example_losses(
            cooled_outputs.flatten(0, 1), repeated_targets.flatten(0, 1)
        )
        shape = (len(TEMPERATURES), len(outputs))
        weights = example_losses.weights
        return losses.ExampleLosses(
            example_losses.losses.view(shape),
            None if weights is None else weights.view(shape)[0],
        )

    def _of_standardized(self, loss: LossOfStandardized) -> Objective:
        """The objective with the loss of targets that are standardized already."""
        return replace(self, loss=loss.loss)

    def weight(self, outputs: Batch, targets: Batch) -> float | None:
        """Return the sum of the class weights in a batch, by which torch's mean divides; None if the loss has none.

        Args:
            outputs: The outputs for the batch.
            targets: Its targets.
        """
        if self.takes_classes(targets) or self.loss in (squared_error, binary_cross_entropy):
            return None
        torch_loss = losses.torch_loss(self.loss, outputs, targets)
        weights = None if torch_loss is None else torch_loss.weights()
        return None if weights is None else float(weights.sum(dtype=torch.float64))

    def scores(self, totals: Mapping[str, tuple[float, float]]) -> dict[str, float]:
        """Return the loss and each metric from the sums of a test; NaN for a missing one.

        Args:
            totals: Name -> (sum, count) over predictions; for a metric of the whole test set,
                (value, 1).

        Returns:
            Name -> value.
        """
        missing = (math.nan, 1)
        score = {"loss": _mean(totals.get("loss", missing))}
        for name, metric in self.named.items():
            # A metric with several numbers, such as the recall of each class, has a key for each.
            keys = [key for key in totals if key == name or key.startswith(f"{name}/")]
            for key in keys or [name]:
                mean = _mean(totals.get(key, missing))
                score[key] = mean if metric.whole else metric.final(mean)
        return score

    def error_sums(self, totals: Mapping[str, tuple[float, float]]) -> dict[str, float]:
        """Return, of the metrics that are pooled over clients, the sums from which they follow, see ``coterie.pooling``.

        Args:
            totals: As for :meth:`scores`.

        Returns:
            Key -> number.
        """
        sums_by_key = {key: value for key, (value, _) in totals.items() if SIGN in key}
        for name, metric in self.named.items():
            # The root of a mean over rows follows from the sum of squared errors and their number.
            if metric.final is math.sqrt and name in totals and totals[name][1]:
                squared_error_sum, row_count = totals[name]
                sums_by_key |= flat(name, {"rows": [row_count], "errors": [squared_error_sum]})
        return sums_by_key


class Tally:
    """The loss and the metrics of a model on some examples, added up batch by batch.

    Args:
        objective: The loss and the metrics.
    """

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.sums: Sums = {}
        # Outputs and targets of all batches, for the metrics of a whole test set.
        self.kept_batches: list[tuple[Batch, Batch]] = []

    def add(self, outputs: Batch, targets: Batch) -> None:
        """Add the outputs for some examples and their targets."""
        objective = self.objective
        has_diverged = isinstance(outputs, torch.Tensor) and bool(outputs.isnan().any())

        # The mean loss of a batch counts by its predictions, or by their class weights.
        predictions = objective.weight(outputs, targets)
        if predictions is None and isinstance(targets, torch.Tensor):
            predictions = int(counted(targets).sum())
        elif predictions is None:
            predictions = size(targets)
        mean_loss = float(objective.loss(outputs, targets)) if predictions else 0.0
        self._add("loss", mean_loss * predictions if predictions else 0.0, predictions)

        # Metrics are in the unit of the targets.
        if objective.target_scale is not None:
            outputs = objective.target_scale.in_units(outputs)
        for name, metric in objective.named.items():
            if metric.whole:
                continue
            values = metric.function(outputs, targets)
            # The greatest output of several NaN would be a prediction.
            if has_diverged:
                values = torch.full_like(values, math.nan)
            self._add(name, float(values.sum(dtype=torch.float64)), values.numel())
        if objective.whole:
            self.kept_batches.append(
                (mapped(torch.Tensor.cpu, outputs), mapped(torch.Tensor.cpu, targets))
            )

    def result(self) -> Sums:
        """Name -> (sum, count); for metrics of the whole test set, (value, 1). Empty without examples."""
        if not self.kept_batches:
            return self.sums
        # All batches together are the whole test set.
        outputs, targets = (joined(batches) for batches in zip(*self.kept_batches, strict=True))
        for name, metric in self.objective.named.items():
            if metric.whole:
                for suffix, value in metric.of(outputs, targets).items():
                    self.sums[f"{name}{suffix}"] = (value, 1)
            # The sums from which the metric of several clients' rows together follows.
            if metric.sums is not None:
                for key, value in flat(name, metric.sums(outputs, targets)).items():
                    self.sums[key] = (value, 1)
        return self.sums

    def _add(self, name: str, value: float, count: float) -> None:
        sum_before, count_before = self.sums.get(name, (0.0, 0))
        self.sums[name] = (sum_before + value, count_before + count)


def _metric_by_name(name: Any) -> Metric:
    """The metric of a name; raises SettingError if there is none."""
    if name in METRICS:
        return METRICS[name]
    # Another case of the letters, or the nearest spelling.
    hint = nearest(str(name), METRICS)
    for known_name in METRICS:
        if known_name.lower() == str(name).lower():
            hint = f"; did you mean {known_name}?"
            break
    raise SettingError(f"there is no metric {name!r}{hint}{known_list(METRICS)}")


def _mean(total: tuple[float, float]) -> float:
    return total[0] / total[1] if total[1] else math.nan


CLASSIFICATION = Objective()
"""Class labels: cross entropy and accuracy."""

REGRESSION = Objective(
    loss=squared_error,
    metrics=("MeanAbsoluteError", "RootMeanSquaredError", "R2Score"),
    combine=mean_output,
)
"""Numbers as targets: squared error and the mean absolute error, whose mean over clients can be
read even where each has one test row. The root mean squared error and R2 are those of the rows of
all clients together, see ``coterie.pooling``."""

MULTILABEL = Objective(
    loss=binary_cross_entropy,
    metrics=("AveragePrecision", "AUROC", "ExactMatch"),
    combine=mean_label_probability,
)
"""Several labels of 0 and 1 for each example: binary cross entropy and average precision."""
