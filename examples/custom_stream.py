"""Learn tasks of your own from arrays, and ask the network how sure it is.

.venv/bin/python examples/custom_stream.py
"""

import numpy as np

import vcl
from vcl import learning
from vcl.training import Fitter

rng = np.random.default_rng(0)


def clouds(axis: int, examples: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Two clouds of points in ten dimensions, apart along one axis."""
    labels = rng.integers(0, 2, examples)
    points = rng.normal(0.0, 0.5, (examples, 10))
    points[:, axis] += 2.0 * labels - 1.0
    return points, labels


stream = vcl.from_arrays([(*clouds(task), *clouds(task)) for task in range(3)])
learner = vcl.VCL(hidden=(20,), epochs=60, batch_size=64)
result = vcl.learn(learner, stream, seed=0)
for number, row in enumerate(result["accuracy_matrix"], start=1):
    print(f"after task {number}:", [f"{a:.3f}" for a in row if a is not None])

# The same by hand: a fold over what arrives.
snapshot = learning.begin(learner, stream.spec, seed=0)
for stage in range(len(stream.stages)):
    snapshot = learning.observe(snapshot, stream.task(stage), stream.train(stage), Fitter())

near = stream.test(0).inputs
far = rng.normal(0.0, 5.0, near.shape).astype(np.float32)
for name, points in (("like the training data", near), ("far from it", far)):
    answer = learning.predict(snapshot, stream.spec.task(0), points)
    total, epistemic = answer.total_entropy.mean(), answer.epistemic_entropy.mean()
    print(f"{name}: predictive entropy {total:.3f} nats, of which {epistemic:.3f} are epistemic uncertainty")
