"""Networks: layers as values, one forward pass, heads and losses."""

from vcl.nets.heads import by_head, logits_by_head, map_weights, replace_head, select_head, wide
from vcl.nets.layers import Conv, Dense, Flatten, Layer, Pool, windows
from vcl.nets.likelihoods import Categorical, Likelihood, Normal
from vcl.nets.losses import cross_entropy, distillation, pixels
from vcl.nets.network import (
    MLP,
    Affine,
    ConvNet,
    Network,
    Weights,
    features,
    forward,
    from_layers,
    logits,
    point,
    product,
    random,
    random_like,
    zeros,
)

__all__ = [
    "MLP",
    "Affine",
    "Categorical",
    "Conv",
    "ConvNet",
    "Dense",
    "Flatten",
    "Layer",
    "Likelihood",
    "Network",
    "Normal",
    "Pool",
    "Weights",
    "by_head",
    "cross_entropy",
    "distillation",
    "features",
    "forward",
    "from_layers",
    "logits",
    "logits_by_head",
    "map_weights",
    "pixels",
    "point",
    "product",
    "random",
    "random_like",
    "replace_head",
    "select_head",
    "wide",
    "windows",
    "zeros",
]
