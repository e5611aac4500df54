"""Progressive neural networks (Rusu et al., 2016).

Every task gets a column, a network of its own, that also reads the hidden layers of the columns before it:

    h_i = relu(h_{i-1} W_i + Σ_{j<t} h^j_{i-1} U_{i,j} + b_i),

where h is the column of task t, h^j that of task j, and the last layer has no relu. Only the newest column learns,
so nothing is ever forgotten, and parameters grow with the square of the number of tasks. The column that answers is
the task's own, in the domain scenario too: the method is told the task at test time.

Frozen columns answer the same in every epoch, so their activations on a task's data are computed once, before it is
learnt. They take 4 · examples · (tasks - 1) · units bytes: 0.4 GB for ten tasks of 60000 images and 200 units.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, Shaped

from vcl.core import Fit, Footprint, StreamSpec, Task, size
from vcl.errors import VclError
from vcl.methods.point import Settings, recipes
from vcl.networks import MLP, cross_entropy, pixels, random, select_head
from vcl.training import Adam, Batch, Data, masked_mean

ROWS = 1000
"""Examples that the frozen columns see at once."""

Activations = tuple[Float[Array, "n old _"], ...]
"""Of each hidden layer, for all columns that can ever be old; zero for those that do not exist yet."""


class Column(eqx.Module):
    """One column; in the state, all of them, stacked over tasks."""

    network: MLP
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
    """Progressive networks: a new column for each task that also reads the frozen columns before it."""

    told_the_task: ClassVar[bool] = True
    recipes: ClassVar[dict[str, dict[str, dict[str, Any]]]] = recipes(
        split={"learning_rate": 0.003, "schedule": "cosine"},
        permuted={"learning_rate": 0.003, "schedule": "cosine", "epochs": 6},
    )

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> ProgressiveState:
        if spec.scenario == "class":
            raise VclError(
                "Progressive networks are undefined in the class scenario: a column knows its own task's classes "
                "only, and nothing tells which column to ask. Use --scenario task or domain, where the task is told."
            )
        one = replace(spec, heads=(0,))
        # The first column begins where fine-tuning would.
        keys = jnp.stack([key, *(jax.random.fold_in(key, t) for t in range(1, spec.num_tasks))])
        networks = jax.vmap(lambda k: select_head(random(k, self.hidden, one), 0))(keys)
        # Zero: a new column begins as if it were alone, however many there are before it.
        old = max(spec.num_tasks - 1, 1)
        laterals = tuple(
            jnp.zeros((spec.num_tasks, old, *layer.weight.shape[1:]))
            for layer in [*networks.body[1:], networks.head]
        )
        return ProgressiveState(Column(networks, laterals), jnp.zeros(spec.num_tasks, bool))

    def observe(
        self, key: Key[Array, ""], state: ProgressiveState, task: Task, data: Data, fit: Fit
    ) -> ProgressiveState:
        old = all_activations(state.columns, jnp.int32(task.index), data.inputs)
        rows = Data(jnp.arange(data.capacity)[:, None], data.labels, data.size)
        step = Adam(self.loss, self.learning_rate, self.schedule)
        start = select(state.columns, task.index)
        column = fit(
            key, "train", step, start, (data.inputs, old), rows, epochs=self.epochs, batch_size=self.batch_size
        )
        columns = jax.tree.map(lambda a, b: a.at[task.index].set(b), state.columns, column)
        return ProgressiveState(columns, state.learnt.at[task.index].set(True))

    def readout(self, key: Key[Array, ""], state: ProgressiveState, task: Task, fit: Fit) -> ProgressiveParams:
        return ProgressiveParams(state.columns, jnp.int32(task.index))

    def predict(
        self, key: Key[Array, ""], params: ProgressiveParams, inputs: Shaped[Array, "n d"]
    ) -> Float[Array, "1 n c"]:
        """log p(y | x, θ): one draw, since one θ is all that is believed."""
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
    return jax.tree.map(lambda a: a[task], columns)


def forward(
    column: Column, inputs: Float[Array, "n d"], old: Activations
) -> tuple[tuple[Float[Array, "n _"], ...], Float[Array, "n c"]]:
    """The hidden layers of a column, and its logits."""
    first, *others = column.network.body
    outputs = inputs @ first.weight + first.bias
    hidden = []
    for layer, lateral, h in zip([*others, column.network.head], column.laterals, old, strict=True):
        hidden.append(jax.nn.relu(outputs))
        across = h.reshape(len(h), -1) @ lateral.reshape(-1, lateral.shape[-1])
        outputs = hidden[-1] @ layer.weight + across + layer.bias
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
