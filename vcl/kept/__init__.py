"""Models of one's own data, taught file by file: `vcl learn`, `vcl predict`, `vcl show`, `vcl report`."""

from vcl.kept.encoder import Encoder
from vcl.kept.files import Batch, read
from vcl.kept.model import KeptModel, is_model

__all__ = ["Batch", "Encoder", "KeptModel", "is_model", "read"]
