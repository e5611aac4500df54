"""Every learner, by the name it has on the command line."""

from vcl.core import Learner
from vcl.methods.agem import AGEM
from vcl.methods.clnp import CLNP
from vcl.methods.ewc import EWC
from vcl.methods.feedback_replay import FeedbackReplay
from vcl.methods.finetune import Finetune
from vcl.methods.gem import GEM
from vcl.methods.generative_replay import GenerativeReplay
from vcl.methods.icarl import ICaRL
from vcl.methods.laplace import Laplace
from vcl.methods.progress_compress import ProgressCompress
from vcl.methods.progressive import Progressive
from vcl.methods.references import Joint, JointVCL, SeparateFinetune, SeparateVCL
from vcl.methods.rwalk import RWalk
from vcl.methods.si import SI
from vcl.methods.ucb import UCB
from vcl.methods.vcl import VCL

METHODS: dict[str, type[Learner]] = {
    "vcl": VCL,
    "finetune": Finetune,
    "separate": SeparateFinetune,
    "separate-vcl": SeparateVCL,
    "joint": Joint,
    "joint-vcl": JointVCL,
    "ewc": EWC,
    "laplace": Laplace,
    "si": SI,
    "rwalk": RWalk,
    "ucb": UCB,
    "progress-compress": ProgressCompress,
    "gem": GEM,
    "agem": AGEM,
    "progressive": Progressive,
    "generative-replay": GenerativeReplay,
    "feedback-replay": FeedbackReplay,
    "icarl": ICaRL,
    "clnp": CLNP,
}
