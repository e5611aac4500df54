"""Configurations of run folders that earlier versions wrote, under the names of this one."""

from typing import Any

Settings = dict[str, Any]

UCB_PUBLISHED = {
    "guidance": 1.0,
    "exponent": 1.0,
    "spread_schedule": "same",
    "draws": "weights",
    "kl_weight": 1.0,
}
ICARL_PUBLISHED = {"emphasis": 1.0, "distillation": 1.0, "init_scale": 1.0}


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
