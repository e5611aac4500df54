"""Progressive neural networks (Rusu et al., 2016).

Every task gets a column, a network of its own, that also reads the hidden layers of the columns before it:

    h_i = relu(h_{i-1} W_i + Σ_{j<t} h^j_{i-1} U_{i,j} + b_i),

where h is the column of task t, h^j that of task j, and the last layer has no relu. Only the newest column learns,
so nothing is ever forgotten, and parameters grow with the square of the number of tasks. A task is predicted by its
own column, in the domain scenario too: the method needs the task at test time. The laterals U are linear; the paper
also has adapters, which project the earlier columns to fewer dimensions first.

The activations of frozen columns do not change during training, so they are computed once for each task. They take
4 · examples · (tasks - 1) · units bytes: 0.4 GB for ten tasks of 60000 images and 200 units.
"""

import functools
from dataclasses import dataclass, replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, Shaped

from vcl.core import Fit, Footprint, StreamSpec, Task, check_index, size
from vcl.errors import VclError
from vcl.methods.base.settings import Recipes, Settings, family_settings
from vcl.nets import Affine, Weights, cross_entropy, pixels, point, random, select_head
from vcl.nets import forward as forward_pass
from vcl.training import Adam, Batch, Data, masked_mean

ROWS = 1000
"""Examples per call of the frozen columns."""

Activations = tuple[Float[Array, "n old _"], ...]
"""Of each hidden layer, for all columns that can ever be old; zero for those that do not exist yet."""


class Column(eqx.Module):
    """One column; in the state, all of them, stacked over tasks."""

    network: Weights
    laterals: tuple[Float[Array, "*tasks old _ _"], ...]
    """U for every layer but the first, from each earlier column. Those from columns that are not earlier stay 0."""


class ProgressiveState(eqx.Module):
    columns: Column
    learnt: Bool[Array, "tasks"]


class ProgressiveParams(eqx.Module):
    columns: Column
    task: Int[Array, ""]


