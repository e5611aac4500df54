"""What bench/peers.py runs in its own environment: the second of two tasks in Avalanche, as JSON."""

import json
import sys
import time
import warnings

import torch
import torch_operators  # noqa: F401 (it defines operators)
from torch import Tensor

warnings.filterwarnings("ignore")

from avalanche.benchmarks.scenarios.dataset_scenario import benchmark_from_datasets  # noqa: E402
from avalanche.benchmarks.utils.utils import as_classification_dataset  # noqa: E402
from avalanche.models import SimpleMLP  # noqa: E402
from avalanche.training.plugins import EvaluationPlugin  # noqa: E402
from avalanche.training.supervised import AGEM, EWC, GEM, Naive, SynapticIntelligence  # noqa: E402

STRATEGIES = {
    "finetune": (Naive, {}),
    "ewc": (EWC, {"ewc_lambda": 10.0}),
    "si": (SynapticIntelligence, {"si_lambda": 0.1}),
    "gem": (GEM, {"patterns_per_exp": 256}),
    "agem": (AGEM, {"patterns_per_exp": 256, "sample_size": 256}),
}


class Images(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Random images with labels."""

    def __init__(self, count: int) -> None:
        self.images = (torch.rand(count, 784) < 0.2) * torch.rand(count, 784)
        self.targets = torch.randint(0, 10, (count,)).tolist()

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.images[row], self.targets[row]


def main() -> None:
    asked = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    stream = benchmark_from_datasets(
        train=[as_classification_dataset(Images(asked["examples"])) for _ in range(asked["rounds"] + 1)]
    ).train_stream
    network = SimpleMLP(num_classes=10, input_size=784, hidden_size=100, hidden_layers=2, drop_rate=0.0)
    kind, settings = STRATEGIES[asked["method"]]
    strategy = kind(
        model=network,
        optimizer=torch.optim.Adam(network.parameters(), 0.001, fused=True),
        criterion=torch.nn.CrossEntropyLoss(),
        train_mb_size=asked["batch_size"],
        train_epochs=asked["epochs"],
        evaluator=EvaluationPlugin(),
        **settings,
    )
    taken = []
    for number, experience in enumerate(stream):
        began = time.process_time()
        strategy.train(experience)
        if number:  # the first has nothing to remember yet
            taken.append(time.process_time() - began)
    print(json.dumps(taken))


if __name__ == "__main__":
    main()
