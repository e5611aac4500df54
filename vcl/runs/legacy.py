"""Configurations of run folders that earlier versions wrote, under the names of this one."""

import dataclasses
from typing import Any

from vcl.core import Learner
from vcl.errors import choose
from vcl.methods import METHODS, Methods, make

Settings = dict[str, Any]

UCB_PUBLISHED = {
    "guidance": 1.0,
    "exponent": 1.0,
    "spread_schedule": "same",
    "draws": "weights",
    "kl_weight": 1.0,
}
ICARL_PUBLISHED = {"emphasis": 1.0, "distillation": 1.0, "init_scale": 1.0}


LATER = {"noise": "threefry", "zero_inputs": "train"}
"""Settings that came later and whose default is not what was done before, with what was done."""


GONE = {"recall_by": "task"}
"""Settings that were taken out, with the value that is the only one now."""


def completed(method: str, settings: Settings, methods: Methods = METHODS) -> Settings:
    """Settings as an earlier version stored them, with those that came later and without those that are gone.

    >>> completed("vcl", {"epochs": 3})
    {'noise': 'threefry', 'zero_inputs': 'train', 'epochs': 3}
    >>> completed("kronecker-vcl-recall", {"recall_by": "task"})
    {'noise': 'threefry'}
    """
    kind: Any = methods[choose("method", method, methods)]
    known = {field.name for field in dataclasses.fields(kind)}
    kept = {name: value for name, value in settings.items() if GONE.get(name, ...) != value}
    return {**{name: value for name, value in LATER.items() if name in known}, **kept}


def remake(facts: Settings, methods: Methods = METHODS) -> Learner:
    """The learner of a stored model."""
    return make(facts["method"], completed(facts["method"], facts["settings"], methods), methods)


def translated(method: str, settings: Settings) -> tuple[str, Settings]:  # noqa: PLR0911
    """Method and settings of format 1 as they are called now: what departs from a publication has its own name.

    >>> translated("ewc", {"strength": 10.0, "anchors": "online", "decay": 1.0})
    ('ewc-online', {'strength': 10.0, 'decay': 1.0})
    """
    if method == "ewc":
        online = settings.get("anchors", "separate") == "online"
        return (
            ("ewc-online", without(settings, "anchors"))
            if online
            else (method, without(settings, "anchors", "decay"))
        )
    if method == "gem":
        return ("gem-sampled", settings) if settings.get("reference") else (method, without(settings, "reference"))
    if method == "icarl":
        departs = any(settings.get(name, value) != value for name, value in ICARL_PUBLISHED.items())
        return (
            ("icarl-labels", {**ICARL_PUBLISHED, **settings})
            if departs
            else (method, without(settings, *ICARL_PUBLISHED))
        )
    if method == "ucb":
        old = {**UCB_PUBLISHED, "spread_rate": 0.001, **settings}
        departs = any(old[name] != value for name, value in UCB_PUBLISHED.items())
        if departs or old["spread_rate"] != old.get("learning_rate", old["spread_rate"]):
            return "ucb-cubed", old
        return method, without(settings, *UCB_PUBLISHED, "spread_rate")
    if method == "clnp":
        return "clnp-recovery", {"strength": 1.0, "margin": 0.1, "recovery": 5, **settings, "per_input": True}
    if method == "feedback-replay":
        return method, without(settings, "replayed", "decoded")
    return method, settings


def without(settings: Settings, *names: str) -> Settings:
    return {name: value for name, value in settings.items() if name not in names}
