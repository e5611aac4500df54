"""Every learner, by the name it has on the command line."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from vcl.core import Learner
from vcl.errors import VclError, choose
from vcl.methods.agem import AGEM
from vcl.methods.clnp import CLNP
from vcl.methods.ewc import EWC
from vcl.methods.feedback_replay import FeedbackReplay
from vcl.methods.finetune import Finetune
from vcl.methods.gem import GEM
from vcl.methods.generative_replay import GenerativeReplay
from vcl.methods.gvcl import GVCL
from vcl.methods.icarl import ICaRL
from vcl.methods.kronecker_vcl import KroneckerVCL
from vcl.methods.laplace import Laplace
from vcl.methods.progress_compress import ProgressCompress
from vcl.methods.progressive import Progressive
from vcl.methods.references import Joint, JointVCL, SeparateFinetune, SeparateVCL
from vcl.methods.rwalk import RWalk
from vcl.methods.si import SI
from vcl.methods.ucb import UCB
from vcl.methods.variants.clnp_recovery import CLNPRecovery
from vcl.methods.variants.ewc_online import EWCOnline
from vcl.methods.variants.gem_sampled import GEMSampled
from vcl.methods.variants.icarl_labels import ICaRLLabels
from vcl.methods.variants.kronecker_vcl_recall import KroneckerVCLRecall
from vcl.methods.variants.ucb_cubed import UCBCubed
from vcl.methods.variants.vcl_regression import VCLRegression
from vcl.methods.vcl import VCL
from vcl.nets import Network
from vcl.nets.network import from_json, to_json

METHODS: dict[str, type[Learner]] = {
    "vcl": VCL,
    "kronecker-vcl": KroneckerVCL,
    "kronecker-vcl-recall": KroneckerVCLRecall,
    "gvcl": GVCL,
    "finetune": Finetune,
    "separate": SeparateFinetune,
    "separate-vcl": SeparateVCL,
    "joint": Joint,
    "joint-vcl": JointVCL,
    "ewc": EWC,
    "ewc-online": EWCOnline,
    "laplace": Laplace,
    "si": SI,
    "rwalk": RWalk,
    "ucb": UCB,
    "ucb-cubed": UCBCubed,
    "progress-compress": ProgressCompress,
    "gem": GEM,
    "gem-sampled": GEMSampled,
    "agem": AGEM,
    "progressive": Progressive,
    "generative-replay": GenerativeReplay,
    "feedback-replay": FeedbackReplay,
    "icarl": ICaRL,
    "icarl-labels": ICaRLLabels,
    "clnp": CLNP,
    "clnp-recovery": CLNPRecovery,
}


MOST_INPUTS = 2000
"""Kronecker factors have inputs² numbers."""


def default_method(inputs: int) -> str:
    """The method for data of one's own: the best on Covertype, unless there are too many inputs.

    >>> default_method(inputs=50)
    'kronecker-vcl-recall'
    """
    return "kronecker-vcl-recall" if inputs <= MOST_INPUTS else "vcl"


REGRESSION: dict[str, type[Learner]] = {"vcl": VCLRegression}
"""Learners of numbers instead of classes."""

Methods = Mapping[str, Any]


def make(method: str, settings: dict[str, Any], methods: Methods = METHODS) -> Learner:
    """The learner of this name with these settings, which may come from JSON.

    >>> make("ewc", {"strength": 10.0, "hidden": [20]}).hidden
    (20,)
    """
    kind: Any = methods[choose("method", method, methods)]
    known = [field.name for field in dataclasses.fields(kind)]
    for name in settings:
        choose(f"setting of {method}", name, known)
    return kind(**{name: _from_json(name, value) for name, value in settings.items()})


def _from_json(name: str, value: Any) -> Any:
    """JSON's lists were tuples, and one of them a network."""
    if name == "network" and isinstance(value, list):
        return from_json(value)
    return tuple(value) if isinstance(value, list) else value


def settings_of(learner: Learner) -> dict[str, Any]:
    """All settings of a learner, as JSON has them."""
    fields = [field.name for field in dataclasses.fields(learner)]  # type: ignore[arg-type]
    values = {name: getattr(learner, name) for name in fields}
    return json.loads(json.dumps(values, default=lambda v: to_json(v) if isinstance(v, Network) else str(v)))


def name_of(learner: Learner, methods: Methods = METHODS) -> str:
    """The name of a learner on the command line."""
    for name, kind in methods.items():
        if type(learner) is kind:
            return name
    raise VclError(f"{type(learner).__name__} is not one of vcl's methods, so it has no name to be stored under.")
