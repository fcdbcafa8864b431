"""Tests batches: columns with several keys a row, numbering, and the order as a function of the
step."""

import numpy as np
import pytest

from data import BatchOrder, ClickData, Column


def test_a_ragged_column_gives_the_keys_and_offsets_of_the_rows() -> None:
    column = Column("genre", np.array([7, 8, 9, 7, 5]), np.array([0, 2, 2, 5]))
    bag = column.take(np.array([2, 1, 0]))
    assert bag.keys.tolist() == [9, 7, 5, 7, 8]
    assert bag.offsets is not None and bag.offsets.tolist() == [0, 3, 3]
    assert column.take(slice(0, 2)).keys.tolist() == [7, 8]


def test_numbering_keeps_which_keys_are_equal() -> None:
    column = Column("user", np.array([40, -3, 40, 1 << 40]))
    assert column.numbered().values.tolist() == [1, 0, 1, 2]


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_order_from_a_step_on_is_the_tail_of_the_whole_order(shuffle: bool) -> None:
    order = BatchOrder(rows=103, batch_size=10, epochs=3, shuffle=shuffle, seed=5)
    rows = np.arange(103)
    whole = [rows[batch].tolist() for batch in order.from_step(0)]
    assert len(whole) == order.steps
    for epoch in range(3):
        per_epoch = order.steps_per_epoch
        seen = sum(whole[epoch * per_epoch : (epoch + 1) * per_epoch], [])
        assert sorted(seen) == rows.tolist()
    for step in range(order.steps):
        assert [rows[batch].tolist() for batch in order.from_step(step)] == whole[step:]
        assert order.samples_before(step) == sum(map(len, whole[:step]))


def test_a_batch_gathers_every_part() -> None:
    data = ClickData(
        np.array([0, 1, 1], dtype=np.uint8),
        np.arange(6, dtype=np.float32).reshape(3, 2),
        [Column("a", np.array([4, 5, 6]))],
    )
    batch = data.batch(np.array([2, 0]))
    assert batch.dense.tolist() == [[4, 5], [0, 1]]
    assert batch.labels.tolist() == [1, 0]
    assert batch.bags[0].keys.tolist() == [[6], [4]]
