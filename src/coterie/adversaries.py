"""Worlds in which some clients are hostile."""

from __future__ import annotations

from dataclasses import replace

from coterie.attack import ATTACKS, USUAL, Attack, flipped
from coterie.core import Client
from coterie.models import described
from coterie.randomness import Purpose, numpy_generator
from coterie.settings import SettingError
from coterie.world import ClientData, Split, World


def among(world: World, seed: int, share: float, attack: str, scale: float | None) -> World:
    """``world`` in which ``share`` of its clients, at random, carry out ``attack``; test data are left as they are.

    scale: of the attack, None for the usual one. Raises :class:`SettingError` where nobody would be honest.
    """
    if not share:
        return world
    clients = sorted(world.clients)
    count = max(round(share * len(clients)), 1)
    if count == len(clients):
        raise SettingError(f"Scenario.adversaries must leave an honest one of the {len(clients)} clients, got {share:g}")
    drawn = numpy_generator(seed, Purpose.ADVERSARY).choice(clients, size=count, replace=False)
    chosen = Attack(kind=attack, scale=USUAL[attack] if scale is None else scale)
    attacks = dict.fromkeys(sorted(int(c) for c in drawn), chosen)
    return replace(world, attacks=attacks, clients=_clients(world, attacks) if attack == "label-flip" else world.clients)


def check_attack(share: float, attack: str) -> None:
    """Raises :class:`SettingError` for adversaries who do nothing."""
    if share and attack == "none":
        raise SettingError(f"Scenario.adversaries {share:g} needs Scenario.attack, one of {', '.join(ATTACKS)}, got none")


def _clients(world: World, attacks: dict[Client, Attack]) -> dict[Client, ClientData]:
    """All clients, of whom the adversaries' labels for training and validation are flipped."""
    about = described(world.model)
    if about is None or any(data.train.targets.ndim > 1 for data in world.clients.values()):
        raise SettingError("Scenario.attack label-flip needs class labels, and this scenario predicts words")
    return {c: _flipped(data, about["classes"]) if c in attacks else data for c, data in world.clients.items()}


def _flipped(data: ClientData, classes: int) -> ClientData:
    flip = lambda split: Split(split.inputs, split.index, flipped(split.targets, classes))  # noqa: E731
    return replace(data, train=flip(data.train), validation=flip(data.validation))
