"""Looking inside: which units are active, what transfers between tasks, and what can be removed."""

from vcl.analysis.pruning import Pruning, prune, widen
from vcl.analysis.stored import Analysis, Layer, accuracy_without_pruned, analyse, exciting_patterns
from vcl.analysis.transfer import Forgetting, accuracy_change, backward_change, forgetting, forward_use

__all__ = [
    "Analysis",
    "Forgetting",
    "Layer",
    "Pruning",
    "accuracy_change",
    "accuracy_without_pruned",
    "analyse",
    "backward_change",
    "exciting_patterns",
    "forgetting",
    "forward_use",
    "prune",
    "widen",
]
