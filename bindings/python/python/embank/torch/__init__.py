"""Embank tables in PyTorch models.

`EmbeddingBag` and `Embedding` replace the modules of these names in `torch.nn`, with an
`embank.Table` as the weight. `EmbeddingBagCollection` and `EmbeddingCollection` look up several
tables in one call. `LookaheadLoader` wraps a data loader and announces the keys of the next
batches, so that their rows are in memory when the model needs them. `Pipelined` gets the rows of
the next batches, inside the staleness bound, while the model computes.

**Training.** With gradients enabled and the module in training mode, `forward` takes a lease on the
batch's rows. The backward pass hands their gradient to the table, and the table's own optimizer
applies it. The module has one parameter, a zero that stands in for the rows: a `torch.optim`
optimizer trains only the dense part of the model. `requires_grad_(False)` of the parameter, the
module or the model freezes the rows. To sum the gradients of several backward passes, or to clip or
unscale them, make a `SparseOptimizer`: its `step()` then applies the gradients.

**One backward, one update.** Every forward pass takes a lease, and its backward pass consumes the
lease. A loss may depend on several forward passes over a table, within the table's staleness bound:
their gradients are summed, and each row takes one step when the backward pass ends. Without a
`SparseOptimizer`, each backward pass is an optimizer step; their gradients are not summed as in
`Parameter.grad`. A second backward pass over a retained graph raises an error. A graph that is
freed without a backward pass gives its lease back and changes nothing. A backward pass that fails
does this too. `backward()` raises the errors of the store, such as for a NaN gradient.

**Evaluation.** In `eval()` mode or under `torch.no_grad()` the module peeks: it takes no lease and
inserts nothing, and a key without a row reads as its initial value. In `eval()` mode with gradients
enabled the output has a graph. A backward pass that reaches the rows then warns that they do not
learn.

**State.** `state_dict()` holds no rows. It names the checkpoint of the bank that holds them, and
warns if there is no such checkpoint. `load_state_dict` raises an error unless the bank is at this
checkpoint. `save` puts tables, dense part, optimizers, place in the data and random generators into
one checkpoint. `resume` restores them by name, also into a model that has changed.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:  # pragma: no cover - the tests run it in a process of its own
    raise ImportError(
        "embank.torch needs PyTorch, which is not installed here: pip install 'embank[torch]'"
    ) from error

from .collections import EmbeddingBagCollection, EmbeddingCollection
from .lookahead import LookaheadLoader
from .modules import Embedding, EmbeddingBag
from .optimizer import SparseOptimizer
from .pipelined import Pipelined
from .reference import roll_back
from .stand_in import SharedRowsWarning
from .training_state import ResumableLoader, Resumed, resume, save

__all__ = [
    "Embedding",
    "EmbeddingBag",
    "EmbeddingBagCollection",
    "EmbeddingCollection",
    "LookaheadLoader",
    "Pipelined",
    "ResumableLoader",
    "Resumed",
    "SharedRowsWarning",
    "SparseOptimizer",
    "resume",
    "roll_back",
    "save",
]
