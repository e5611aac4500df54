"""The objective against the width of a network, and active units against the tolerance, on split MNIST's first task.

    .venv/bin/python bench/widths.py --seeds 2 --out results/units/widths.json --images docs/images

Every network learns 0v1 under the prior N(0, 1). Its objective is the negative ELBO in nats: the expected negative
log-likelihood of all training data under q, by 20 samples, plus KL(q ‖ prior). Kronecker posteriors are measured as
trained, at their own temperature; at β = 1 the objective is the one that they are trained for.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import vcl
from vcl import learning
from vcl.analysis.stored import ask, marginals
from vcl.analysis.units import active_units, information, outgoing, removal_effects
from vcl.evaluation import in_batches
from vcl.learning import Snapshot
from vcl.methods.kronecker_vcl import KroneckerVCL, believed
from vcl.nets import select_head
from vcl.posteriors.mean_field import kl_terms
from vcl.report.figures.drawing import DISTINCT, canvas, caption, saved, tidy
from vcl.runs import prepare_jax
from vcl.training import Fitter

WIDTHS = (1, 2, 5, 20, 50, 200)
TOLERANCES = (0.00001, 0.00003, 0.0001, 0.0002, 0.0005, 0.001, 0.003, 0.01, 0.03, 0.1)
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mean field": ("vcl", "paper", {"epochs": 100, "train_samples": 1, "learning_rate": 0.01, "schedule": "cosine"}),
    "Kronecker, β = 1": ("kronecker-vcl", "published", {"epochs": 15, "curvature_under": "earlier"}),
    "Kronecker, β = 0.01": ("kronecker-vcl", "fast", {"epochs": 15}),
}
"""Method, recipe and settings. Few samples and a falling rate reach a lower objective in a hundred epochs."""
LONGER = {"mean field, 600 epochs": ("vcl", "paper", {**FAMILIES["mean field"][2], "epochs": 600})}
"""To see what more training would change, at the largest width."""


def learnt(method: str, recipe: str, settings: dict[str, Any], width: int, seed: int) -> Snapshot:
    config = vcl.configure("split-mnist", method, recipe=recipe, seed=seed, hidden=(width,), **settings)
    stream = vcl.build("split-mnist", vcl.StreamOptions(num_tasks=1), seed=seed)
    start = learning.begin(config.learner, stream.spec, seed)
    return learning.observe(start, stream.task(0), stream.train(0), Fitter())


def measured(now: Snapshot) -> dict[str, Any]:
    """The objective and its parts in nats, and how many units are active."""
    learner: Any = now.learner
    stream = vcl.build("split-mnist", vcl.StreamOptions(num_tasks=1), seed=now.seed)
    examples = stream.train(0)
    key, params = learning.predictor(now, stream.task(0))
    predict = jax.jit(lambda k, x: (jnp.mean(learner.predict(k, params, x), axis=0),))
    (log_probs,) = in_batches(predict, key, examples.inputs, False)
    loss = -float(np.sum(log_probs[np.arange(len(examples.labels)), examples.labels].astype(float)))
    q, prior = marginals(learner, now.state), marginals(learner, learner.init(key, now.spec))
    probes, trained = ask(stream, 1), np.array([True])
    effects = removal_effects(key, q, probes)
    counts = {
        tolerance: int(active_units(key, q, probes, trained, effects, tolerance)[0].sum())
        for tolerance in TOLERANCES
    }
    found = {"negative_log_likelihood": loss, "active": counts}
    if isinstance(learner, KroneckerVCL):
        posterior = learner.posterior(believed(now.state, 0))
        family = learner.family
        divergence = float(family.kl(posterior, family.prior(posterior.mean, learner.prior_std)))
    else:
        divergence = float(learner.family.kl(select_head(q, 0), select_head(prior, 0)))
        idle = ~active_units(key, q, probes, trained, effects)[0]
        both = [outgoing(network, trained)[0] for network in (q.mean, q.log_var, prior.mean, prior.log_var)]
        found["idle"] = {
            "incoming_kl": float(information(q, prior)[0][idle].sum()),
            "outgoing_kl": float(np.asarray(kl_terms(*both))[idle].sum()),
            "outgoing_standard_deviation": float(np.median(np.exp(0.5 * np.asarray(both[1]))[idle]))
            if any(idle)
            else None,
        }
    return {**found, "kl": divergence, "objective": loss + divergence}


def objectives(rows: list[dict[str, Any]]) -> bytes:
    """Objective and its two parts against width, a panel for each family."""
    figure = canvas(9.0, 3.6, "Split MNIST, first task: objective and width")
    for axes, family in zip(figure.subplots(1, 3, sharey=True), FAMILIES, strict=True):
        for name, label, colour in (
            ("objective", "negative ELBO", "#000000"),
            ("kl", "KL to the prior", DISTINCT[0]),
            ("negative_log_likelihood", "expected −log-likelihood", DISTINCT[1]),
        ):
            found = {w: [r[name] for r in rows if (r["family"], r["width"]) == (family, w)] for w in WIDTHS}
            found = {width: values for width, values in found.items() if values}
            low, middle, high = ([f(values) for values in found.values()] for f in (np.min, np.mean, np.max))
            axes.plot([*found], middle, "o-", ms=4, lw=1.4, color=colour, label=label)
            axes.fill_between([*found], low, high, color=colour, alpha=0.15, lw=0)
        axes.set(xscale="log", yscale="log", title=family, xlabel="hidden units", xticks=WIDTHS, xticklabels=WIDTHS)
        axes.minorticks_off()
        tidy(axes)
    figure.axes[0].set_ylabel("nats")
    lines, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside upper right", frameon=False, fontsize=8, ncols=3)
    seeds = len({row["seed"] for row in rows})
    caption(
        figure,
        f"Mean over seeds, and from smallest to largest; number of seeds: {seeds}. Both axes are logarithmic.",
    )
    return saved(figure, "png")


def tolerances(rows: list[dict[str, Any]]) -> bytes:
    """How many of the widest networks' units are active, by the tolerance of the rule."""
    names = dict.fromkeys(row["family"] for row in rows)
    widest = min(max(row["width"] for row in rows if row["family"] == name) for name in names)
    figure = canvas(7.0, 3.4, f"Split MNIST, first task: active units of {widest}")
    axes = figure.subplots()
    for name, colour in zip(names, DISTINCT, strict=False):
        counts = np.array(
            [list(row["active"].values()) for row in rows if (row["family"], row["width"]) == (name, widest)]
        )
        axes.plot(TOLERANCES, counts.mean(axis=0), "o-", ms=4, lw=1.4, color=colour, label=name)
        axes.fill_between(TOLERANCES, counts.min(axis=0), counts.max(axis=0), color=colour, alpha=0.15, lw=0)
    axes.axvline(0.0002, color="#9a9a9a", lw=0.8, ls=":")
    axes.set(xscale="log", yscale="log", xlabel="tolerance: how far predictions may move (total variation)")
    axes.set(ylabel="active units")
    ticks = [tick for tick in (1, 2, 5, 10, 20, 50, 100, 200) if tick <= widest]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    figure.legend(loc="outside right center", frameon=False, fontsize=8)
    tidy(axes)
    caption(figure, "Mean over seeds, and from smallest to largest. Dotted: the default of `vcl units`.")
    return saved(figure, "png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True, help="JSON; what is in it already is not run again")
    parser.add_argument("--images", type=Path, required=True, help="folder for the figures")
    options = parser.parse_args()
    prepare_jax(1)
    rows = json.loads(options.out.read_text()) if options.out.exists() else []
    asked = [(name, *FAMILIES[name], w, s) for s in range(options.seeds) for w in WIDTHS for name in FAMILIES]
    asked += [(name, *what, WIDTHS[-1], s) for s in range(options.seeds) for name, what in LONGER.items()]
    for name, method, recipe, settings, width, seed in asked:
        place = {"family": name, "width": width, "seed": seed}
        if not any(place.items() <= row.items() for row in rows):
            row = {**place, **measured(learnt(method, recipe, settings, width, seed))}
            print(json.dumps(row, ensure_ascii=False), flush=True)
            rows.append(json.loads(json.dumps(row)))
            options.out.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    (options.images / "objective-width.png").write_bytes(objectives(rows))
    (options.images / "active-tolerance.png").write_bytes(tolerances(rows))


if __name__ == "__main__":
    main()
