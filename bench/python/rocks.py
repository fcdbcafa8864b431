"""RocksDB behind the calls of a bank that training makes, so that the very same loop runs on it.

A value is a row and its Adagrad sums, side by side. A batch's rows come with one MultiGet a table;
its update is one WriteBatch. MultiGet of this build reads one block after the other, so a large
batch is split among threads, which keeps the drive busy. RocksDB is set up for point lookups as its
wiki advises and as `ycsb` sets it up: one budget for blocks, filters, indexes and memtables, direct
I/O, bloom filters, no WAL, no compression. The optimizer is NumPy here. Initial values come from a
small bank beside it.
"""

from __future__ import annotations

import itertools
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import rocksdict
from numpy.typing import NDArray

import embank

Rows = NDArray[np.float32]
EPSILON = 1e-10
SETTLE_SECONDS_MAX = 60.0
READERS = 16
READER_KEYS_MIN = 32


class RocksBank:
    """Takes the place of `embank.Bank` for training."""

    def __init__(self, path: Path, memory_budget: int) -> None:
        path.mkdir(parents=True)
        self._initial = embank.Bank(path / "initial", memory_budget="16MiB")
        self.database = rocksdict.Rdict(str(path / "rocks"), options(memory_budget))
        write = rocksdict.WriteOptions()
        write.disable_wal = True
        self.database.set_write_options(write)
        read = rocksdict.ReadOptions()
        read.set_async_io(True)
        self.database.set_read_options(read)
        self._readers = ThreadPoolExecutor(READERS)
        self._tables: list[RocksTable] = []
        self.recovered = None

    def table(self, name: str, **settings: Any) -> RocksTable:
        table = RocksTable(
            self.database, self._readers, len(self._tables), self._initial.table(name, **settings)
        )
        self._tables.append(table)
        return table

    def wait_lookahead(self) -> bool:
        """Nothing is announced; compaction goes on beside training, as it would."""
        return True

    def settle(self) -> None:
        """Waits until no compaction runs or is due."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        busy = ("num-running-compactions", "num-running-flushes", "compaction-pending")
        while any(self.database.property_int_value(f"rocksdb.{name}") for name in busy):
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)

    def stats(self) -> dict[str, Any]:
        return {"device": "RocksDB", "device_notes": []}

    def close(self) -> None:
        self._readers.shutdown()
        self.database.close()
        self._initial.close()

    def __enter__(self) -> RocksBank:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RocksTable:
    """Takes the place of `embank.Table`."""

    def __init__(
        self, database: rocksdict.Rdict, readers: ThreadPoolExecutor, number: int,
        initial: embank.Table,
    ) -> None:
        self.database, self._readers = database, readers
        self._prefix, self._initial = bytes([number]), initial
        self.name, self.dim = initial.name, initial.dim
        self.learning_rate = initial.learning_rate or 0.0

    def initial(self, keys: NDArray[Any]) -> Rows:
        return self._initial.initial(keys)

    def lookahead(self, keys: NDArray[Any]) -> int:
        return 0

    def put(self, keys: NDArray[Any], rows: Rows) -> None:
        """Optimizer state begins at 0."""
        self.write(self.named(keys), np.concatenate([rows, np.zeros_like(rows)], axis=1))

    def peek(self, keys: NDArray[Any]) -> Rows:
        return self.read(np.asarray(keys))[1][:, : self.dim].copy()

    def get_distinct(self, keys: NDArray[Any]) -> RocksLease:
        distinct, inverse = np.unique(keys, return_inverse=True)
        names, values = self.read(distinct)
        return RocksLease(self, names, values, inverse)

    def read(self, keys: NDArray[Any]) -> tuple[list[bytes], Rows]:
        """Values (n, 2 dim); a row that is missing begins with its initial value."""
        names = self.named(keys)
        parts = min(READERS, len(names) // READER_KEYS_MIN)
        if parts <= 1:
            found = self.database.get(names)
        else:
            size = -(-len(names) // parts)
            split = [names[at : at + size] for at in range(0, len(names), size)]
            found = list(itertools.chain(*self._readers.map(self.database.get, split)))
        missing = [at for at, value in enumerate(found) if value is None]
        if missing:
            fresh = self.initial(keys[missing])
            fresh = np.concatenate([fresh, np.zeros_like(fresh)], axis=1)
            for at, value in zip(missing, fresh):
                found[at] = value.tobytes()
        values = np.frombuffer(bytearray(b"".join(found)), np.float32)
        return names, values.reshape(len(keys), 2 * self.dim)

    def named(self, keys: NDArray[Any]) -> list[bytes]:
        """A byte for the table, and the key, big-endian."""
        text = np.asarray(keys).astype(">i8").tobytes()
        return [self._prefix + text[at : at + 8] for at in range(0, len(text), 8)]

    def write(self, names: list[bytes], values: Rows) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        text, size = values.tobytes(), 8 * self.dim
        for at, name in enumerate(names):
            batch.put(name, text[at * size : (at + 1) * size])
        self.database.write(batch)


class RocksLease:
    """Takes the place of `embank.DistinctLease`."""

    def __init__(
        self, table: RocksTable, names: list[bytes], values: Rows, inverse: NDArray[np.int64]
    ) -> None:
        self._table, self._names, self._values = table, names, values
        self.rows, self.inverse = values[:, : table.dim].copy(), inverse
        self.held = True

    def apply(self, gradient: Rows) -> None:
        self.held = False
        weight, total = np.split(self._values, 2, axis=1)
        total += gradient * gradient
        weight -= self._table.learning_rate * gradient / (np.sqrt(total) + EPSILON)
        self._table.write(self._names, self._values)


def options(budget: int) -> rocksdict.Options:
    """All memory in one cache of `budget` bytes, of which memtables take a quarter at most."""
    cache = rocksdict.Cache.new_hyper_clock_cache(budget, 0)
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_cache(cache)
    blocks.set_block_size(4096)
    blocks.set_bloom_filter(10, False)
    blocks.set_data_block_index_type(rocksdict.DataBlockIndexType.binary_and_hash())
    blocks.set_data_block_hash_ratio(0.75)
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    chosen = rocksdict.Options(raw_mode=True)
    chosen.create_if_missing(True)
    chosen.set_block_based_table_factory(blocks)
    memtables = max(budget // 4, 2 << 20)
    chosen.set_write_buffer_manager(
        rocksdict.WriteBufferManager.new_write_buffer_manager_with_cache(memtables, True, cache)
    )
    memtable = max(memtables // 3, 1 << 20)
    chosen.set_write_buffer_size(memtable)
    chosen.set_max_write_buffer_number(3)
    chosen.set_memtable_whole_key_filtering(True)
    chosen.set_memtable_prefix_bloom_ratio(0.02)
    chosen.set_target_file_size_base(min(max(memtable, 2 << 20), 64 << 20))
    chosen.set_max_bytes_for_level_base(max(4 * memtable, 16 << 20))
    chosen.set_compression_type(rocksdict.DBCompressionType.none())
    chosen.set_optimize_filters_for_hits(True)
    chosen.set_use_direct_reads(True)
    chosen.set_use_direct_io_for_flush_and_compaction(True)
    chosen.increase_parallelism(max(2, os.cpu_count() or 2))
    return chosen
