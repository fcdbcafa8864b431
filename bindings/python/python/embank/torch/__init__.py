"""Embank tables in PyTorch models.

`EmbeddingBag` and `Embedding` take the place of their namesakes in `torch.nn`, with a
`embank.Table` for the weight; `EmbeddingBagCollection` and `EmbeddingCollection` look several
tables up in one call. `LookaheadLoader` wraps a data loader and announces the keys of the next
batches, so that their rows are in memory when the model asks for them.

**Training.** With gradients enabled and the module in training mode, `forward` takes a lease on the
batch's rows, and the backward pass hands their gradient to the table, where the table's own
optimizer applies it. There is no parameter: a `torch.optim` optimizer looks after the dense part of
the model alone. Where gradients of several backward passes are to add up, or to be clipped or
unscaled, a `SparseOptimizer` takes the tables over and `step()` applies what waits for them.

**One backward, one update.** Every forward pass has a lease of its own, and the backward pass
consumes it. A loss may stand on several forward passes over a table, within the table's staleness
bound: their gradients add up, and each row takes one step when the backward pass ends. Gradients of
several backward passes do not add up to one step as they do in `Parameter.grad`: each is an
optimizer step of its own. A second backward pass over a retained graph raises. A graph that is
freed without a backward pass gives its lease back, and changes nothing, and so does a backward pass
that fails. What the store refuses (a NaN gradient, say) is raised by `backward()`.

**Evaluation.** In `eval()` mode or under `torch.no_grad()` the rows are peeked: no lease, no
insertion, and a key that has no row yet reads as its initial value. In `eval()` mode with gradients
enabled the output has a graph, and a backward pass that reaches the rows warns that they don't
learn.

**State.** `state_dict()` holds no rows but says which checkpoint of the bank does, and warns if
none does; `load_state_dict` raises unless the bank is there. `save` takes a checkpoint of tables,
dense part, optimizers, place in the data and random generators in one, and `resume` goes on from
it, by name, also with a model that has changed.
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
from .training_state import ResumableLoader, Resumed, resume, save

__all__ = [
    "Embedding",
    "EmbeddingBag",
    "EmbeddingBagCollection",
    "EmbeddingCollection",
    "LookaheadLoader",
    "ResumableLoader",
    "Resumed",
    "SparseOptimizer",
    "resume",
    "save",
]
