"""RocksDB behind the methods of a bank that training calls, so that the same loop runs on it.

A value in RocksDB is a row and its Adagrad sums. A key in RocksDB is the table's number and the
row's key, so all tables are in one key space. RocksDB gets its best interface: one MultiGet before
a step, for the sorted rows of all tables, and one WriteBatch after it. (Embank gets a call for each
table.) MultiGet of this build reads one block after another. It is therefore split among threads,
which keeps the drive busy. RocksDB is set up for point lookups as its wiki advises, with the
settings of `ycsb`: one budget for blocks, filters, indexes and memtables, direct I/O, bloom
filters, no WAL, no compression. The optimizer runs in NumPy, and torch pools bags from the distinct
rows of a batch. (Embank pools them itself.) Initial values come from a small bank.

Python takes only a small part of the time: NumPy cuts the keys and values of a whole batch at once,
and only a call of `put` remains for each row. `shim_seconds` counts the time that Python takes, so
that a measurement can show it.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import rocksdict
from numpy.typing import NDArray

import embank

Batch = TypeVar("Batch")
Keys = NDArray[Any]
Rows = NDArray[np.float32]
EPSILON = 1e-10
SETTLE_SECONDS_MAX = 60.0
READERS = 16
READER_KEYS_MIN = 32
NAME_BYTES = 9


class RocksBank:
    """Replaces `embank.Bank` for training. The batches of the steps come from `read_first`."""

    def __init__(self, path: Path, memory_budget: int) -> None:
        path.mkdir(parents=True)
        self._initial = embank.Bank(path / "initial", memory_budget="16MiB")
        self.database = rocksdict.Rdict(str(path / "rocks"), options(memory_budget))
        write = rocksdict.WriteOptions()
        write.disable_wal = True
        self.database.set_write_options(write)
        self._readers = ThreadPoolExecutor(READERS)
        self._tables = 0
        self._ready: dict[RocksTable, Found] = {}
        self._changed: list[Found] = []
        self._leases = 0
        self.shim_seconds = 0.0
        self.recovered = None

    def table(self, name: str, **settings: Any) -> RocksTable:
        self._tables += 1
        return RocksTable(self, self._tables - 1, self._initial.table(name, **settings))

    def read_first(
        self, batches: Iterable[Batch], keys: Callable[[Batch], Mapping[RocksTable, Any]]
    ) -> Iterator[Batch]:
        """Yields the batches. Before it yields a batch, it reads all rows of the step with one
        MultiGet."""
        for batch in batches:
            with self.shim():
                wanted = {table: np.unique(np.asarray(of)) for table, of in keys(batch).items()}
            self._ready = dict(zip(wanted, self.read(list(wanted.items()))))
            self._leases = len(wanted)
            yield batch

    def take(self, table: RocksTable, distinct: Keys) -> Found:
        """Returns the rows of a table that `read_first` has read. They can be taken once."""
        found = self._ready.pop(table, None)
        if found is None or not np.array_equal(found.keys, distinct):
            raise KeyError(f"{table.name}: the step asks for rows that read_first did not read")
        return found

    def change(self, found: Found) -> None:
        """Keeps the new values of a table. With the last table of a step, writes the values of
        all."""
        self._changed.append(found)
        if len(self._changed) == self._leases:
            self.write(self._changed)
            self._changed = []

    def read(self, wanted: list[tuple[RocksTable, Keys]]) -> list[Found]:
        """Reads the values of each table's keys. A row that is missing gets its initial value."""
        with self.shim():
            names = [table.named(keys) for table, keys in wanted]
            whole = list(itertools.chain.from_iterable(names))
            parts = max(1, min(READERS, len(whole) // READER_KEYS_MIN))
            size = -(-len(whole) // parts)
            split = [whole[at : at + size] for at in range(0, len(whole), size)]
        # From here on, RocksDB and its package (which makes a list of bytes) take the time, not the
        # shim.
        if parts == 1:
            values = self.database.get(whole) if whole else []
        else:
            parted = self._readers.map(self.database.get, split)
            values = list(itertools.chain.from_iterable(parted))
        with self.shim():
            found, begin = [], 0
            for (table, keys), of in zip(wanted, names):
                here = values[begin : begin + len(of)]
                found.append(Found(keys, of, table.joined(keys, here)))
                begin += len(of)
        return found

    def write(self, changed: list[Found]) -> None:
        """Writes the values as one WriteBatch."""
        with self.shim():
            batch = rocksdict.WriteBatch(raw_mode=True)
            put = batch.put
            for found in changed:
                for name, value in zip(found.names, pieces(found.values)):
                    put(name, value)
        self.database.write(batch)

    @contextmanager
    def shim(self) -> Iterator[None]:
        """Counts the time of a `with` block as Python's, not as RocksDB's."""
        started = time.perf_counter()
        yield
        self.shim_seconds += time.perf_counter() - started

    def settle(self) -> None:
        """Waits until RocksDB neither flushes nor compacts and no compaction is pending. Gives up
        after SETTLE_SECONDS_MAX."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        busy = ("num-running-compactions", "num-running-flushes", "compaction-pending")
        while any(self.database.property_int_value(f"rocksdb.{name}") for name in busy):
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)

    def warm(self) -> None:
        """Reads every row once. Flushes and compactions wrote new blocks that the cache does not
        have."""
        for _ in self.database.values():
            pass

    def close(self) -> None:
        self._readers.shutdown()
        self.database.close()
        self._initial.close()


@dataclass
class Found:
    """Distinct keys of a table, their names in RocksDB, and `values` (n, 2 dim)."""

    keys: Keys
    names: list[bytes]
    values: Rows


class RocksTable:
    """Replaces `embank.Table`."""

    def __init__(self, bank: RocksBank, number: int, initial: embank.Table) -> None:
        self.bank, self._number, self._initial = bank, number, initial
        self.name, self.dim = initial.name, initial.dim
        self.learning_rate = initial.learning_rate or 0.0
        # The modules of `embank.torch` get the distinct rows of a table with admission, and ask
        # other tables for pooled rows, which this table does not make.
        self.admits_all = False

    def initial(self, keys: Keys) -> Rows:
        return self._initial.initial(keys)

    def put(self, keys: Keys, rows: Rows) -> None:
        """Writes rows whose optimizer state is 0."""
        values = np.concatenate([rows, np.zeros_like(rows)], axis=1)
        self.bank.write([Found(keys, self.named(keys), values)])

    def peek(self, keys: Keys) -> Rows:
        """Reads rows without a lease."""
        (found,) = self.bank.read([(self, np.asarray(keys))])
        return found.values[:, : self.dim].copy()

    def get_distinct(self, keys: Keys, earlier: object = None) -> RocksLease:
        distinct, inverse = np.unique(keys, return_inverse=True)
        return RocksLease(self, self.bank.take(self, distinct), inverse)

    def named(self, keys: Keys) -> list[bytes]:
        """The keys' names in RocksDB: a byte for the table, and the key, big-endian."""
        names = np.empty((len(keys), NAME_BYTES), np.uint8)
        names[:, 0] = self._number
        names[:, 1:] = np.asarray(keys).astype(">i8").view(np.uint8).reshape(-1, 8)
        return pieces(names)

    def joined(self, keys: Keys, found: list[Any]) -> Rows:
        """Returns the found values as one array. Where `found` has None, the array has the initial
        value."""
        missing = [at for at, value in enumerate(found) if value is None]
        if missing:
            fresh = self.initial(keys[missing])
            fresh = np.concatenate([fresh, np.zeros_like(fresh)], axis=1)
            for at, value in zip(missing, pieces(fresh)):
                found[at] = value
        values = np.frombuffer(bytearray(b"".join(found)), np.float32)
        return values.reshape(len(keys), 2 * self.dim)


def pieces(rows: NDArray[Any]) -> list[bytes]:
    """Returns each row of a matrix as bytes."""
    whole = np.ascontiguousarray(rows)
    cut: list[bytes] = whole.view(f"V{whole.shape[1] * whole.itemsize}").ravel().tolist()
    return cut


class RocksLease:
    """Replaces an `embank.Lease` on distinct keys."""

    per = "distinct"

    def __init__(self, table: RocksTable, found: Found, inverse: NDArray[np.int64]) -> None:
        self._table, self._found, self.inverse = table, found, inverse
        self.keys, self.rows = found.keys, found.values[:, : table.dim].copy()
        self.held = True

    @property
    def state(self) -> str:
        return "held" if self.held else "ended"

    def release(self) -> None:
        self.held = False

    def apply(self, gradient: Rows) -> None:
        self.held = False
        weight, total = np.split(self._found.values, 2, axis=1)
        total += gradient * gradient
        weight -= self._table.learning_rate * gradient / (np.sqrt(total) + EPSILON)
        self._table.bank.change(self._found)


def _in_place_of(name: str, replacement: Any) -> None:
    """Replaces a function of `embank` that gets one part for each of several tables. If the tables
    are RocksDB's, a call goes to `replacement`, otherwise to the function of `embank`."""
    original = getattr(embank, name)

    def call(parts: Any, **options: Any) -> Any:
        if parts and isinstance(parts[0][0], RocksTable):
            return replacement(parts)
        return original(parts, **options)

    setattr(embank, name, call)


def _apply_many(parts: Any) -> None:
    for _, leases, keys, gradients in parts:
        (lease,) = leases
        # With one lease, a part has no keys: its gradients are those of the lease's rows.
        assert keys is None
        lease.apply(gradients)


_in_place_of("get_many", lambda parts: [table.get_distinct(keys) for table, keys in parts])
_in_place_of("apply_many", _apply_many)


def options(budget: int) -> rocksdict.Options:
    """Makes options with all memory in one cache of `budget` bytes. Memtables take at most a
    quarter of it."""
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
