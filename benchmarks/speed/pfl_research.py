"""Apple's pfl-research (the package ``pfl``), written as its documentation has it: one process, data in memory.

It trains a client's batches in their fixed order, without shuffling. Its training with several
processes needs a launcher and is not measured: with two, it can be twice as fast at most.
"""

from __future__ import annotations

import importlib.util
import time
from typing import Any

import torch
from torch import Tensor, nn

from .workloads import Workload, examples

FOREVER = 10**9


def installed() -> bool:
    """Whether pfl and what it imports are there."""
    return all(
        importlib.util.find_spec(name) is not None
        for name in ("pfl", "prv_accountant", "dp_accounting")
    )


class _Module(nn.Module):
    """The network with the loss that pfl asks for; no round is tested."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.network(x).flatten(0, -2), y.flatten())

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        from pfl.metrics import Weighted

        with torch.no_grad():
            return {"loss": Weighted(float(self.loss(x, y)), len(y))}


class Research:
    """``seconds()``: wall time of the next round of its federated averaging.

    threads: PyTorch's, within an operation. device: where the data lie; its models go to a GPU if there is one.
    """

    def __init__(self, work: Workload, *, threads: int, device: str = "cpu") -> None:
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.data.dataset import Dataset
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.data.sampling import MinimizeReuseUserSampler
        from pfl.hyperparam import NNTrainHyperParams
        from pfl.model.pytorch import PyTorchModel

        self.threads = threads
        network = _Module(work.module())
        model = PyTorchModel(
            network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0)
        )
        kept = {}
        for client in range(work.clients):
            x, y = examples(work, client)
            kept[client] = Dataset(raw_data=(x.to(device), y.to(device)))
        data = FederatedDataset(kept.__getitem__, MinimizeReuseUserSampler(list(kept)))
        self.algorithm = FederatedAveraging()
        self.given = {
            "algorithm_params": NNAlgorithmParams(FOREVER, FOREVER, work.asked, 0),
            "backend": SimulatedBackend(data, data),
            "model": model,
            "model_train_params": NNTrainHyperParams(work.batch, work.epochs, work.lr),
            "callbacks": [_after_one_round()],
            "send_metrics_to_platform": False,
        }

    def seconds(self) -> float:
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        since = time.perf_counter()
        try:
            self.algorithm.run(**self.given)
        finally:
            torch.set_num_threads(before)
        return time.perf_counter() - since

    def close(self) -> None:
        """There is nothing to end."""


def _after_one_round() -> Any:
    from pfl.callback.base import TrainingProcessCallback
    from pfl.metrics import Metrics

    class Stop(TrainingProcessCallback):
        def after_central_iteration(self, *args: Any, **options: Any) -> tuple[bool, Metrics]:
            return True, Metrics()

    return Stop()
