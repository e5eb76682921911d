"""The run directory of a federation: its records, and its checkpoint for a restart of the server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor, nn

from coterie.core import Position, Round
from coterie.data.scenario import FEDERATION
from coterie.engines.flower.federation import FederationSettings
from coterie.engines.flower.messages import OtherTensors
from coterie.engines.flower.nodes import NodeMemory
from coterie.engines.flower.schemas import checked_memory
from coterie.methods._named import method_table
from coterie.models import nets
from coterie.models.layout import Layout
from coterie.randomness import seeded
from coterie.records import checksum
from coterie.records.codec import DamagedError
from coterie.records.record import (
    CALIBRATION_FILE,
    NODES_FILE,
    OTHER_TENSORS_FILE,
    RUN_FILE,
    Record,
    read_nodes,
    versions,
)
from coterie.records.shown import Shown
from coterie.records.store import LOCK_FILE, PART_SUFFIX, locked, write_whole
from coterie.settings import UserError, plain


class RunDirectory(AbstractContextManager["RunDirectory"]):
    """The records of a strategy's run in its folder ``out``.

    A new run starts new records. A run with the same settings continues those that are there.

    Args:
        folder: The folder.
        settings: The settings of the federation.
        rounds: Number of the last round.

    Raises:
        UserError: The folder belongs to another run.
    """

    def __init__(self, folder: Path | str, settings: FederationSettings, rounds: int) -> None:
        self.folder = Path(folder)
        self.record = Record(folder)
        self.settings = settings
        self.rounds = rounds
        self.stack = ExitStack()

    def __enter__(self) -> RunDirectory:
        if self.folder.exists() and not self.record.begun and not self._has_only_first_files():
            raise UserError(
                f"{self.folder} exists and is not a run directory; choose another folder"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        self.stack.enter_context(locked(self.folder))
        return self

    def _has_only_first_files(self) -> bool:
        """Whether the folder has no other files than those of a run that was stopped in its first round."""
        if not self.folder.is_dir():
            return False
        file_names = {
            file_path.name.removesuffix(PART_SUFFIX) for file_path in self.folder.iterdir()
        }
        return file_names <= {NODES_FILE, OTHER_TENSORS_FILE, LOCK_FILE, RUN_FILE}

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def stored(self) -> tuple[Position | None, NodeMemory | None]:
        """Read the checkpoint.

        Returns:
            The position and the server's knowledge of the nodes. Both are None for a new run.

        Raises:
            UserError: The settings differ from those of the run in the folder, or its files are
                damaged.
        """
        if not self.record.begun:
            return None, None
        stored_description = self.record.description()
        # The settings must be those with which the run began.
        compared = {**self._settings(), **self._tensors(stored_description)}
        for setting_name, current_value in compared.items():
            if change := _change(setting_name, stored_description.get(setting_name), current_value):
                raise UserError(f"{self.folder} cannot be resumed: its {change}")
        # The last stored position, and the nodes at that time.
        checkpoint = self.record.go_on(Position, checkpoint_every=1)
        self._update_description(stored_description, checkpoint[0] if checkpoint else 0)
        memory = read_memory(self.folder)
        if checkpoint and memory is None:
            raise DamagedError(f"{self.folder} has lost its {NODES_FILE}; it is damaged")
        return (checkpoint[1] if checkpoint else None), memory

    def keep(self, finished_round: Round, memory: NodeMemory) -> None:
        """Record a round and store its checkpoint."""
        if not self.record.begun:
            self._describe(finished_round)
        # The nodes come first: a checkpoint without them cannot be continued.
        write_whole(
            self.folder / NODES_FILE, checksum.sealed_json(json.dumps(asdict(memory)).encode())
        )
        self.record.keep(finished_round)
        self.record.store(finished_round.number, finished_round.position)

    def keep_calibration(self, round_number: int, sums: Sequence[Mapping[str, Any]]) -> None:
        """Store the sums by which an export calibrates the models of a round, if there are any."""
        if sums:
            document = json.dumps({"round": round_number, "models": sums}).encode()
            write_whole(self.folder / CALIBRATION_FILE, checksum.sealed_json(document))

    def _settings(self) -> dict[str, Any]:
        settings = self.settings
        return {
            "methods": [method_table(settings.method)],
            "training": plain(settings.training),
            "boundary": plain(settings.boundary),
            "robust": plain(settings.robust),
            "seeds": [settings.seed],
        }

    def _tensors(self, stored_description: Mapping[str, Any]) -> dict[str, Any]:
        """The net's tensors, for a comparison if the record contains them."""
        if stored_description["world"].get("net") is None:
            return {}
        net_description, _ = tensors_of(self.settings.model)
        return {"world": {"net": {"tensors": net_description["tensors"]}}}

    def _describe(self, first_round: Round) -> None:
        # The description is written with the first round, when the members are known.
        members = sorted(first_round.position.members)
        world_description = {"clients": members, **self.settings.facts, **self._net()}
        main_metric = self.settings.main_metric
        if main_metric != Shown.main:
            world_description["metric"] = {"main": main_metric, "better": self.settings.better}
        # Settings without effect stand where a simulation has them, beside what the data warn of.
        unused_settings = self.settings.unused(self.rounds)
        if unused_settings:
            known_cautions = world_description.get("cautions", ())
            world_description["cautions"] = [*known_cautions, *unused_settings]
        self.record.describe(
            {
                "scenario": {"name": FEDERATION},
                "rounds": self.rounds,
                "eval_every": self.settings.eval_every,
                **self._settings(),
                "world": world_description,
                "versions": {**versions(), "flwr": version("flwr")},
            }
        )

    def _update_description(
        self, stored_description: Mapping[str, Any], stored_rounds: int
    ) -> None:
        """Update the description: the last round and the rounds between tests may change."""
        # A run that was extended has more rounds than it was begun with.
        description = {
            **stored_description,
            "rounds": max(self.rounds, stored_rounds),
            "eval_every": self.settings.eval_every,
        }
        if description != stored_description:
            self.record.describe(description)

    def _net(self) -> dict[str, Any]:
        """The description from which the clients' net can be rebuilt, or its state dict's tensors if it has no name."""
        # A net with a name can be made again. Of another one, the record has the tensors' names and
        # shapes.
        if (named_model := nets.described(self.settings.model)) is not None:
            return {"model": named_model}
        net_description, other_tensors = tensors_of(self.settings.model)
        if other_tensors:
            other_bytes = safetensors.torch.save(other_tensors)
            write_whole(self.folder / OTHER_TENSORS_FILE, other_bytes)
            net_description |= {
                "others": OTHER_TENSORS_FILE,
                "others_checksum": checksum.digest(other_bytes),
            }
        return {"net": net_description}


