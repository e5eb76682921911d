"""A group for a site that took no part in training, from an export and the site's rows alone: ``coterie place``.

With labels, the site is placed by the losses of the groups' models on its rows; without, by its
inputs and the models' embeddings and outputs. :mod:`coterie.runs.group_profiles` has the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from coterie.data.batches import rows
from coterie.notebook.tables import frame
from coterie.records.codec import DamagedError
from coterie.runs.export import MODELS_FILE, PLACEMENT_FILE
from coterie.runs.group_profiles import GroupProfiles
from coterie.runs.loading import load, read_document, read_model
from coterie.runs.predicting import outputs_of
from coterie.runs.served_facts import (
    MIN_PLACING_ROWS,
    constant_losses,
    probability_of_gain,
    profiles_of,
    standard_error,
)
from coterie.runs.site_moments import RowDescription, moments_of, with_spread
from coterie.runs.site_rows import SiteRows, read_rows
from coterie.settings import UserError
from coterie.settings.calls import public
from coterie.training.outputs import CLASS_LOGITS, row_losses

NONE_OF_THESE = "none of these"
"""What a site is that is like the clients of no group."""

SURE = 0.95
"""The probability from which on a site's group is called sure."""

MIN_EVIDENCE = 3.0
"""How many times likelier a site's rows are in its group than elsewhere, if they tell it apart: *positive*
evidence of Kass and Raftery (JASA 90, 1995)."""


@public
@dataclass(frozen=True)
class Placement:
    """The groups that a site may be of.

    Attributes:
        groups: For each group a table: ``group``, ``clients`` (how many trained in it),
            ``probability`` and, with labels, ``loss`` and ``standard_error`` of its model on the
            site's rows and ``own_loss``, the mean over its own clients.
        none: The probability that the site is like the clients of no group.
        rows: How many rows of the site were used.
        source: ``"labels"`` or ``"inputs"``.
        accuracy: Share of the training clients that come into their own group when each is placed
            without itself, with all its rows.
        constant_loss: Loss of a constant prediction on the site's rows; None if there are no
            classes or no labels.
        cautions: Sentences on what is unusual in the rows, see :class:`coterie.runs.predicting.Predictions`.
    """

    groups: list[dict[str, Any]]
    none: float
    rows: int
    source: str
    accuracy: float
    constant_loss: float | None
    cautions: tuple[str, ...] = ()

    @property
    def best(self) -> int | None:
        """The likeliest group; None if none of them is likelier than any."""
        likeliest = self._likeliest
        return None if self.none > likeliest["probability"] else int(likeliest["group"])

    @property
    def _likeliest(self) -> dict[str, Any]:
        """The entry of the group with the greatest probability."""
        return max(self.groups, key=lambda entry: entry["probability"])

    @property
    def group_to_use(self) -> int | None:
        """The group whose model the site should use; None for the default model of the export.

        It is the likeliest group. It is None if *none of these* is likelier, and if nothing tells the
        groups apart: neither the training clients, which are placed no better than by always naming
        the group with the most clients, nor this site, whose rows are not three times
        as likely in its group as in the others.
        """
        if self._clients_tell_apart or self._site_tells_apart:
            return self.best
        return None

    @property
    def _clients_tell_apart(self) -> bool:
        """Whether the training clients are placed better than by always naming the largest group."""
        num_clients = [entry["clients"] for entry in self.groups]
        return self.accuracy > max(num_clients) / sum(num_clients)

    @property
    def _site_tells_apart(self) -> bool:
        """Whether the site's rows make its likeliest group much likelier than it was before any row."""
        likeliest = self._likeliest
        probability = likeliest["probability"]
        if probability >= SURE:
            return True
        # Odds before any row: as many as its clients, against all others and one for none of these.
        num_elsewhere = sum(entry["clients"] for entry in self.groups) - likeliest["clients"] + 1
        prior_odds = likeliest["clients"] / num_elsewhere
        return bool(probability / (1 - probability) >= MIN_EVIDENCE * prior_odds)

    def to_pandas(self) -> Any:
        """Return a pandas data frame with a row for each group, and one for none of these.

        Raises:
            UserError: pandas is not installed.
        """
        return frame([*self.groups, {"group": NONE_OF_THESE, "probability": self.none}])

    def __str__(self) -> str:
        # A table with a row for each group.
        lines = [
            "group          probability   clients"
            + (
                "   loss of its model"
                if self.constant_loss is not None or self.source == "labels"
                else ""
            )
        ]
        for entry in self.groups:
            line = f"{entry['group']!s:<13}  {entry['probability']:>11.3f}   {entry['clients']:>7}"
            if "loss" in entry:
                line += (
                    f"   {entry['loss']:.3f} ± {entry['standard_error']:.3f}"
                    f" (its own clients: {entry['own_loss']:.3f})"
                )
            lines.append(line)
        lines.append(f"{NONE_OF_THESE:<13}  {self.none:>11.3f}")
        lines += ["", self.verdict()]
        return "\n".join(lines)

    def verdict(self) -> str:
        """Return the result in words."""
        by = "its labels" if self.source == "labels" else "its inputs, without labels"
        of_rows = f"{self.rows} row{'' if self.rows == 1 else 's'}"
        trust = f"This finds the own group of {self.accuracy:.0%} of the training clients, each left out in turn."
        if self.best is None:
            return (
                f"By {by} ({of_rows}), the site is most likely like the clients of no group: train with it, "
                f"or use no model of this export.\n{trust}"
            )
        if self._likeliest["probability"] >= SURE:
            return f"By {by} ({of_rows}), the site is of group {self.best}.{self._use()}\n{trust}"
        if self.source == "inputs" and self.group_to_use is None and len(self.groups) > 1:
            return f"By {by} ({of_rows}), groups cannot be told apart here: use labelled rows.\n{trust}"
        advice = "more labelled rows" if self.source == "labels" else "some labelled rows"
        return f"By {by} ({of_rows}), group {self.best} is the likeliest, but not sure: use {advice}.{self._use()}\n{trust}"

    def _use(self) -> str:
        """A sentence if the likeliest group's model is no better for the site than a constant; else empty."""
        likeliest = self._likeliest
        if self.constant_loss is None or likeliest["loss"] < self.constant_loss:
            return ""
        losses = f"loss {likeliest['loss']:.3f} against {self.constant_loss:.3f}"
        return f" Its model is no better on these rows than a constant prediction ({losses})."


