"""A model as an ONNX graph: log probabilities and entropies, with the same draws of noise as our own predictions."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vcl import learning
from vcl.errors import VclError
from vcl.inputs import Label
from vcl.model import Model
from vcl.nets import Affine, Weights, is_linear
from vcl.noise import Generator, normal
from vcl.posteriors import Gaussian, MeanField
from vcl.posteriors.kronecker import MatrixNormal, Spread

OPSET = 17
IR_VERSION = 8


@dataclass
class Graph:
    """Nodes and constants, added one by one."""

    helper: Any
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def constant(self, value: Any) -> str:
        from onnx import numpy_helper

        name = f"c{len(self.constants)}"
        array = np.asarray(value)
        kept = array if array.dtype == np.int64 else array.astype(np.float32)
        self.constants.append(numpy_helper.from_array(kept, name))
        return name

    def add(self, operation: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        name = name or f"n{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(operation, list(inputs), [name], **attributes))
        return name


def export_onnx(model: Model, task: Label | None = None) -> bytes:
    """The graph for one task of a model; of networks of dense layers, with point weights or a Gaussian over them."""
    try:
        import onnx
        from onnx import TensorProto, helper
    except ImportError:
        raise VclError("Exporting needs the package onnx: pip install 'vcl[onnx]'.") from None
    place, classes, some = model.answering(task)
    key, params = learning.predictor(model.snapshot, place)
    spec = model.snapshot.spec
    graph = Graph(helper)
    pixels = spec.input_dtype == "uint8"
    inputs = "inputs"
    if pixels:
        cast = graph.add("Cast", inputs, to=TensorProto.FLOAT)
        inputs = graph.add("Div", cast, graph.constant(255.0))
    outputs = _outputs(graph, model, key, params, inputs)
    if some is not None:
        outputs = graph.add("Gather", outputs, graph.constant(some.astype(np.int64)), axis=2)
    log_probs = graph.add("LogSoftmax", outputs, axis=-1)
    samples = _samples(model, params)
    summed = graph.add("ReduceLogSumExp", log_probs, axes=[0], keepdims=0)
    average = graph.add("Sub", summed, graph.constant(np.log(samples)), name="log_probabilities")
    total = _entropy(graph, average, "total_entropy")
    each = _entropy(graph, log_probs)
    aleatoric = graph.add("ReduceMean", each, name="aleatoric_entropy", axes=[0], keepdims=0)
    epistemic = graph.add("Sub", total, aleatoric, name="epistemic_entropy")
    taken = TensorProto.UINT8 if pixels else TensorProto.FLOAT
    proto = helper.make_graph(
        graph.nodes,
        "vcl",
        [helper.make_tensor_value_info("inputs", taken, ["n", spec.input_size])],
        [
            helper.make_tensor_value_info(average, TensorProto.FLOAT, ["n", len(classes)]),
            *(
                helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"])
                for name in (total, aleatoric, epistemic)
            ),
        ],
        graph.constants,
    )
    made = helper.make_model(proto, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="vcl")
    made.ir_version = IR_VERSION
    helper.set_model_props(made, {"classes": "\n".join(str(model.classes_[number]) for number in classes)})
    onnx.checker.check_model(made)
    return bytes(made.SerializeToString())


def _outputs(graph: Graph, model: Model, key: Any, params: Any, inputs: str) -> str:
    """The outputs of the network under each draw: an array of (samples, examples, outputs)."""
    means = _mean(params)
    if not means.network.is_dense:
        raise VclError("Only networks of dense layers can be exported, and this one has others.")
    layers = means.layers
    keys = jax.random.split(key, len(layers))
    h = inputs
    for number, layer in enumerate(layers):
        centre = _affine(graph, layer, h)
        if isinstance(params, Gaussian):
            variance = jax.tree.map(np.exp, params.log_var.layers[number])
            deviation = graph.add("Sqrt", _affine(graph, variance, graph.add("Mul", h, h)))
            # What our own predictions draw for each example: see `MeanField.draw`.
            samples = _samples(model, params)
            one = jnp.ones((*((samples,) if number else ()), 1, layer.bias.shape[0]))
            noise = _family(model).draw(keys[number], (0 * one, one), None if number else samples)
            centre = graph.add("Add", centre, graph.add("Mul", deviation, graph.constant(noise)))
        elif isinstance(params, MatrixNormal):
            # What our own predictions draw for each example: see `KroneckerFactored.draw`.
            spread = params.spreads[number]
            shape = (_samples(model, params), 1, layer.bias.shape[0])
            draws = normal(keys[number], shape, generator=_generator(model))
            turned = graph.constant(draws @ spread.root.T)
            centre = graph.add("Add", centre, graph.add("Mul", _leverage_root(graph, spread, h), turned))
        elif number == 0:
            centre = graph.add("Unsqueeze", centre, graph.constant(np.array([0], np.int64)))
        linear = number == len(layers) - 1 or is_linear(means.network.layers[number])
        h = centre if linear else graph.add("Relu", centre)
    return h


def _mean(params: Any) -> Weights:
    if isinstance(params, Gaussian) and isinstance(params.mean, Weights):
        return params.mean
    if isinstance(params, MatrixNormal):
        return params.mean
    if isinstance(params, Weights):
        return params
    raise VclError(
        f"A method whose read-out is a {type(params).__name__} cannot be exported yet; point networks, mean-field "
        "and Kronecker-factored posteriors can."
    )


def _samples(model: Model, params: Any) -> int:
    learner: Any = model.learner
    return int(learner.test_samples) if isinstance(params, Gaussian | MatrixNormal) else 1


def _generator(model: Model) -> Generator:
    learner: Any = model.learner
    return learner.noise


def _family(model: Model) -> MeanField:
    """The posterior family, where predictions draw one pre-activation for each unit, example and sample."""
    learner: Any = model.learner
    family = getattr(learner, "family", None)
    if not isinstance(family, MeanField) or learner.estimator != "local" or family.noise_per == "class":
        raise VclError(
            f"{type(learner).__name__} with these settings cannot be exported: of Bayesian methods, those with a "
            "mean-field posterior, --estimator local, and noise for every example or minibatch can."
        )
    return family


def _affine(graph: Graph, layer: Affine, h: str) -> str:
    return graph.add("Add", graph.add("MatMul", h, graph.constant(layer.weight)), graph.constant(layer.bias))


def _leverage_root(graph: Graph, spread: Spread, h: str) -> str:
    """√(hᵀ U h), where h has the 1 of the bias."""
    inner = _affine(graph, Affine(spread.rows[:-1, :-1], spread.rows[-1, :-1]), h)
    of_bias = _affine(graph, Affine(spread.rows[:-1, -1:], spread.rows[-1, -1:]), h)
    last = graph.constant(np.array([-1], np.int64))
    leverage = graph.add("Add", graph.add("ReduceSum", graph.add("Mul", inner, h), last, keepdims=1), of_bias)
    return graph.add("Sqrt", graph.add("Max", leverage, graph.constant(np.float32(1e-12))))


def _entropy(graph: Graph, log_probs: str, name: str = "") -> str:
    """-Σ p log p over the last axis."""
    product = graph.add("Mul", graph.add("Exp", log_probs), log_probs)
    return graph.add(
        "Neg", graph.add("ReduceSum", product, graph.constant(np.array([-1], np.int64)), keepdims=0), name=name
    )
