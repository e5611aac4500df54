"""Every learner, by the name it has on the command line."""

from vcl.core import Learner
from vcl.methods.ewc import EWC
from vcl.methods.finetune import Finetune
from vcl.methods.vcl import VCL

METHODS: dict[str, type[Learner]] = {
    "vcl": VCL,
    "finetune": Finetune,
    "ewc": EWC,
}
