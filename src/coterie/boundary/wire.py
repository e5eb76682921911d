"""The boundary of one run: the operations of a client on rows that enter or leave it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch

from coterie.boundary.compress import NUMBER_BYTES, check_packed, pack, packed_bytes, unpack
from coterie.boundary.maps import draw_map
from coterie.boundary.rules import WHOLE_ROW, Boundary
from coterie.core import Client, Federation, Plan, Task
from coterie.models.layout import Layout
from coterie.randomness import Purpose, generator, numpy_generator, seeded
from coterie.settings import SettingError
from coterie.settings.calls import public

AFTER_PARAMETERS = "others"
"""Name of the array with the entries behind the parameters, which is sent with a compressed update.
"""


@public
def update_number(part: int, half: int = 0) -> int:
    """Number an update among those that a client sends in one exchange.

    Args:
        part: The position of its part of the plan, 0 in a plan without parts.
        half: 1 for the update of the second half of the data; otherwise 0.

    Returns:
        The number.
    """
    return 2 * part + half


@dataclass(frozen=True, kw_only=True, repr=False)
class MappedFederation(Federation):
    """A federation whose rows are mapped as a whole: layers have names, but no columns.

    Access to the columns of a layer raises ``SettingError``.

    Attributes:
        trainable: Number of parameters, which still come first.
    """

    trainable: int

    @property
    def parameters(self) -> slice:
        """Columns of the parameters."""
        return slice(0, self.trainable)


class HiddenColumns(Mapping[str, tuple[int, int]]):
    """Names of layers whose columns are hidden; access to them raises ``SettingError``.

    Args:
        names: Names of the layers.
        boundary: The boundary, whose settings are in the message.
    """

    def __init__(self, names: Iterable[str], boundary: Boundary) -> None:
        self.names = tuple(names)
        self.boundary = boundary

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> tuple[int, int]:
        raise self.boundary.hidden("a method uses single layers")


@public
@dataclass(frozen=True)
class Wire:
    """A boundary with its map drawn, for models of ``layout``.

    A *sealed* row is a row in the server's coordinates.

    Attributes:
        boundary: The settings.
        layout: Layout of the models.
        seed: The run's seed.
        seal: Maps a row ``(d,)`` to the server's coordinates.
        open: The inverse of ``seal``.

    Raises:
        SettingError: The model is not compatible with the boundary.
    """

    boundary: Boundary
    layout: Layout
    seed: int
    seal: Callable[[torch.Tensor], torch.Tensor] = field(init=False, repr=False)
    open: Callable[[torch.Tensor], torch.Tensor] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.boundary.check_layout(self.layout)
        # Without a secret the server knows the map: it serves to compare runs with and without one.
        map_secret = self.seed if self.boundary.secret is None else self.boundary.secret
        drawn_map = draw_map(
            self.boundary.rotation, self.layout, self.boundary.block, map_secret, Purpose.BOUNDARY
        )
        object.__setattr__(self, "seal", drawn_map.seal)
        object.__setattr__(self, "open", drawn_map.open)

    def first_model(self, model_number: int, model: Callable[[], torch.nn.Module]) -> torch.Tensor:
        """Draw a fresh model; with a secret, the seed alone is not enough to draw it.

        An initialiser draws from PyTorch's generator, whose seeds have 32 bits and can be tried one
        by one. So with a secret each drawn tensor is mixed, half and half in variance, with
        Gaussian numbers of the same scale, drawn from the whole secret.

        Args:
            model_number: Number of the model.
            model: Function that makes a fresh module.

        Returns:
            The model ``(d,)``.
        """
        secret = self.boundary.secret
        if secret is None:
            with seeded(self.seed, Purpose.INIT, model_number):
                return self.layout.row(model())
        with seeded(secret, Purpose.INIT, self.seed, model_number):
            model_row = self.layout.row(model())
        # Mix each drawn tensor with Gaussian numbers that depend on the whole secret.
        mixing_rng = numpy_generator(secret, Purpose.INIT, self.seed, model_number, 1)
        for start, stop in self.layout.tensors.values():
            drawn_tensor = model_row[start:stop]
            # A constant tensor, such as a bias of zeros, shows nothing and stays as it is.
            scale = drawn_tensor.std(correction=0)
            gaussian = torch.from_numpy(mixing_rng.standard_normal(stop - start, dtype=np.float32))
            if scale > 0:
                tensor_mean = drawn_tensor.mean()
                model_row[start:stop] = (
                    tensor_mean + (drawn_tensor - tensor_mean + scale * gaussian) / 2**0.5
                )
        return model_row

    def veil(self, federation: Federation, sealed: bool = False) -> Federation:
        """Return the federation as a method may see it: sealed fresh models, and no columns of layers that a map moves.

        Args:
            federation: The federation.
            sealed: Whether ``federation`` already draws sealed models.

        Returns:
            The federation for the method.
        """
        values: dict[str, Any] = {
            federation_field.name: getattr(federation, federation_field.name)
            for federation_field in fields(federation)
        }
        if not sealed:
            values["draw"] = lambda model_number: self.seal(federation.draw(model_number))
        if self.boundary.rotation not in WHOLE_ROW:
            return Federation(**values)
        # A map of the whole row moves entries between layers, so no columns of a layer exist.
        for field_name in ("columns", "tensors"):
            values[field_name] = HiddenColumns(values[field_name], self.boundary)
        return MappedFederation(**values, trainable=self.layout.trainable)

    # -- outgoing updates
    # ----------------------------------------------------------------------------------------------

    def send(
        self,
        update: torch.Tensor,
        client: Client,
        exchange: int,
        keep_mask: torch.Tensor | None = None,
        noise_number: int = 0,
    ) -> torch.Tensor:
        """Return a client's update as it arrives: :meth:`protected`, then compressed and unpacked again.

        Args:
            update: The update ``(d,)``.
            client: The client.
            exchange: Number of the exchange.
            keep_mask: Mask of the columns that stay at the client. There the result is the update
                itself, sealed.
            noise_number: Which of the client's updates of the exchange it is, see :func:`update_number`;
                each has its own noise.

        Returns:
            The sealed update ``(d,)``.
        """
        # The server gets the update as it is after compression, with the error of that.
        arrived = self.protected(update, client, exchange, keep_mask, noise_number)
        if self.boundary.compress != "none":
            arrived = self.unpack(
                self.pack(arrived, client, exchange, noise_number, keep_mask), keep_mask
            )
        return arrived if keep_mask is None else torch.where(keep_mask, self.seal(update), arrived)

    def protected(
        self,
        update: torch.Tensor,
        client: Client,
        exchange: int,
        keep_mask: torch.Tensor | None = None,
        noise_number: int = 0,
        seed: int | None = None,
    ) -> torch.Tensor:
        """Clip, noise and seal an update.

        Clipping and noise apply to the parameters; buffers are sent without change. With noise, an
        update that is not finite counts as zero, because a refusal would reveal information about
        the data.

        Args:
            update: The update ``(d,)``.
            client: The client.
            exchange: Number of the exchange.
            keep_mask: Mask of the columns that stay at the client.
            noise_number: Which of the client's updates of the exchange it is, see :func:`update_number`;
                each has its own noise.
            seed: Seed of the noise, if the server knows the run's seed and could remove the noise;
                None takes the run's.

        Returns:
            The sealed update ``(d,)``, zero in the columns that stay at the client.
        """
        # The dot product is not finite if an entry is not, or if the norm overflows.
        if self.boundary.noise and not torch.isfinite(update.dot(update)):
            update = torch.zeros_like(update)
        protected = update if keep_mask is None else update.masked_fill(keep_mask, 0.0)
        # Sums are clipped and noised as sums.
        if self.boundary.masks:
            return protected
        if self.boundary.clip is not None:
            protected = self.clipped(protected, self.boundary.clip)
        if self.boundary.noise:
            noise_key = [self.seed if seed is None else seed, Purpose.NOISE, exchange, client]
            # Odd numbers seed the signs of compression, see `pack`.
            if noise_number:
                noise_key.append(2 * noise_number)
            protected = self._noised(protected, keep_mask, numpy_generator(*noise_key))
        return self.seal(protected)

    def limit(self, clip: float | None) -> float | None:
        """Return the maximum norm of an update: the least of the boundary's and a plan's ``clip``; None without one."""
        limits = [limit for limit in (self.boundary.clip, clip) if limit is not None]
        return min(limits, default=None)

    def clipped(self, update: torch.Tensor, limit: float) -> torch.Tensor:
        """Return an update ``(d,)`` whose parameters have at most the norm ``limit``."""
        parameter_count = self.layout.trainable
        parameter_norm = float(update[:parameter_count].double().norm())
        if not parameter_norm > limit:
            return update
        scaled = update.clone()
        # The margin keeps rounding from raising the norm above the limit.
        scaled[:parameter_count] *= limit / parameter_norm * (1 - 1e-6)
        return scaled

    def _noised(
        self,
        update: torch.Tensor,
        keep_mask: torch.Tensor | None,
        noise_generator: np.random.Generator,
    ) -> torch.Tensor:
        """The update with noise on the parameters, and zero behind them: buffers do not change."""
        assert self.boundary.clip is not None
        parameter_count = self.layout.trainable
        drawn_noise = torch.from_numpy(
            noise_generator.standard_normal(parameter_count, dtype=np.float32)
        )
        noised_update = torch.zeros_like(update)
        noised_update[:parameter_count] = (
            update[:parameter_count] + self.boundary.noise * self.boundary.clip * drawn_noise
        )
        return noised_update if keep_mask is None else noised_update.masked_fill(keep_mask, 0.0)

    def pack(
        self,
        sealed: torch.Tensor,
        client: Client,
        exchange: int,
        noise_number: int,
        keep_mask: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """Return the arrays that are sent for a sealed update: compressed parameters, and unchanged entries behind them.

        Args:
            sealed: The sealed update ``(d,)``.
            client: The client.
            exchange: Number of the exchange.
            noise_number: Which of the client's updates of the exchange it is, see :func:`update_number`.
            keep_mask: Mask of the columns that stay at the client.

        Returns:
            Name -> array.
        """
        parameter_columns, buffer_columns = self._sent_columns(keep_mask)
        arrays: dict[str, torch.Tensor] = {}
        if len(parameter_columns):
            # Odd numbers seed the signs of zeros, even ones the noise.
            sign_generator = generator(
                self.seed, Purpose.NOISE, exchange, client, 2 * noise_number + 1
            )
            parameter_values = sealed[parameter_columns]
            arrays.update(
                pack(parameter_values, self.boundary.compress, self.boundary.share, sign_generator)
            )
        arrays[AFTER_PARAMETERS] = sealed[buffer_columns]
        return arrays

    def unpack(
        self, sent_arrays: Mapping[str, torch.Tensor], keep_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the sealed update of :meth:`pack`'s arrays.

        Args:
            sent_arrays: Name -> array.
            keep_mask: Mask of the columns that stay at the client.

        Returns:
            The sealed update ``(d,)``, zero in the columns that stay at the client.

        Raises:
            ValueError: The arrays are of another kind.
        """
        parameter_columns, buffer_columns = self._sent_columns(keep_mask)
        # The sender is not trusted: names, shapes and types are checked before anything is read.
        packed_parameters = {
            array_name: values
            for array_name, values in sent_arrays.items()
            if array_name != AFTER_PARAMETERS
        }
        if (
            AFTER_PARAMETERS not in sent_arrays
            or sent_arrays[AFTER_PARAMETERS].shape != buffer_columns.shape
        ):
            raise ValueError(
                f"its {AFTER_PARAMETERS} must be the {len(buffer_columns)} entries after the parameters"
            )
        sealed_update = torch.zeros(self.layout.size)
        if len(parameter_columns):
            compression = self.boundary.compress
            check_packed(
                packed_parameters, compression, len(parameter_columns), self.boundary.share
            )
            sealed_update[parameter_columns] = unpack(
                packed_parameters, compression, len(parameter_columns)
            )
        sealed_update[buffer_columns] = sent_arrays[AFTER_PARAMETERS].float()
        return sealed_update

    def unclipped(self, sealed: torch.Tensor, task: Task) -> str | None:
        """Return the reason why an update was not clipped, or has more noise than the boundary adds.

        A map keeps the norm of the parameters. topk leaves entries out. The scale of sign, the mean
        magnitude of the entries, does not increase the norm. 8bit moves an entry by at most half a
        step, and a step is 1/127 of the largest entry. The norm of noise on p entries is above z C
        (√p + 8) once in 8e13 updates: it is 1-Lipschitz, so P(> mean + t) <= exp(-t²/2), t = 8.

        Args:
            sealed: The update ``(d,)`` as it arrived.
            task: Its task.

        Returns:
            The reason, for an error message; None if the norm is possible.
        """
        clip = self.boundary.clip
        noise = self.boundary.noise
        if clip is None:
            return None
        magnitudes = sealed[: self.layout.trainable].double().abs()
        # Without the greatest error of rounding, half a step.
        if self.boundary.compress == "8bit":
            magnitudes = (magnitudes - magnitudes.max() / 254).clamp(min=0)
        parameter_norm = float(magnitudes.norm())
        # Noise is added only to the parameters that are sent.
        parameter_count, _ = self.columns(task)
        max_norm = clip * (1 + noise * (math.sqrt(parameter_count) + 8))
        # The margin allows for single precision.
        if parameter_norm <= max_norm * (1 + 1e-4):
            return None
        norm_bounds = f"clip {clip:g} and noise {noise:g}" if noise else f"clip {clip:g}"
        return (
            f"its update has norm {parameter_norm:.4g}, more than {max_norm:.4g}, "
            f"the maximum under the boundary's {norm_bounds}"
        )

    def _sent_columns(self, keep_mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """The columns that do not stay at the client: those of parameters, and those behind them."""
        columns = torch.arange(self.layout.size)
        columns = columns if keep_mask is None else columns[~keep_mask]
        is_parameter = columns < self.layout.trainable
        return columns[is_parameter], columns[~is_parameter]

    # -- communication cost and compatibility
    # --------------------------------------------------------------------------

    def columns(self, task: Task) -> tuple[int, int]:
        """(parameters, other entries) of a row that are sent in ``task``."""
        if not task.local_layers:
            return self.layout.trainable, self.layout.size - self.layout.trainable
        # Layers that stay at the client are not sent, and neither are their buffers.
        stays_at_client = self.layout.mask(task.local_layers)
        parameter_count = self.layout.trainable - int(
            stays_at_client[: self.layout.trainable].sum()
        )
        return parameter_count, self.layout.size - int(stays_at_client.sum()) - parameter_count

    def bytes_of(self, parameters: int, buffers: int) -> int:
        """Bytes of a compressed update with this number of parameters and of entries after them."""
        packed = packed_bytes(self.boundary.compress, parameters, self.boundary.share)
        return packed + buffers * NUMBER_BYTES

    @property
    def counts(self) -> bool:
        """Whether a client reports its number of examples; with noise it does not."""
        return not self.boundary.noise

    def examples(self, example_count: int) -> int:
        """A client's number of examples as the server knows it: with noise it is 1 for all clients."""
        return example_count if self.counts else 1

    def check_method(self, method: Any) -> None:
        """Check that a method is compatible with the boundary, see :meth:`Boundary.check_method`."""
        self.boundary.check_method(method)

    def check(self, plan: Plan, method_name: str) -> None:
        """Check that a plan is compatible with the boundary.

        Args:
            plan: The plan.
            method_name: Name of the method.

        Raises:
            SettingError: The plan is not compatible.
        """
        self.boundary.check_plan(plan, self.layout, method_name)
        # Imported here: coterie.training loads torch, for which commands that only read do not wait.
        from coterie.training.statistics import NO_DENSE_LAYER, sizes

        asks_statistics = any(task.statistics for task in plan.tasks.values())
        if asks_statistics and sizes(self.layout) is None:
            raise SettingError(f"{method_name} cannot be used with this model: {NO_DENSE_LAYER}")

    @property
    def counts_rows(self) -> bool:
        """Whether what noise covers depends on the numbers of rows that clients report, as with some extensions."""
        return False

    def releases(
        self, task: Task, hidden: bool = False, client: Client | None = None, rows: int = 0
    ) -> int:
        """The number of updates that a client sends in ``task`` and that noise must cover.

        An answer under masks counts as its question's ``cost``. In a ``hidden`` plan the place of
        an update shows which model the client took, so an update without columns counts, too.
        The ``client``, and the number of ``rows`` that it reports, matter only to the wires of
        extensions.
        """
        if not self.boundary.noise:
            return 0
        sends_update = task.trains and (hidden or bool(self.columns(task)[0]))
        if self.boundary.masks:
            question = task.private.question
            answer_cost = 0 if question is None or question.asks_cell else question.cost
            return int(sends_update and task.private.sends_update) + answer_cost
        # A task with halves sends an update of each half of the data.
        return sends_update * (2 if task.halves else 1)
