"""What the numbers of a masked sum are: a client's update, its weight and its answer as integers modulo 2³²."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from coterie.contrib.private.masks import FixedPoint
from coterie.contrib.private.sums import NoiseShare

MIN_NOISE_STEPS = 2
"""The least standard deviation of a client's noise, in steps of the masked numbers."""

NOISE_ROOM = 8
"""Standard deviations of noise for which masked numbers have room: a draw goes beyond once in 1e15
times."""


class Decoded(NamedTuple):
    """The sums of the clients' numbers.

    Attributes:
        updates: Shape ``(slots, d)``: the weighted updates.
        weights: Shape ``(slots,)``: their weights.
        num_cut: How many updates were cut to the bound.
        answers: The answers.
    """

    updates: np.ndarray
    weights: np.ndarray
    num_cut: int
    answers: np.ndarray


@dataclass(frozen=True)
class SumLayout:
    """The numbers that each client adds to one sum.

    They are: for each slot the weighted update; for each slot the weight; a 1 if the update was cut
    to the bound; and the answer to a question.

    Attributes:
        d: Parameters of an update; 0 if no update is sent.
        answer_size: Numbers of the answer to the question.
        max_clients: How many clients there are at most.
        bound: The largest change of one parameter.
        slots: The models among which clients choose, if the plan hides the choice; else 1.
        noise: One client's share of the noise; None without.
    """

    d: int
    answer_size: int
    max_clients: int
    bound: float
    slots: int = 1
    noise: NoiseShare | None = None

    @property
    def size(self) -> int:
        """How many numbers a client sends."""
        return self.slots * (self.d + 1) + 1 + self.answer_size

    @property
    def drowned_by(self) -> str:
        """The setting because of which noise is smaller than the rounding of masked numbers; empty for none."""
        if self.noise is None:
            return ""
        if self.d and self.noise.update < MIN_NOISE_STEPS * self._update_code.step:
            return "bound"
        if self.noise.count and self.noise.count < MIN_NOISE_STEPS * self._weight_code.step:
            return "noise"
        if self.answer_size and self.noise.answer < MIN_NOISE_STEPS * self._answer_code.step:
            return "noise"
        return ""

    @property
    def max_bound(self) -> float:
        """The largest bound with which the noise on an update is not rounded away."""
        assert self.noise is not None
        usable_steps = max(self._update_code.levels / MIN_NOISE_STEPS - NOISE_ROOM, 0)
        return self.noise.update * usable_steps

    def encode(
        self,
        update: Tensor | None,
        client_weight: float,
        client_answer: np.ndarray | None,
        model_slot: int = 0,
        draw_normal: Callable[[int], np.ndarray] | None = None,
        keep_mask: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return a client's numbers ``(size,)`` as integers; a client without an update or an answer has zeros there.

        Args:
            update: The update ``(d,)``, not longer than the noise allows.
            client_weight: Its weight; 1 with noise.
            client_answer: The answer.
            model_slot: The model that the client took.
            draw_normal: Function that draws so many standard normal numbers, for the noise.
            keep_mask: Mask of the columns that stay at the client, ``(d,)``, which have no noise.
        """
        slot_updates = np.zeros((self.slots, self.d))
        slot_weights = np.zeros(self.slots)
        if update is not None:
            slot_updates[model_slot] = update.double().numpy()
        if update is not None or not self.d:
            slot_weights[model_slot] = client_weight
        # Whether the update is cut to the bound. With noise, the server must not learn how many updates were cut.
        was_cut = float((np.abs(slot_updates) > self.bound).any()) if self.noise is None else 0.0
        answer_numbers = np.zeros(self.answer_size)
        if client_answer is not None:
            answer_numbers = client_answer.astype(np.float64)
        # The client's share of the noise is added to all numbers, also to those of the other slots.
        slot_updates = slot_updates.clip(-self.bound, self.bound) * slot_weights[:, None]
        if self.noise is not None and draw_normal is not None:
            update_noise = self.noise.update * draw_normal(slot_updates.size).reshape(
                slot_updates.shape
            )
            if keep_mask is not None:
                update_noise = np.where(keep_mask, 0.0, update_noise)
            slot_updates += update_noise
            slot_weights += self.noise.count * draw_normal(self.slots)
            answer_numbers += self.noise.answer * draw_normal(self.answer_size)
        # Integers modulo 2³², with room for the sum over all clients.
        return np.concatenate(
            [
                self._update_code.encode(slot_updates.ravel()),
                self._weight_code.encode(np.append(slot_weights, was_cut)),
                self._answer_code.encode(answer_numbers),
            ]
        )

    def decode(self, number_total: np.ndarray) -> Decoded:
        """Return the sums of real numbers from the sum ``(size,)`` of integers."""
        update_numbers, weight_numbers, answer_numbers = np.split(
            number_total, np.cumsum([self.slots * self.d, self.slots + 1])
        )
        weights_and_cut = self._weight_code.decode(weight_numbers)
        return Decoded(
            updates=self._update_code.decode(update_numbers).reshape(self.slots, self.d),
            weights=weights_and_cut[:-1],
            num_cut=round(float(weights_and_cut[-1])),
            answers=self._answer_code.decode(answer_numbers),
        )

    @property
    def _update_code(self) -> FixedPoint:
        return self._code(self.bound, 0.0 if self.noise is None else self.noise.update)

    @property
    def _weight_code(self) -> FixedPoint:
        return self._code(1.0, 0.0 if self.noise is None else self.noise.count)

    @property
    def _answer_code(self) -> FixedPoint:
        return self._code(1.0, 0.0 if self.noise is None else self.noise.answer)

    def _code(self, greatest_value: float, deviation: float) -> FixedPoint:
        return FixedPoint(bound=greatest_value + NOISE_ROOM * deviation, clients=self.max_clients)
