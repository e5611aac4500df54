"""What bench/peers.py runs in its own environment: Kronecker factors by laplace-torch, as JSON."""

import json
import sys
import time
import warnings

import torch
import torch_operators  # noqa: F401 (it defines operators)

warnings.filterwarnings("ignore")

from laplace import Laplace  # noqa: E402


def main() -> None:
    asked = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    count = asked["examples"]
    images = (torch.rand(count, 784) < 0.2) * torch.rand(count, 784)
    data = torch.utils.data.TensorDataset(images, torch.randint(0, 10, (count,)))
    loader = torch.utils.data.DataLoader(data, batch_size=asked["batch_size"])
    linear = [torch.nn.Linear(i, o) for i, o in ((784, 100), (100, 100), (100, 10))]
    network = torch.nn.Sequential(linear[0], torch.nn.ReLU(), linear[1], torch.nn.ReLU(), linear[2])
    taken = []
    for number in range(asked["rounds"] + 1):
        posterior = Laplace(network, "classification", subset_of_weights="all", hessian_structure="kron")
        began = time.process_time()
        posterior.fit(loader)
        if number:  # the first is for warming up
            taken.append(time.process_time() - began)
    print(json.dumps(taken))


if __name__ == "__main__":
    main()
