"""VCL for numbers instead of classes. Departs from the paper in the likelihood alone."""

from dataclasses import dataclass
from typing import ClassVar

from vcl.errors import VclError
from vcl.methods.vcl import VCL
from vcl.nets import Likelihood, Normal


@dataclass(frozen=True)
class VCLRegression(VCL):
    """Variational continual learning of a number, with Gaussian noise that is learnt too."""

    likelihood: ClassVar[Likelihood] = Normal()

    def __post_init__(self) -> None:
        VCL.__post_init__(self)
        if self.coreset:
            raise VclError(f"Regression keeps no coreset, but --coreset is {self.coreset}. Leave it at 0.")