@public
def place(
    export: Path | str,
    file: Path | str,
    *,
    labels: str | Sequence[str] | None = None,
    model: Callable[[], nn.Module] | None = None,
    secret: int | None = None,
    trust_code: bool = False,
) -> Placement:
    """Find the group of a site that took no part in training. No other site's data are needed.

    Args:
        export: The export, as :func:`coterie.save` has written it.
        file: The site's rows, see :func:`coterie.predict`.
        labels: The column with the labels, or several, or of an .npz file the array; rows without a
            label are left out. None to place the site by its inputs.
        model: See :func:`coterie.load`.
        secret: See :func:`coterie.load`.
        trust_code: See :func:`coterie.load`.

    Returns:
        The probability of each group, and of none of these.

    Raises:
        UserError: The export cannot place sites, or the file has other columns or labels.
    """
    folder = Path(export)
    document = read_document(folder)
    source = "inputs" if labels is None else "labels"
    facts = document["placement"] or {}
    if source not in facts:
        reason = document["without_data"]
        if not reason and labels is None:
            reason = "its clients' inputs are no arrays of numbers, or are too few; give labels"
        elif not reason:
            reason = "its clients' losses are not known, or a group has no model as a whole"
        raise UserError(f"{folder} cannot place a site by {source}: {reason}")
    label_names = None if labels is None else [labels] if isinstance(labels, str) else list(labels)
    site_rows = read_rows(Path(file), document, label_names)
    nets = [
        load(folder, group=group, model=model, secret=secret, trust_code=trust_code)
        for group in range(len(document["group_models"]))
    ]
    try:
        tensors = read_model(folder, PLACEMENT_FILE, document)
        profiles = profiles_of(facts, tensors, source)
        if source == "labels":
            temperatures = [float(temperature) for temperature in facts["temperatures"]]
            class_shares = list(map(float, facts.get("class_shares", ())))
            # An export of an earlier version does not say this of its clients.
            unknown = [0.0] * len(nets)
            constant_is_better = list(map(float, facts.get("constant_is_better", unknown)))
            return _by_labels(
                document["outputs"],
                nets,
                temperatures,
                class_shares,
                constant_is_better,
                profiles,
                site_rows,
                str(file),
            )
        description = RowDescription(
            tensors["row_mean"], tensors["row_components"], bool(facts["has_inputs"])
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DamagedError(f"{folder / MODELS_FILE} is damaged ({error})") from error
    return _by_inputs(nets, description, profiles, site_rows, str(file))


def _by_labels(
    kind: str,
    nets: Sequence[nn.Module],
    temperatures: Sequence[float],
    class_shares: Sequence[float],
    constant_is_better: Sequence[float],
    profiles: GroupProfiles,
    site_rows: SiteRows,
    file: str,
) -> Placement:
    """The placement of a site by the losses of the groups' models."""
    assert site_rows.targets is not None
    inputs = rows(site_rows.inputs, site_rows.labelled)
    columns = []
    for net, temperature in zip(nets, temperatures, strict=True):
        outputs = outputs_of(net, inputs, file)
        if kind != CLASS_LOGITS and site_rows.targets.numel() != outputs.numel():
            raise UserError(
                f"{file} has {site_rows.targets.shape[1]} labels per row, and the model predicts {outputs.shape[1]}"
            )
        losses = row_losses(kind, outputs, site_rows.targets, temperature)
        columns.append(losses.double().numpy())
    losses_of_rows = np.stack(columns, 1)
    probabilities = profiles.probabilities(moments_of(losses_of_rows))
    # A group whose model is worse than a constant prediction is none for the site, as far as this is
    # unusual among the group's own clients.
    constant_loss = None
    if kind == CLASS_LOGITS and class_shares:
        constants = constant_losses(site_rows.targets.numpy(), class_shares)
        constant_loss = float(constants.mean())
        for group in range(len(nets)):
            spread = float(profiles.within[group, group]) ** 0.5
            is_better = probability_of_gain(losses_of_rows[:, group], constants, spread)
            kept_share = is_better + (1 - is_better) * constant_is_better[group]
            probabilities[-1] += probabilities[group] * (1 - kept_share)
            probabilities[group] *= kept_share
    entries = []
    for group in range(len(nets)):
        spread = float(profiles.within[group, group]) ** 0.5
        entries.append(
            {
                "group": group,
                "clients": int(profiles.num_clients[group]),
                "probability": float(probabilities[group]),
                "loss": float(losses_of_rows[:, group].mean()),
                "standard_error": standard_error(losses_of_rows[:, group], spread),
                "own_loss": float(profiles.centres[group, group]),
            }
        )
    return Placement(
        entries,
        float(probabilities[-1]),
        len(inputs),
        "labels",
        profiles.accuracy,
        constant_loss,
        site_rows.cautions,
    )


def _by_inputs(
    nets: Sequence[nn.Module],
    description: RowDescription,
    profiles: GroupProfiles,
    site_rows: SiteRows,
    file: str,
) -> Placement:
    """The placement of a site by the moments of its inputs, and of the models' embeddings and outputs."""
    if len(site_rows.inputs) < MIN_PLACING_ROWS:
        raise UserError(
            f"{file} has 1 row; without labels, a site needs at least {MIN_PLACING_ROWS}"
        )
    try:
        numbers = description.numbers(nets, site_rows.inputs)
    except RuntimeError as error:
        raise UserError(f"the models do not take the rows of {file}: {error}") from error
    probabilities = profiles.probabilities(with_spread(numbers))
    entries = []
    for group, num_clients in enumerate(profiles.num_clients.tolist()):
        entries.append(
            {
                "group": group,
                "clients": num_clients,
                "probability": float(probabilities[group]),
            }
        )
    return Placement(
        entries,
        float(probabilities[-1]),
        len(site_rows.inputs),
        "inputs",
        profiles.accuracy,
        None,
        site_rows.cautions,
    )
