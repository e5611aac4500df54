"""One task's data in twelve batches, through `vcl.Model`: VCL against all at once and against fine-tuning.

    .venv/bin/python bench/batches.py --seeds 5

Digits, test data. The settings of `vcl` are those of its recipe `online` for permuted digits; those of
`kronecker-vcl-recall` are what `vcl learn` gives it by default.
"""

import argparse
from statistics import mean, stdev

import numpy as np

import vcl
from vcl.benchmarks.streams import online
from vcl.kept.model import default_settings
from vcl.methods import make

BATCHES = 12


def accuracy(method: str, settings: dict, seed: int, *, batches: int) -> float:
    """Test accuracy after the last batch."""
    stream = vcl.build("permuted-digits", vcl.StreamOptions(num_tasks=1), seed)
    whole = len(stream.train(0).labels)
    stream = online(stream, -(-whole // batches), seed)
    model = vcl.Model(make(method, settings), seed=seed)
    for stage in range(len(stream.stages)):
        x, y, _ = stream.train(stage)
        model.learn(x, y)
    return model.score(*stream.test(0)[:2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    variational = vcl.METHODS["vcl"].recipes["online"]["permuted-digits"]
    point = vcl.METHODS["finetune"].recipes["fast"]["permuted-digits"]
    kept = default_settings("kronecker-vcl-recall", examples=120)
    rows = {
        "recall, twelve batches": ("kronecker-vcl-recall", kept, BATCHES),
        "recall, all at once": ("kronecker-vcl-recall", kept, 1),
        "vcl, twelve batches": ("vcl", variational, BATCHES),
        "vcl, all at once": ("vcl", variational, 1),
        "finetune, twelve batches": ("finetune", point, BATCHES),
        "finetune, all at once": ("finetune", point, 1),
    }
    for name, (method, settings, batches) in rows.items():
        found = [100 * accuracy(method, settings, seed, batches=batches) for seed in seeds]
        spread = f" ± {stdev(found):.2f}" if len(found) > 1 else ""
        print(f"{name:26}{mean(found):6.2f}{spread}   {np.round(found, 2).tolist()}", flush=True)


if __name__ == "__main__":
    main()
