"""Variational continual learning in one file: split MNIST, JAX and NumPy only.

    python examples/minimal_vcl.py FOLDER    # with MNIST's four files, as they are or as .gz

Five tasks come one after the other: tell 0 from 1, 2 from 3, … 8 from 9. Each has an output layer of its own; the
hidden layer is shared. Every weight has a mean and a variance. The posterior after one task is the prior of the next
(Swaroop, Nguyen, Bui & Turner, 2019, equation 1):

    L_t(q_t) = Σ_n E_{θ ~ q_t} [log p(y_n | θ, x_n)] - KL(q_t(θ) ‖ q_{t-1}(θ)).

It is the method `vcl` of the package, in fewer words; tests/test_minimal.py compares the two.
"""

import functools
import gzip
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

HIDDEN, EPOCHS, BATCH, RATE = 200, 40, 256, 0.01
PRIOR_STD, INIT_STD, INIT_LOG_VAR = 1.0, 0.2, -6.0
VARIANCE_RATE = 0.3  # log-variances learn more slowly than means: what is sure stays so for longer
SAMPLES = 20  # of the predictive distribution


# The posterior: a pair (means, log-variances), each a dictionary of arrays.


def like(inputs, hidden, outputs, weight, bias):
    """A network's worth of arrays; a head for one task."""
    return {
        "w1": weight((inputs, hidden)),
        "b1": bias((hidden,)),
        "w2": weight((hidden, outputs)),
        "b2": bias((outputs,)),
    }


def prior(inputs, hidden, outputs):
    """q_0 = N(0, PRIOR_STD²) for every weight and bias."""
    full = functools.partial(jnp.full, fill_value=2.0 * np.log(PRIOR_STD))
    return like(inputs, hidden, outputs, jnp.zeros, jnp.zeros), like(inputs, hidden, outputs, full, full)


def fresh(key, q):
    """Where a task's optimisation begins: small random means and variances, so that it uses units that are free."""
    means, structure = jax.tree.flatten(q[0])
    keys = jax.random.split(key, len(means))
    drawn = [INIT_STD * jax.random.normal(k, m.shape) for k, m in zip(keys, means, strict=True)]
    return jax.tree.unflatten(structure, drawn), jax.tree.map(lambda v: jnp.full_like(v, INIT_LOG_VAR), q[1])


def kl(q, p):
    """KL(q ‖ p) = ½ Σ [log(σ_p²/σ_q²) - 1 + (σ_q² + (μ_q - μ_p)²) / σ_p²]."""

    def terms(mean, log_var, prior_mean, prior_log_var):
        ratio = jnp.exp(log_var - prior_log_var) + (mean - prior_mean) ** 2 * jnp.exp(-prior_log_var)
        return 0.5 * jnp.sum(prior_log_var - log_var - 1.0 + ratio)

    return sum(jax.tree.leaves(jax.tree.map(terms, q[0], q[1], p[0], p[1])))


# The network


def layer(key, mean_w, mean_b, log_var_w, log_var_b, h):
    """Local reparameterisation (Kingma et al., 2015): sample pre-activations, for each example by itself."""
    centre = h @ mean_w + mean_b
    variance = (h * h) @ jnp.exp(log_var_w) + jnp.exp(log_var_b)
    return centre + jnp.sqrt(variance) * jax.random.normal(key, centre.shape)


def logits(key, q, x):
    """The network under one draw of its weights."""
    m, v = q
    first, second = jax.random.split(key)
    h = jax.nn.relu(layer(first, m["w1"], m["b1"], v["w1"], v["b1"], x))
    return layer(second, m["w2"], m["b2"], v["w2"], v["b2"], h)


def negative_elbo(q, p, key, x, y, size):
    """-L_t / N, estimated on a minibatch."""
    log_probs = jax.nn.log_softmax(logits(key, q, x))
    return -jnp.mean(log_probs[jnp.arange(len(y)), y]) + kl(q, p) / size


@jax.jit
def predict(key, q, x):
    """log p(y | x), averaged over draws from the posterior."""
    draws = jax.vmap(lambda k: jax.nn.log_softmax(logits(k, q, x)))(jax.random.split(key, SAMPLES))
    return jax.nn.logsumexp(draws, axis=0) - np.log(SAMPLES)


