"""Every learner, by the name it has on the command line."""

from vcl.core import Learner
from vcl.methods.vcl import VCL

METHODS: dict[str, type[Learner]] = {"vcl": VCL}