@dataclass(frozen=True)
class Progressive(Settings):
    """Progressive networks: a new column for each task that also reads the frozen columns before it.

    Examples
    --------
    >>> Progressive(hidden=(100, 100)).needs_task_id
    True
    """

    needs_task_id: ClassVar[bool] = True
    dense_only: ClassVar[str] = (
        "The lateral connections of progressive networks are defined here for dense layers only."
    )
    recipes: ClassVar[Recipes] = {
        "fast": family_settings(
            split={"learning_rate": 0.003, "schedule": "cosine"},
            permuted={"learning_rate": 0.003, "schedule": "cosine", "epochs": 6},
            split_mnist={"learning_rate": 0.0046, "schedule": "constant"},
        ),
        # The paper has reinforcement learning only: one pass, batches of 10 as in Chaudhry et al. (2019), but Adam.
        "published": family_settings(
            split={"learning_rate": 0.001, "epochs": 1, "batch_size": 10},
            permuted={"learning_rate": 0.001, "epochs": 1, "batch_size": 10},
        ),
    }

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> ProgressiveState:
        if spec.scenario == "class":
            raise VclError(
                "Progressive networks are undefined in the class scenario: a column knows its own task's classes "
                "only, and nothing tells which column to ask. Use --scenario task or domain, where the task is told."
            )
        one = replace(spec, heads=(0,))
        # The first column is initialised as in fine-tuning.
        keys = jnp.stack([key, *(jax.random.fold_in(key, t) for t in range(1, spec.num_tasks))])
        networks = jax.vmap(lambda k: select_head(random(k, self.architecture, one), 0))(keys)
        # Zero, so that the scale of a new column's activations does not depend on the number of columns.
        old = max(spec.num_tasks - 1, 1)
        laterals = tuple(
            jnp.zeros((spec.num_tasks, old, *layer.weight.shape[1:]))
            for layer in [*networks.body[1:], networks.head]
        )
        return ProgressiveState(Column(networks, laterals), jnp.zeros(spec.num_tasks, bool))

    def observe(
        self, key: Key[Array, ""], state: ProgressiveState, task: Task, data: Data, fit: Fit
    ) -> ProgressiveState:
        if bool(state.learnt[task.index + 1 :].any()):
            raise VclError(
                f"Task {task.index + 1} has more data, but later tasks were learnt since, and their columns read "
                "that of this task: it is frozen, as the publication has it. Teach such data as a task of its own."
            )
        start = select(state.columns, task.index)
        old = all_activations(state.columns, jnp.int32(task.index), data.inputs)
        rows = Data(jnp.arange(data.capacity)[:, None], data.labels, data.size)
        step = Adam(self.loss, self.learning_rate, self.schedule)
        column = fit(
            key, "train", step, start, (data.inputs, old), rows, epochs=self.epochs, batch_size=self.batch_size
        )
        columns = jax.tree.map(lambda a, b: a.at[task.index].set(b), state.columns, column)
        return ProgressiveState(columns, state.learnt.at[task.index].set(True))

    def readout(self, key: Key[Array, ""], state: ProgressiveState, task: Task, fit: Fit) -> ProgressiveParams:
        check_index("task", task.index, len(state.learnt))
        return ProgressiveParams(state.columns, jnp.int32(task.index))

    def predict(
        self, key: Key[Array, ""], params: ProgressiveParams, inputs: Shaped[Array, "n d"]
    ) -> Float[Array, "1 n c"]:
        """log p(y | x, θ), as a single draw."""
        x = pixels(inputs)
        old = activations(params.columns, params.task, x)
        return jax.nn.log_softmax(forward(select(params.columns, params.task), x, old)[1])[None]

    def footprint(self, state: ProgressiveState) -> Footprint:
        """Columns that have learnt, each with its laterals from the columns before it."""
        tasks = state.learnt.shape[0]
        own = size(state.columns.network) // tasks
        lateral = sum(u[0, 0].size for u in state.columns.laterals)
        return Footprint(sum(own + t * lateral for t in range(tasks) if bool(state.learnt[t])))

    def loss(
        self, key: Key[Array, ""], column: Column, args: tuple[Shaped[Array, "n d"], Activations], batch: Batch
    ) -> Float[Array, ""]:
        """-Σ_n log p(y_n | x_n, θ) / N. A batch names rows: of the inputs, and of the old columns' activations."""
        x, old = jax.tree.map(lambda a: a[batch.inputs[:, 0]], args)
        outputs = forward(column, pixels(x), old)[1]
        return masked_mean(cross_entropy(outputs, batch.labels), batch.mask)


def select(columns: Column, task: int | Int[Array, ""]) -> Column:
    check_index("task", task, len(columns.network.head.bias))
    return jax.tree.map(lambda a: a[task], columns)


def forward(
    column: Column, inputs: Float[Array, "n d"], old: Activations
) -> tuple[tuple[Float[Array, "n _"], ...], Float[Array, "n c"]]:
    """The hidden layers of a column, and its logits."""
    hidden: list[Float[Array, "n _"]] = []

    def affine(number: int, layer: Affine, h: Float[Array, "n i"]) -> Float[Array, "n o"]:
        if number == 0:
            return point(number, layer, h)
        hidden.append(h)
        lateral, across = column.laterals[number - 1], old[number - 1]
        return h @ layer.weight + across.reshape(len(h), -1) @ lateral.reshape(-1, lateral.shape[-1]) + layer.bias

    outputs = forward_pass(column.network, column.network.layers, inputs, affine)
    return tuple(hidden), outputs


def activations(columns: Column, task: Int[Array, ""], inputs: Float[Array, "n d"]) -> Activations:
    """The hidden layers of the columns before `task`; no others are computed."""

    def add(t: Int[Array, ""], old: Activations) -> Activations:
        hidden, _ = forward(select(columns, t), inputs, old)
        return tuple(a.at[:, t].set(h) for a, h in zip(old, hidden, strict=True))

    nothing = tuple(jnp.zeros((len(inputs), *u.shape[1:3])) for u in columns.laterals)
    return jax.lax.fori_loop(0, task, add, nothing)


@jax.jit
def all_activations(columns: Column, task: Int[Array, ""], inputs: Shaped[Array, "n d"]) -> Activations:
    """`activations` for a whole data set, some rows at a time."""
    one = functools.partial(activations, columns, task)
    return jax.lax.map(lambda x: jax.tree.map(lambda a: a[0], one(pixels(x[None]))), inputs, batch_size=ROWS)