def read_memory(folder: Path) -> NodeMemory | None:
    """Read the server's knowledge of the nodes from a run directory.

    Args:
        folder: The run directory.

    Returns:
        The knowledge, or None if the server was stopped in the first round, before it stored it.

    Raises:
        DamagedError: The file is damaged.
    """
    stored_memory = read_nodes(folder)
    if stored_memory is None:
        return None
    try:
        schema = stored_memory.get("schema")
        checked_memory(schema)
        stored_exchanges = {
            part_name: _integers(exchanges)
            for part_name, exchanges in stored_memory["layers"].items()
        }
        node_owners = {int(client): str(owner) for client, owner in stored_memory["owners"].items()}
        client_names = {int(client): name for client, name in stored_memory["names"].items()}
        ended_parts = {
            str(part_name): int(end_exchange)
            for part_name, end_exchange in stored_memory.get("ended", {}).items()
        }
        return NodeMemory(
            run=str(stored_memory["run"]),
            nodes=_integers(stored_memory["nodes"]),
            layers=stored_exchanges,
            owners=node_owners,
            names=client_names,
            ended=ended_parts,
            schema=schema,
            missing=_integers(stored_memory.get("missing", {})),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{folder / NODES_FILE} is damaged ({error})") from error


def _integers(stored_numbers: Mapping[str, Any]) -> dict[int, int]:
    return {int(key): int(value) for key, value in stored_numbers.items()}


def tensors_of(model: Callable[[], nn.Module]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Describe the tensors of a net.

    Args:
        model: Function that makes the net.

    Returns:
        A dictionary with ``tensors``, in the order of a row; ``trainable``, the number of trainable
        ones, which come first; and ``tied``, the other names of tensors that have several names.
        And the tensors that are not part of a row, such as the number of batches in BatchNorm.
    """
    # Only the names and shapes of this net's tensors count.
    with seeded(0):
        net_module = model()
    layout = Layout(net_module)
    state_dict = net_module.state_dict()
    other_tensors = OtherTensors.of(net_module, layout)
    tensors = [
        {
            "name": row_piece.name,
            "shape": list(row_piece.shape),
            "dtype": str(state_dict[row_piece.name].dtype).removeprefix("torch."),
        }
        for row_piece in layout.pieces
    ]
    net_description: dict[str, Any] = {"trainable": len(layout.tensors), "tensors": tensors}
    if other_tensors.tied:
        net_description["tied"] = dict(other_tensors.tied)
    return net_description, dict(other_tensors.outside_row)


def _change(setting_name: str, value_before: Any, value_now: Any) -> str | None:
    """Describe how a setting has changed; in a table, the first changed entry. None if it has not changed.

    A setting that a record lacks was added after the run began: it had its default.
    """
    # A record has a list of methods, a federation exactly one.
    if setting_name == "methods" and isinstance(value_before, list) and len(value_before) == 1:
        return _change("method", value_before[0], value_now[0])
    if isinstance(value_before, Mapping) and isinstance(value_now, Mapping):
        for entry_name, entry_value in value_now.items():
            if entry_name in value_before and (
                change := _change(
                    f"{setting_name}.{entry_name}", value_before[entry_name], entry_value
                )
            ):
                return change
        return None
    if value_before == value_now:
        return None
    if isinstance(value_now, list):
        return f"{setting_name} were {value_before}, and now are {value_now}"
    return f"{setting_name} was {value_before}, and now is {value_now}"