# Learning


def adam(gradient, moments, step):
    """The direction of Adam (Kingma & Ba, 2014)."""
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradient)
    second = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, moments[1], gradient)
    direction = jax.tree.map(
        lambda m, s: (m / (1 - 0.9 ** (step + 1))) / (jnp.sqrt(s / (1 - 0.999 ** (step + 1))) + 1e-8), first, second
    )
    return direction, (first, second)


@functools.partial(jax.jit, static_argnames=("epochs", "batch"))
def learn(key, start, p, x, y, epochs=EPOCHS, batch=BATCH):
    """Maximise L_t from `start`, with `p` as the prior: one compiled loop over all epochs."""
    steps = len(x) // batch
    zeros = jax.tree.map(jnp.zeros_like, start)

    def minibatch(i, carry):
        q, moments = carry
        epoch = jax.random.fold_in(key, i // steps)
        order = jax.random.permutation(epoch, len(x))
        rows = jax.lax.dynamic_slice(order, ((i % steps) * batch,), (batch,))
        gradient = jax.grad(negative_elbo)(q, p, jax.random.fold_in(epoch, i), x[rows], y[rows], len(x))
        (means, log_vars), moments = adam(gradient, moments, i)
        rate = RATE * 0.5 * (1 + jnp.cos(jnp.pi * i / (epochs * steps)))
        q = (
            jax.tree.map(lambda a, d: a - rate * d, q[0], means),
            jax.tree.map(lambda a, d: a - rate * VARIANCE_RATE * d, q[1], log_vars),
        )
        return q, moments

    q, _ = jax.lax.fori_loop(0, epochs * steps, minibatch, (start, (zeros, zeros)))
    return q


def with_head(q, head):
    """The shared layer of `q`, with another head's means and variances."""
    return tuple({**part, "w2": h["w2"], "b2": h["b2"]} for part, h in zip(q, head, strict=True))


def continual(tasks, *, seed=0, hidden=HIDDEN, epochs=EPOCHS, batch=BATCH):
    """Learn task after task, of (x, y, test x, test y) each; return the accuracies on all tasks so far."""
    key = jax.random.key(seed)
    inputs, outputs = tasks[0][0].shape[1], 1 + max(int(y.max()) for _, y, _, _ in tasks)
    q_0 = prior(inputs, hidden, outputs)
    posterior, heads, matrix = q_0, [], []
    for number, (x, y, _, _) in enumerate(tasks):
        start_key, fit_key, test_key = jax.random.split(jax.random.fold_in(key, number), 3)
        p = with_head(posterior, q_0)  # yesterday's posterior; a new head has the first prior
        posterior = learn(fit_key, fresh(start_key, p), p, jnp.asarray(x), jnp.asarray(y), epochs, batch)
        heads.append(posterior)
        row = []
        for (_, _, test_x, test_y), head in zip(tasks, heads, strict=False):
            answers = predict(test_key, with_head(posterior, head), jnp.asarray(test_x)).argmax(axis=1)
            row.append(float(np.mean(np.asarray(answers) == test_y)))
        print(f"after task {number + 1}: " + "  ".join(f"{100 * a:.2f} %" for a in row))
        matrix.append(row)
    return matrix


# Data


def read(folder, name):
    """A file of MNIST: big-endian sizes, then bytes."""
    path = next(p for p in (Path(folder, name), Path(folder, f"{name}.gz")) if p.exists())
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    axes = raw[3]
    sizes = np.frombuffer(raw, ">i4", count=axes, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(sizes)


def split_mnist(folder):
    """Five tasks, two digits each."""
    x, test_x = (
        read(folder, f"{part}-images-idx3-ubyte").reshape(-1, 784) / np.float32(255) for part in ("train", "t10k")
    )
    y, test_y = (read(folder, f"{part}-labels-idx1-ubyte").astype(np.int32) for part in ("train", "t10k"))
    pairs = [(y // 2 == t, test_y // 2 == t) for t in range(5)]
    return [(x[a], y[a] % 2, test_x[b], test_y[b] % 2) for a, b in pairs]


if __name__ == "__main__":
    accuracies = continual(split_mnist(sys.argv[1]))
    print(f"average accuracy {100 * np.mean(accuracies[-1]):.2f} %")
