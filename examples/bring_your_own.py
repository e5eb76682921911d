"""Your own clients, your own model: cluster a federation that Coterie knows nothing about.

    python examples/bring_your_own.py

Twelve clients measure the same two features. Half of them call a point positive where the features
agree in sign, half where they differ: no single model can serve both, and nobody knows who is who.
The data here are made up; put your own arrays in place of ``measure``. With files instead of
arrays, one ``.npz`` per client in a folder: ``coterie run --scenario folder/clients --data
FOLDER``.
"""

import numpy as np
from torch import nn

import coterie


def measure(client: int) -> tuple[np.ndarray, np.ndarray]:
    """(x ``(200, 2)``, y ``(200,)``) of one client: features, and labels 0 or 1."""
    rng = np.random.default_rng(client)
    x = rng.standard_normal((200, 2)).astype(np.float32)
    agree = x[:, 0] * x[:, 1] > 0
    return x, (agree if client % 2 else ~agree).astype(np.int64)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))


def main(rounds: int = 15) -> None:
    training = coterie.Training(lr=0.5, batch=20, epochs=5)
    world = coterie.from_lists(
        [measure(client) for client in range(12)], model=model, training=training
    )
    for method in ("fedavg", "cfl"):
        for round in coterie.run(method, world, rounds=rounds, workers=1):
            for note in round.notes:
                if note.kind == "split":
                    print(f"round {round.number}: {note.text}")
        print(f"{method}: {round.mean():.1%} on the clients' own test data, groups {round.groups}")


if __name__ == "__main__":
    main()
