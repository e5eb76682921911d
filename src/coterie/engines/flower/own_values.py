"""What the server knows of the values that clients store for themselves: layers that stay at them, and personal models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from coterie.core import Client, Effect, Note, Plan, Task
from coterie.training import ClientResult


@dataclass
class OwnValues:
    """Which own values the clients and their nodes have.

    Attributes:
        run: Name of the run, under which clients store their values, see
            :class:`.nodes.NodeMemory`.
        stored_exchanges: Name of a part of the plan -> client -> the exchange after which it last
            stored values.
        layers_of_nodes: Node -> name of a part -> the own layers that it is known to have, which
            need not be sent.
        ended: Name of a part that ended -> the exchange from which on own values of it count again.
        ending: The same for parts that ended in this round. Clients delete their values only when
            the round is stored.
    """

    run: str = ""
    stored_exchanges: dict[str, dict[Client, int]] = field(default_factory=dict)
    layers_of_nodes: dict[int, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    ending: dict[str, int] = field(default_factory=dict)

    def layers_of(self, node: int, part_name: str) -> tuple[str, ...]:
        """Return the own layers of a part of the plan that a node is known to have."""
        return self.layers_of_nodes.get(node, {}).get(part_name, ())

    def first_valid_exchange(self, part_name: str) -> int:
        """Return the exchange from which on own values of a part count: the one after it last ended."""
        first_exchange = 0
        for ended_parts in (self.ended, self.ending):
            for ended_part, end_exchange in ended_parts.items():
                if _belongs_to(part_name, ended_part):
                    first_exchange = max(first_exchange, end_exchange)
        return first_exchange

    def update(
        self,
        part_name: str,
        plan: Plan,
        results: Mapping[Client, ClientResult],
        exchange: int,
        node_of: Callable[[Client], int],
        clients_report: bool,
    ) -> Iterator[Note]:
        """Update which clients have stored own values after an exchange.

        Args:
            part_name: The name of the part of the plan.
            plan: The part.
            results: Client -> its result, for clients whose replies count.
            exchange: Number of the exchange.
            node_of: Returns the node of a client.
            clients_report: Whether clients report from which own values they started.

        Yields:
            A note for each client that started from other own values than expected.
        """
        exchanges_of_part = self.stored_exchanges.setdefault(part_name, {})
        for client, task in plan.tasks.items():
            layers_of_node = self.layers_of_nodes.setdefault(node_of(client), {})
            if client not in results:
                # It may return without its layers.
                layers_of_node.pop(part_name, None)
                continue
            if not _stores_values(task):
                continue
            # A client that should have started from its own values reports of which exchange they
            # were.
            uses_personal_model = task.personal is not None and task.personal.start == "own"
            stored_at = results[client].stored_at
            expected = exchanges_of_part.get(client, -1)
            uses_values = bool(task.local_layers) or uses_personal_model
            if clients_report and uses_values and stored_at != expected:
                yield _unexpected_values(client, bool(task.local_layers), stored_at, expected)
            # From now on the node has these layers, which need not be sent to it.
            layers_of_node[part_name] = task.local_layers
            exchanges_of_part[client] = exchange
        if not exchanges_of_part:
            del self.stored_exchanges[part_name]

    def end_parts(self, ended_parts: Iterable[str], exchange: int) -> None:
        """Note that own values of some parts, stored up to an exchange, do not count any more."""
        for ended_part in ended_parts:
            self.ending[ended_part] = exchange + 1
            for part_name in [
                part_name
                for part_name in self.stored_exchanges
                if _belongs_to(part_name, ended_part)
            ]:
                del self.stored_exchanges[part_name]
                for layers_of_node in self.layers_of_nodes.values():
                    layers_of_node.pop(part_name, None)

    def round_stored(self) -> None:
        """Note that a round has ended: no server continues before it, so clients may delete what ended in it."""
        self.ended |= self.ending
        self.ending = {}


def _belongs_to(part_name: str, whole_name: str) -> bool:
    """Whether a part of a plan is another one or lies in it: names are paths."""
    return f"{part_name}/".startswith(f"{whole_name}/")


def _stores_values(task: Task) -> bool:
    """Whether a client stores own values after a task."""
    keeps_layers = bool(task.local_layers) and task.trains and not task.gradient
    return task.personal is not None or keeps_layers


def _unexpected_values(client: Client, has_layers: bool, stored_at: int, expected: int) -> Note:
    """A note about a client with other own values than the server knows of, by exchanges or -1.

    Newer values are no loss: the client has trained them, and its answer was lost or came late.
    """
    kept_values = "its own layers" if has_layers else "its personal model"
    effect: Effect = "warns"
    if stored_at > expected:
        effect = "info"
        text = (
            f"client {client} continues with {kept_values} from a training whose answer did not "
            f"count (exchange {stored_at}): nothing is lost"
        )
    elif stored_at >= 0:
        text = (
            f"client {client} has lost {kept_values} of exchange {expected}, and continues with "
            f"older values, of exchange {stored_at}"
        )
    else:
        text = (
            f"client {client} has lost {kept_values} of exchange {expected}, and starts anew "
            "(keep-dir at the node keeps such values)"
        )
    return Note(kind="node", effect=effect, clients=(client,), text=text)
