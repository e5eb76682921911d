"""What masked sums cost: bytes and seconds of one exchange, beside one without masks.

    python benchmarks/masks.py [--clients 100,1000] [--parameters 1600000] [--out FILE]

Every client is carried out in this process, one after the other; a client's seconds are the mean
over some of them, and the server's are all that it does. Bytes are those of the messages' contents
as they are sent: models and updates, and the JSON of keys, shares and lists. One client in a
hundred falls silent after it has sent its shares.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.contrib.private.flower.sum_layout import SumLayout
from coterie.contrib.private.masks import MaskedSum, Masker
from coterie.randomness import seeded

NUMBER = 4
TIMED = 5
"""Clients whose masking is timed."""


def hexed(table: Any) -> int:
    """Bytes of a table of keys or shares as JSON, in which bytes are hexadecimal."""
    return len(json.dumps(table, default=lambda value: value.hex()))


class Costs:
    """Seconds and bytes of one masked sum."""

    def __init__(self, clients: int, parameters: int) -> None:
        self.ids, self.layout = range(clients), SumLayout(parameters, 0, clients, 1.0)
        self.server = MaskedSum(b"benchmark", self.layout.size)
        self.maskers = {c: Masker(c, b"benchmark") for c in self.ids}
        self.bytes = 0
        self.client: list[float] = []
        self.server_seconds = 0.0

    def run(self) -> dict[str, Any]:
        """Carry out all steps."""
        keys = {c: each.keys() for c, each in self.maskers.items()}
        self.bytes += sum(hexed([k.sealing, k.masking]) for k in keys.values())
        near = self._server(lambda: self.server.keys(keys))
        self.bytes += sum(
            hexed({o: [k.sealing, k.masking] for o, k in each.items()}) for each in near.values()
        )
        shares = {
            c: each.shares(near[c], self.server.graph.threshold) for c, each in self.maskers.items()
        }
        self.bytes += sum(hexed(each) for each in shares.values())
        ready = self._server(lambda: self.server.shares(shares))
        self.bytes += sum(hexed(each) for each in ready.values())
        there = [c for c in self.ids if c % 100 != 99]
        expected = self._masked(ready, there)
        arrived = sorted(self.server.arrived)
        out = {c: self.maskers[c].unmask(arrived) for c in there}
        self.bytes += sum(hexed([each.seeds, each.keys]) + hexed(arrived) for each in out.values())
        total = self._server(lambda: self.server.unmasked(out))
        rows, (weight,), _, _ = self.layout.decode(total)
        assert abs(rows[0] / weight - expected).max() < 1e-4, "the sum is wrong"
        plain = 2 * NUMBER * self.layout.d * len(self.ids)
        masked = plain + NUMBER * 2 * len(there) + self.bytes
        return {
            "clients": len(self.ids),
            "parameters": self.layout.d,
            "neighbours": len(self.server.graph.neighbours[0]),
            "bytes": masked / plain,
            "more": (masked - plain) / len(self.ids),
            "client": float(np.mean(self.client)),
            "server": self.server_seconds,
        }

    @seeded(0)
    def _masked(self, ready: Any, there: Sequence[int]) -> np.ndarray:
        """Step 3: every client sends the same update, so that the mean is known; masks of all are different."""
        update = 0.01 * torch.randn(self.layout.d)
        for i, client in enumerate(there):
            began = time.perf_counter()
            numbers = self.maskers[client].masked(
                ready[client], self.layout.encode(update, 0.5, None)
            )
            if i < TIMED:
                self.client.append(time.perf_counter() - began)
            self._server(lambda client=client, numbers=numbers: self.server.add(client, numbers))
        return update.numpy()

    def _server(self, work: Any) -> Any:
        began = time.perf_counter()
        found = work()
        self.server_seconds += time.perf_counter() - began
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clients", default="100,1000")
    parser.add_argument("--parameters", type=int, default=1_600_000)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    rows = [Costs(int(clients), asked.parameters).run() for clients in asked.clients.split(",")]
    for row in rows:
        print(*(f"{name} {value:.4g}" for name, value in row.items()))
    if asked.out:
        asked.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
