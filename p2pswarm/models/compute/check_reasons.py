"""What people are told of a model that cannot be computed at all, or not in stages.

Errors:  none.
"""

NOT_FINITE = (
    "its loss or a gradient is not finite with first weights, already as a whole: a block gives "
    "NaN or infinity"
)
OWN_RULE = "a block computes in the dtype and on the device of what it is given, which stays"
LIBRARY_RULE = (
    "its config does not go together, or its layers take more than what the layer before gave: "
    "docs/models.md names families that can be cut"
)
OWN_SIZES = "make its sizes settings of run.model"
LIBRARY_SIZES = (
    "its sizes depend on each other in a way that is not known here: docs/models.md names families "
    "that can be trained"
)
AUTOGRAD = (
    "a stage takes its gradients by torch.autograd.grad and may have its graph made again: "
    "checkpoint with use_reentrant=False, no sparse gradients, shapes that do not depend on numbers"
)
IN_PLACE = "in-place"
"""What torch's errors have in them where a tensor was changed where it lies."""
