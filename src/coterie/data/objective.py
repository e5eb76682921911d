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
from coterie.settings import SettingError, brief, coerced, nearest
from coterie.settings.calls import public

Sums = dict[str, tuple[float, float]]
"""Name -> (sum, count) over predictions; of a loss with class weights, the sums of weighted losses
and of weights."""

Better = Literal["greater", "smaller"]

TEMPERATURES = tuple(2 ** (step / 2) for step in range(13))
"""The temperatures 1 to 64 by which logits are divided where models are compared by their losses.
"""

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


_EACH: Mapping[Any, str] = {
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


COMBINED = {one.__name__: one for one in (mean_probability, mean_label_probability, mean_output)}
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
    return (
        torch.ones_like(targets, dtype=torch.bool)
        if targets.is_floating_point()
        else targets != IGNORED
    )


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """1.0 where the prediction is the target, otherwise 0.0, for each prediction."""
    return (predicted(outputs, targets) == targets)[counted(targets)].float()


def exact_match(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """1.0 for each example ``(b,)`` of which all predictions are right, such as a whole sequence."""
    right = (predicted(outputs, targets) == targets) | ~counted(targets)
    return right.flatten(1).all(1).float() if right.dim() > 1 else right.float()


def log_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy in nats of each prediction."""
    each = torch.nn.functional.cross_entropy(
        outputs.flatten(0, -2), targets.flatten(), reduction="none"
    )
    return each[counted(targets).flatten()]


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
    if outputs.shape == targets.shape or outputs.shape == (
        *targets.shape,
        1,
    ):  # binary, or several labels
        return _columns(outputs.double(), len(targets)), _columns(targets, len(targets))
    classes, kept = targets.flatten(), counted(targets).flatten()
    logits, classes = outputs.double().flatten(0, -2)[kept], classes[kept]
    if logits.shape[1] == 2:
        odds, labels = logits[:, 1:] - logits[:, :1], classes[:, None]
    else:
        odds, labels = _log_odds(logits), torch.nn.functional.one_hot(classes, logits.shape[1])
    rounding = TIED * max(1.0, float(logits.abs().max())) if logits.numel() else 0.0
    return _ranked(odds.numpy(), rounding), labels.numpy()


TIED = 1e-12
"""Log odds that differ by less, relative to the greatest logit or to 1, are equal: they differ by
rounding."""


def _log_odds(logits: torch.Tensor) -> torch.Tensor:
    """The logarithm of ``p / (1 - p)`` of each class, ``(b, m)``, also of chances that are all but 0 or 1."""
    log_chances = logits.log_softmax(1)
    odds = log_chances - torch.log(-torch.expm1(log_chances))
    # The chance of an example's first class may be so near 1 that 1 - p is the sum of the others'
    # chances and no difference.
    first = logits.argmax(1, keepdim=True)
    others = logits.scatter(1, first, -math.inf).logsumexp(1, keepdim=True)
    return odds.scatter(1, first, logits.gather(1, first) - others)


def _ranked(scores: np.ndarray, rounding: float) -> np.ndarray:
    """Ranks of the scores ``(b, m)`` in each column; scores that differ from the next lower one by rounding have its rank."""
    order = np.argsort(scores, axis=0, kind="stable")
    ordered = np.take_along_axis(scores, order, axis=0)
    higher = np.zeros(scores.shape)
    higher[1:] = ordered[1:] - ordered[:-1] > rounding
    ranks = np.empty(scores.shape)
    np.put_along_axis(ranks, order, higher.cumsum(axis=0), axis=0)
    return ranks


def _columns(values: torch.Tensor, rows: int) -> np.ndarray:
    array: np.ndarray = values.reshape(rows, -1).numpy()
    return array


def _over_columns(
    score: Callable[..., float], outputs: torch.Tensor, targets: torch.Tensor
) -> float:
    """Mean of ``score`` over the columns in which both labels occur; NaN if there is none."""
    scores, labels = _scores(outputs, targets)
    both = [i for i in range(labels.shape[1]) if 0 < labels[:, i].sum() < len(labels)]
    return float(np.mean([score(labels[:, i], scores[:, i]) for i in both])) if both else math.nan


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
    if (
        targets.dim() == 2 and targets.shape[1] == 1 and outputs.shape == targets.shape
    ):  # a single label
        outputs, targets = outputs[:, 0], targets[:, 0]
    guesses, kept = predicted(outputs, targets), counted(targets)
    if targets.dim() > 1 and outputs.shape == targets.shape:
        return targets.numpy().astype(int), guesses.numpy().astype(int), {"average": "macro"}
    two = outputs.shape[-1] <= 2 or outputs.shape == targets.shape
    average = {"average": "binary"} if two else {"average": "macro"}
    return targets[kept].numpy().astype(int), guesses[kept].numpy().astype(int), average


def f1(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """F1 score: of class 1 of two classes, otherwise the mean over the classes or labels that occur."""
    from sklearn.metrics import f1_score

    true, guessed, average = _labels(outputs, targets)
    return float(f1_score(true, guessed, zero_division=0.0, **average))


def recalls(outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
    """Share of right predictions in each class that occurs, by the class."""
    guessed, true = predicted(outputs, targets)[counted(targets)], targets[counted(targets)]
    return {str(int(c)): float((guessed[true == c] == c).double().mean()) for c in true.unique()}


def balanced_accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Mean over the classes that occur of the share of right predictions in each; NaN without a target."""
    found = recalls(outputs, targets)
    return math.fsum(found.values()) / len(found) if found else math.nan


def r2(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Coefficient of determination R2, the mean over the outputs whose targets differ; NaN if those of none do."""
    return pooled([r2_sums(outputs, targets)])


def r2_sums(outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, list[float]]:
    """The sums from which R2 follows, see ``ErrorSums``."""
    true, guessed = (_columns(values.double(), len(targets)) for values in (targets, outputs))
    errors = np.square(true - guessed).sum(0)
    # The rounded mean of equal targets may be another number: their spread would then not be 0.
    equal = true.min(0) == true.max(0)
    means = np.where(equal, true[0], true.mean(0))
    squares = np.square(true - means).sum(0)
    return {
        "rows": [len(true)],
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
        for name in ("function", "final"):
            if not callable(getattr(self, name)):
                raise SettingError(
                    f"a metric's {name} must be a function, got {brief(getattr(self, name))}"
                )
        for name in ("whole", "share"):
            object.__setattr__(self, name, coerced(f"a metric's {name}", getattr(self, name), bool))
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
        if isinstance(outputs, torch.Tensor) and not outputs.isfinite().all():
            return {"": math.nan}  # the model has diverged
        found = self.function(outputs, targets)
        if isinstance(found, Mapping):
            return {f"/{name}": float(value) for name, value in found.items()}
        values = torch.as_tensor(found, dtype=torch.float64)
        return {"": self.final(float(values.mean() if values.numel() else math.nan))}


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


def metric(given: Any, name: str) -> Metric:
    """Return a metric.

    Args:
        given: A :class:`Metric`, a torchmetrics object (its ``higher_is_better`` is used), or a
            function of (outputs, targets).
        name: Its name, for messages.

    Returns:
        The metric.

    Raises:
        SettingError: ``given`` is none of these.
    """
    if isinstance(given, Metric):
        return given
    if isinstance(given, type):
        raise SettingError(
            f"metric {name!r} must be an object or a function, got the class {given.__name__}: call it"
        )
    if all(hasattr(given, part) for part in ("update", "compute", "reset")):
        better: Better = (
            "smaller" if getattr(given, "higher_is_better", None) is False else "greater"
        )
        return Metric(_Torchmetric(given), better)
    if not callable(given):
        known = "a function of (outputs, targets), a torchmetrics object or a coterie.Metric"
        raise SettingError(f"metric {name!r} must be {known}, got {given!r:.60}")
    return Metric(given)


@dataclass(frozen=True)
class _Torchmetric:
    """A torchmetrics object as a function of a whole test set."""

    metric: Any

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> Any:
        self.metric.reset()
        self.metric.update(outputs, targets)
        found = self.metric.compute()
        return (
            dict(enumerate(found.tolist()))
            if isinstance(found, torch.Tensor) and found.dim()
            else found
        )


def _usual_combine(loss: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """How an ensemble's outputs are combined for a loss: a mean of class probabilities would be wrong for numbers."""
    plain = loss.loss if isinstance(loss, LossOfStandardized) else loss
    if plain is cross_entropy:
        return mean_probability  # without torch, which reading commands do without
    if plain is binary_cross_entropy:
        return mean_label_probability
    if plain is squared_error or losses.is_of_numbers(plain):
        return mean_output
    return mean_probability


RESERVED = (
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
        metrics: Names of :data:`coterie.METRICS`, or name -> :class:`coterie.Metric`, torchmetrics
            object or function. A function takes the outputs and targets of a client's whole test
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
        for name in ("loss", "combine"):
            if not callable(getattr(self, name)):
                raise SettingError(
                    f"Objective.{name} must be a function, got {brief(getattr(self, name))}"
                )
        given_metrics: Any = self.metrics
        if not isinstance(given_metrics, Iterable):
            forms = "names of metrics, such as ['AUROC'], or a mapping from names to functions"
            raise SettingError(f"Objective.metrics must be {forms}, got {brief(given_metrics)}")
        given = (
            self.metrics
            if isinstance(self.metrics, Mapping)
            else {name: _known(name) for name in _names(self.metrics)}
        )
        if not given:
            raise SettingError(
                "an objective needs at least one metric besides the loss; metrics are listed in coterie.METRICS"
            )
        if taken := [name for name in given if name in RESERVED]:
            raise SettingError(
                f"a metric cannot have the name {taken[0]!r}, which tables and records use: choose another"
            )
        built_in = any(
            self.loss is known for known in _EACH
        )  # known without torch, which reading commands do without
        plain = self.loss is cross_entropy or (
            not built_in and losses.is_plain_cross_entropy(self.loss)
        )
        object.__setattr__(self, "plain_classes", plain)
        object.__setattr__(
            self, "named", {name: metric(value, name) for name, value in given.items()}
        )
        object.__setattr__(self, "main", self.main or next(iter(given)))
        if self.combine is mean_probability:
            object.__setattr__(self, "combine", _usual_combine(self.loss))
        if self.main not in given:
            raise SettingError(
                f"the main metric must be one of {', '.join(given)}, got {self.main!r}"
            )

    @property
    def better(self) -> Better:
        """Whether a greater or a smaller value of the main metric is better."""
        return self.named[self.main].better

    @property
    def whole(self) -> bool:
        """Whether a metric needs a client's whole test set."""
        return any(one.whole for one in self.named.values())

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
        one_each = (
            isinstance(targets, torch.Tensor)
            and targets.dim() == 1
            and not targets.is_floating_point()
        )
        return one_each and self.plain_classes

    def each(
        self, outputs: Batch, targets: Batch, known: losses.TorchLoss | str | None = "unknown"
    ) -> losses.Each:
        """Return the loss of each example, and its weight in the mean loss.

        Args:
            outputs: The outputs for b examples.
            targets: Their targets.
            known: Which loss of torch the loss is for them, if this is known already.
        """
        if isinstance(self.loss, LossOfStandardized):
            return self._of_standardized(self.loss).each(
                outputs, self.loss.scale.standardized(targets)
            )
        if self.takes_classes(targets):
            flat = torch.nn.functional.cross_entropy(
                outputs.flatten(0, -2), targets.flatten(), reduction="none"
            )
            several, counts = flat.view(len(targets), -1), counted(targets).view(len(targets), -1)
            numbers = counts.sum(1)
            return losses.Each(
                (several * counts).sum(1) / numbers.clamp(min=1), (numbers > 0).float()
            )
        if self.loss in (
            squared_error,
            binary_cross_entropy,
        ):  # in one call: the same as example by example
            function = getattr(torch.nn.functional, _EACH[self.loss])
            flat = function(outputs, targets.to(outputs.dtype).view_as(outputs), reduction="none")
            return losses.Each(flat.flatten(1).mean(1) if len(flat) else torch.zeros(0))
        if isinstance(known, str):
            known = losses.torch_loss(self.loss, outputs, targets)
        return losses.each(self.loss, outputs, targets, known)

    def at_temperatures(self, outputs: Batch, targets: Batch) -> losses.Each:
        """Return the loss of each example at each of ``TEMPERATURES`` ``(t, b)``; at 1 alone if the outputs are no logits.

        Args:
            outputs: The outputs for b examples.
            targets: Their targets.
        """
        if isinstance(self.loss, LossOfStandardized):
            return self._of_standardized(self.loss).at_temperatures(
                outputs, self.loss.scale.standardized(targets)
            )
        cooled: Callable[[Any, float], Any] = losses.divided
        if self.loss not in (cross_entropy, binary_cross_entropy) and not self.takes_classes(
            targets
        ):
            known = losses.torch_loss(self.loss, outputs, targets)
            if known is None or known.cooled is None:
                found = self.each(outputs, targets, known)
                return losses.Each(found.losses[None], found.weights)
            together = (
                known.at_temperatures(TEMPERATURES, size(targets))
                if losses.is_torchs(self.loss)
                else None
            )
            if together is not None:
                return together
            cooled = known.cooled
        each = [self.each(outputs if t == 1 else cooled(outputs, t), targets) for t in TEMPERATURES]
        return losses.Each(torch.stack([one.losses for one in each]), each[0].weights)

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
        known = losses.torch_loss(self.loss, outputs, targets)
        weights = None if known is None else known.weights()
        return None if weights is None else float(weights.sum(dtype=torch.float64))

    def scores(self, totals: Mapping[str, tuple[float, float]]) -> dict[str, float]:
        """Return the loss and each metric from the sums of a test; NaN for a missing one.

        Args:
            totals: Name -> (sum, count) over predictions; for a metric of the whole test set,
                (value, 1).

        Returns:
            Name -> value.
        """
        nothing = (math.nan, 1)
        score = {"loss": _mean(totals.get("loss", nothing))}
        for name, one in self.named.items():
            parts = [part for part in totals if part == name or part.startswith(f"{name}/")]
            for part in parts or [name]:
                mean = _mean(totals.get(part, nothing))
                score[part] = mean if one.whole else one.final(mean)
        return score

    def error_sums(self, totals: Mapping[str, tuple[float, float]]) -> dict[str, float]:
        """Return, of the metrics that are pooled over clients, the sums from which they follow, see ``coterie.pooling``.

        Args:
            totals: As for :meth:`scores`.

        Returns:
            Key -> number.
        """
        found = {key: value for key, (value, _) in totals.items() if SIGN in key}
        for name, one in self.named.items():
            if one.final is math.sqrt and name in totals and totals[name][1]:
                total, count = totals[name]
                found |= flat(name, {"rows": [count], "errors": [total]})
        return found


class Tally:
    """The loss and the metrics of a model on some examples, added up batch by batch.

    Args:
        objective: The loss and the metrics.
    """

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.sums: Sums = {}
        self.kept: list[tuple[Batch, Batch]] = []

    def add(self, outputs: Batch, targets: Batch) -> None:
        """Add the outputs for some examples and their targets."""
        objective, diverged = (
            self.objective,
            isinstance(outputs, torch.Tensor) and bool(outputs.isnan().any()),
        )
        predictions = objective.weight(outputs, targets)
        if predictions is None:
            predictions = (
                int(counted(targets).sum()) if isinstance(targets, torch.Tensor) else size(targets)
            )
        self._add(
            "loss",
            float(objective.loss(outputs, targets)) * predictions if predictions else 0.0,
            predictions,
        )
        if objective.target_scale is not None:  # metrics are in the unit of the targets
            outputs = objective.target_scale.in_units(outputs)
        for name, one in objective.named.items():
            if not one.whole:
                values = one.function(outputs, targets)
                if diverged:  # the greatest output of several NaN would be a prediction
                    values = torch.full_like(values, math.nan)
                self._add(name, float(values.sum(dtype=torch.float64)), values.numel())
        if objective.whole:
            self.kept.append((mapped(torch.Tensor.cpu, outputs), mapped(torch.Tensor.cpu, targets)))

    def result(self) -> Sums:
        """Name -> (sum, count); for metrics of the whole test set, (value, 1). Empty without examples."""
        if self.kept:
            outputs, targets = (joined(parts) for parts in zip(*self.kept, strict=True))
            for name, one in self.objective.named.items():
                if one.whole:
                    self.sums |= {
                        f"{name}{part}": (value, 1)
                        for part, value in one.of(outputs, targets).items()
                    }
                if one.sums is not None:
                    self.sums |= {
                        key: (value, 1)
                        for key, value in flat(name, one.sums(outputs, targets)).items()
                    }
        return self.sums

    def _add(self, name: str, value: float, count: float) -> None:
        before = self.sums.get(name, (0.0, 0))
        self.sums[name] = (before[0] + value, before[1] + count)


def _mean(total: tuple[float, float]) -> float:
    return total[0] / total[1] if total[1] else math.nan


def _names(given: Any) -> Sequence[str]:
    return [given] if isinstance(given, str) else list(given)


def _known(name: Any) -> Metric:
    if name not in METRICS:
        alike = [known for known in METRICS if known.lower() == str(name).lower()]
        hint = f"; did you mean {alike[0]}?" if alike else nearest(str(name), METRICS)
        raise SettingError(f"there is no metric {name!r}{hint} (known: {', '.join(METRICS)})")
    return METRICS[name]


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
