"""Batches of a pipeline, from this process or another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

import numpy as np
from numpy.typing import NDArray

from ._embank import ArrowBatch

if TYPE_CHECKING:
    import torch

    _Base = dict[str, NDArray[Any]]
else:
    _Base = dict


class Batch(_Base):
    """Rows of a pipeline: a dict of arrays `(rows, columns)` by output name. Pictures are arrays
    `(rows, height, width, 3)`.

    The arrays own the memory that the pipeline wrote, without a copy. The caller may change and
    keep them. A feed reuses the memory of an array after the array and everything that shares its
    memory are gone: slices, tensors and Arrow buffers. An output of dtype `"f32"` is a float32
    array, `"i32"` int32, `"i64"` int64, `"bits32"` uint32, and `"u8"` uint8.

    >>> batch = next(Pipeline(criteo(100)).feed(b"1" + b"\\t7" * 39 + b"\\n"))
    >>> {name: (array.dtype.name, array.shape) for name, array in batch.items()}
    {'label': ('float32', (1, 1)), 'dense': ('float32', (1, 13)), 'sparse': ('int64', (1, 26))}
    """

    __slots__ = ()

    def torch(self) -> dict[str, torch.Tensor]:
        """The batch as tensors that share the arrays' memory. Needs PyTorch."""
        import torch

        return {name: torch.from_numpy(array) for name, array in self.items()}

    def arrow(self) -> ArrowBatch:
        """The batch for libraries of Arrow, in the arrays' memory:
        `pyarrow.record_batch(batch.arrow())`.

        Each output is a column of fixed-size lists; a list is a row of the output's matrix. A
        column of pictures has Arrow's type for tensors of one shape.
        """
        return ArrowBatch(
            {name: np.require(array, requirements=["C", "A"]) for name, array in self.items()}
        )

    def __arrow_c_schema__(self) -> object:
        return self.arrow().__arrow_c_schema__()

    def __arrow_c_array__(
        self, requested_schema: Optional[object] = None
    ) -> tuple[object, object]:
        return self.arrow().__arrow_c_array__(requested_schema)
