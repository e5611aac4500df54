"""What bench/peers.py runs in its own environment: steps of VCL and of fine-tuning in PyTorch, as JSON.

Plain PyTorch as one would write it: local reparameterisation, the KL divergence in closed form, Adam (fused).
"""

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

STEPS = 24
PIXELS = 784


def batches(batch_size: int, classes: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Shuffled minibatches of random images: 8-bit, as ours are, turned into floats when they are used."""
    count = batch_size * STEPS
    images = (torch.rand(count, PIXELS) < 0.2).to(torch.uint8) * torch.randint(
        0, 256, (count, PIXELS), dtype=torch.uint8
    )
    labels = torch.randint(0, classes, (count,))
    while True:
        order = torch.randperm(count)
        for start in range(0, count, batch_size):
            rows = order[start : start + batch_size]
            yield images[rows].float() / 255.0, labels[rows]


def vcl(widths: list[int], batch_size: int, samples: int, compiled: bool) -> Callable[[], None]:
    """A step of VCL on the first task."""
    shapes = list(itertools.pairwise(widths))
    means = [(0.1 * torch.randn(i, o)).requires_grad_() for i, o in shapes]
    mean_biases = [(0.1 * torch.randn(o)).requires_grad_() for _, o in shapes]
    log_vars = [torch.full((i, o), -6.0).requires_grad_() for i, o in shapes]
    log_var_biases = [torch.full((o,), -6.0).requires_grad_() for _, o in shapes]
    params = [*means, *mean_biases, *log_vars, *log_var_biases]
    prior = [(torch.zeros_like(m), torch.zeros_like(m)) for m in (*means, *mean_biases)]
    optimiser = torch.optim.Adam(params, 0.005, fused=True)
    stream = batches(batch_size, widths[-1])

    def loss(inputs: Tensor, labels: Tensor) -> Tensor:
        h = inputs
        for layer in range(len(shapes)):
            centre = h @ means[layer] + mean_biases[layer]
            variance = (h * h) @ log_vars[layer].exp() + log_var_biases[layer].exp()
            shape = centre.shape if layer else (samples, *centre.shape)
            a = centre + variance.sqrt() * torch.randn(shape)
            h = a if layer == len(shapes) - 1 else functional.relu(a)
        likelihood = functional.cross_entropy(h.reshape(-1, widths[-1]), labels.repeat(samples))
        divergence = torch.zeros(())
        q = zip((*means, *mean_biases), (*log_vars, *log_var_biases), prior, strict=True)
        for mean, log_var, (prior_mean, prior_log_var) in q:
            ratio = (log_var - prior_log_var).exp()
            distance = (mean - prior_mean) ** 2 * (-prior_log_var).exp()
            divergence = divergence + 0.5 * (prior_log_var - log_var - 1.0 + ratio + distance).sum()
        return likelihood + divergence / 60_000

    objective = torch.compile(loss) if compiled else loss

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        objective(*next(stream)).backward()
        optimiser.step()

    return step


def finetune(widths: list[int], batch_size: int, compiled: bool) -> Callable[[], None]:
    """A step of maximum likelihood."""
    layers: list[torch.nn.Module] = []
    for i, o in itertools.pairwise(widths):
        layers += [torch.nn.Linear(i, o), torch.nn.ReLU()]
    network: Callable[[Tensor], Tensor] = torch.nn.Sequential(*layers[:-1])
    optimiser = torch.optim.Adam(network.parameters(), 0.001, fused=True)  # type: ignore[attr-defined]
    network = torch.compile(network) if compiled else network
    stream = batches(batch_size, widths[-1])

    def step() -> None:
        inputs, labels = next(stream)
        optimiser.zero_grad(set_to_none=True)
        functional.cross_entropy(network(inputs), labels).backward()
        optimiser.step()

    return step


def main() -> None:
    asked = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    method = asked.pop("method")
    rounds = asked.pop("rounds")
    step = vcl(**asked) if method == "vcl" else finetune(**asked)
    taken = []
    for number in range(rounds + 1):
        began = time.process_time()
        for _ in range(STEPS):
            step()
        if number:  # the first is for warming up
            taken.append((time.process_time() - began) / STEPS)
    print(json.dumps(taken))


if __name__ == "__main__":
    main()
