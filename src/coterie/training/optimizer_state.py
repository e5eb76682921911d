"""The state of a client's optimizer between two exchanges: momenta, second moments, counts of steps.

With ``training.keep_optimizer``, a client's optimizer goes on where its last training ended, though
the model from which it trains is another one by then. The state is stored as safetensors, of which
nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

NUMBER_TYPES: Mapping[str, Callable[[Any], Any]] = {"bool": bool, "int": int, "float": float}
"""Types of a state's values that are no tensors, by their names in keys."""


class KeptOptimizer:
    """An optimizer whose state is stored after training, and loaded before the next one.

    Args:
        stored_state: What :meth:`state` returned after the last training; None for a new optimizer.
    """

    def __init__(self, stored_state: bytes | None) -> None:
        self.stored_state = stored_state
        self._optimizer: torch.optim.Optimizer | None = None

    def resume(self, optimizer: torch.optim.Optimizer) -> None:
        """Give a new optimizer the stored state.

        Args:
            optimizer: The optimizer, before its first step. Its learning rate stays.

        Raises:
            ValueError: The state is of another optimizer or another model.
        """
        self._optimizer = optimizer
        tensors = _tensors_of(optimizer)
        stored = {} if self.stored_state is None else safetensors.torch.load(self.stored_state)
        for key, value in stored.items():
            # A key is the number of the tensor, the name in its state, and the type of a number.
            tensor_number, name, number_type = key.split("/")
            if int(tensor_number) >= len(tensors):
                raise ValueError("the stored state of its optimizer is of another model")
            tensor = tensors[int(tensor_number)]
            if number_type:
                optimizer.state[tensor][name] = NUMBER_TYPES[number_type](value.item())
            # Counts of steps stay on the processor, as torch makes them.
            else:
                optimizer.state[tensor][name] = value.to(tensor.device) if value.dim() else value

    def state(self) -> bytes | None:
        """The optimizer's state as safetensors; None if it has none.

        Raises:
            ValueError: The state has something that is neither a tensor nor a number.
        """
        if self._optimizer is None:
            return None
        stored: dict[str, Tensor] = {}
        for tensor_number, tensor in enumerate(_tensors_of(self._optimizer)):
            for name, value in self._optimizer.state.get(tensor, {}).items():
                number_type = type(value).__name__
                if isinstance(value, Tensor):
                    stored[f"{tensor_number}/{name}/"] = value.detach().cpu().clone().contiguous()
                elif number_type in NUMBER_TYPES:
                    key = f"{tensor_number}/{name}/{number_type}"
                    stored[key] = torch.tensor(value, dtype=torch.float64)
                elif value is not None:
                    raise ValueError(
                        f"the state of {type(self._optimizer).__name__} has {name!r}, a {number_type}, "
                        "which cannot be kept: use Training.keep_optimizer false"
                    )
        return safetensors.torch.save(stored) if stored else None


def _tensors_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The tensors that an optimizer changes, in order."""
    tensors: list[Tensor] = []
    for group in optimizer.param_groups:
        tensors += group["params"]
    return tensors
