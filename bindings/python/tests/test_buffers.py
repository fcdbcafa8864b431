"""Tests that arrays go in and out without a copy: the caller's buffers, DLPack, torch and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embank


def test_rows_go_where_the_caller_says(table: embank.Table) -> None:
    out = np.full((3, 4), 7.0, np.float32)
    assert table.peek([1, 2, 1], out=out) is out
    assert (out == 1.0).all()
    out[:] = 7.0
    with table.get([1, 2, 1], out=out) as lease:
        assert lease.rows is out
        assert (out == 1.0).all()
        lease.apply(out)
    assert table.peek([1, 2], out=out[:2])[:, 0].tolist() == [0.0, 0.5]


def test_distinct_rows_take_the_first_of_a_larger_buffer(table: embank.Table) -> None:
    out = np.full((5, 4), 7.0, np.float32)
    lease = table.get_distinct([9, 9, 8], out=out)
    assert lease.rows.shape == (2, 4)
    assert np.shares_memory(lease.rows, out)
    assert out[:, 0].tolist() == [1.0, 1.0, 7.0, 7.0, 7.0]
    lease.apply(np.ones_like(lease.rows))


def readonly() -> Any:
    array = np.zeros((2, 4), np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (np.zeros((2, 4)), TypeError, "out must be float32, not float64"),
        ([[0.0] * 4] * 2, TypeError, "NumPy array"),
        (np.zeros((3, 4), np.float32), ValueError, r"shape \(2, 4\); found shape \(3, 4\)"),
        (np.zeros((2, 5), np.float32), ValueError, r"found shape \(2, 5\)"),
        (np.zeros(8, np.float32), ValueError, r"found shape \(8,\)"),
        (np.zeros((4, 2), np.float32).T, ValueError, "C-contiguous"),
        (readonly(), ValueError, "writable"),
    ],
)
def test_wrong_buffers_are_named(
    table: embank.Table, out: Any, error: type[Exception], message: str
) -> None:
    for call in (table.peek, table.get):
        with pytest.raises(error, match=message):
            call([1, 2], out=out)
    assert not table.contains([1, 2]).any(), "refused before the store was asked"
    assert table.outstanding(1) is None


def test_a_buffer_over_the_keys_is_refused(table: embank.Table) -> None:
    keys = np.zeros(8, np.int64)
    out = keys.view(np.float32).reshape(4, 4)
    with pytest.raises(ValueError, match="share no memory"):
        table.peek(keys[:4], out=out)


class OnlyDLPack:
    """An array of another library, with `__dlpack__` and without `__array__`."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.exported = 0

    def __dlpack__(self, **options: Any) -> Any:
        self.exported += 1
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


def test_arrays_of_other_libraries_come_by_dlpack(table: embank.Table) -> None:
    keys = OnlyDLPack(np.array([3, 4]))
    rows = OnlyDLPack(np.arange(8, dtype=np.float32).reshape(2, 4))
    table.put(keys, rows)
    assert (keys.exported, rows.exported) == (1, 1)
    assert table.peek(keys).tolist() == [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]


def test_rows_leave_by_dlpack_without_a_copy(table: embank.Table) -> None:
    with table.get([3, 4]) as lease:
        shared = np.from_dlpack(lease.rows)
        assert np.shares_memory(shared, lease.rows)


def test_torch_shares_memory_both_ways(table: embank.Table) -> None:
    torch = pytest.importorskip("torch")
    buffer = torch.zeros(2, 4)
    table.peek(torch.tensor([3, 4]), out=buffer.numpy())
    assert (buffer == 1.0).all()
    with table.get(torch.tensor([3, 4])) as lease:
        assert torch.from_dlpack(lease.rows).data_ptr() == lease.rows.ctypes.data
        lease.apply(torch.ones(2, 4))
    assert (table.peek([3]) == 0.5).all()
