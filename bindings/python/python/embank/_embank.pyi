from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, Literal, NoReturn, Optional, Protocol, TypedDict, Union, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Self

from .pipeline import Batch, Spec

__version__: str

_Path = Union[str, PathLike[str]]

class _SupportsDLPack(Protocol):
    def __dlpack__(self) -> object: ...

_Keys = Union[ArrayLike, _SupportsDLPack]
_Values = Union[ArrayLike, _SupportsDLPack]
# The name of a dtype, or NumPy's or PyTorch's object for it.
_Dtype = Optional[object]
_DtypeName = Literal["float32", "float16", "bfloat16", "int8"]
_Optimizer = Union[SGD, Adagrad, RowWiseAdagrad, Adam, AdamW, FTRL]
_Initializer = Union[
    Uniform, Normal, TruncatedNormal, XavierUniform, XavierNormal, Constant, Zeros
]

class _MemoryStats(TypedDict):
    budget_bytes: int
    frames_bytes: int
    index_bytes: int
    cache_bytes: int
    buffers_bytes: int
    lookahead_bytes: int
    used_bytes: int
    cold_bytes: int
    lent_bytes: int

class _HitStats(TypedDict):
    mutable: int
    read_only: int
    cache: int
    disk: int
    missing: int

class _LogStats(TypedDict):
    begin: int
    head: int
    read_only: int
    tail: int
    page_size_bytes: int
    address_left_bytes: int

class _DiskStats(TypedDict):
    reads: int
    reads_joined: int
    queue_depth_max: int
    read_bytes: int
    write_bytes: int

class _LookaheadStats(TypedDict):
    requested: int
    resident: int
    queued: int
    merged: int
    dropped: int
    moved: int
    on_time: int
    late: int
    wasted: int
    missing: int
    cancelled: int
    failed: int
    kept: int
    reading_us: int
    depth: int
    pending: int
    capacity: int

class _OperationStats(TypedDict):
    batches: int
    peek_keys: int
    get_keys: int
    update_keys: int
    put_keys: int
    delete_keys: int
    changed: int
    deleted: int

class _StallStats(TypedDict):
    page_waits: int
    page_waits_us: int
    page_waits_us_max: int
    growth_steps: int
    growth_steps_us: int
    growth_steps_us_max: int
    growth_steps_cpu_us_max: int
    checkpoint_pauses_us: int
    checkpoint_pauses_us_max: int
    compaction_waits: int
    compaction_waits_us: int
    compaction_waits_us_max: int

class _SpaceStats(TypedDict):
    live_rows: int
    live_bytes: int
    log_disk_bytes: int
    log_held_bytes: int
    freed_bytes: int
    segments_freed: int
    amplification: float
    written_bytes_per_changed_row: float

class _CompactionStats(TypedDict):
    compacted_bytes: int
    copied_bytes: int
    us: int
    bytes_per_s: float
    stopped: Optional[str]

class _ColdStats(TypedDict):
    tiers: int
    versions: int
    parts: int
    runs: int
    disk_bytes: int
    base_bytes: int
    run_bytes: int
    run_limit_bytes: int
    log_limit_bytes: int
    run_share_per_mille: int
    filter_columns: int
    fence_stride: int
    blocks_read: int
    false_reads: int
    spilled_rows: int
    spilled_bytes: int
    spilled_clean_rows: int
    merged_rows: int
    merged_bytes: int
    debt: float

class _Exported(TypedDict):
    checkpoint: int
    rows: int
    filled_rows: int
    bytes: int
    files: list[Path]

class _Imported(TypedDict):
    rows: int
    with_state: bool

class _Evicted(TypedDict):
    checkpoint: int
    examined: int
    rows: int
    leased: int
    counts: int
    keys: Optional[NDArray[np.uint64]]

class _Compacted(TypedDict):
    scanned_bytes: int
    copied_bytes: int
    freed_bytes: int
    out_of_room: bool

class _SpaceHolder(TypedDict):
    kind: Literal["scan", "checkpoint"]
    checkpoint: Optional[int]
    readers: list[int]
    bytes: int

class _BankStats(TypedDict):
    device: str
    operations: _OperationStats
    stalls: _StallStats
    space: _SpaceStats
    compaction: _CompactionStats
    cold: _ColdStats
    memory: _MemoryStats
    hits: _HitStats
    inserted: int
    log: _LogStats
    disk: _DiskStats
    lookahead: _LookaheadStats
    waits: int
    wait_us: int
    timeouts: int
    release_failures: int
    leases_expired: int
    staleness: dict[int, int]
    checkpoints: int
    last_checkpoint_us: int
    last_checkpoint_pause_us: int
    newest_checkpoint: int
    changed_since_checkpoint: int
    records_appended: int
    copied_to_tail: int
    retained: int
    device_notes: list[str]
    not_removed: list[str]
    space_holders: list[_SpaceHolder]
    log_address_warning: Optional[str]
    memory_budget_warning: Optional[str]
    index_entries: int

class _TableStats(TypedDict):
    gets: int
    get_rows: int
    peeks: int
    peek_rows: int
    puts: int
    put_rows: int
    applies: int
    apply_rows: int
    deleted_rows: int
    evicted_rows: int
    not_admitted_rows: int
    saturated_rows: int
    disk_reads: int
    waits: int
    wait_us: int
    timeouts: int
    release_failures: int
    leases_expired: int
    staleness: dict[int, int]

class _LeaseInfo(TypedDict):
    table: str
    keys: int
    age_seconds: float
    thread: str

@final
class SGD:
    def __new__(
        cls,
        lr: float = 0.001,
        momentum: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> Self: ...
    @property
    def lr(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def dampening(self) -> float: ...
    @property
    def nesterov(self) -> bool: ...
    @property
    def weight_decay(self) -> float: ...

@final
class Adagrad:
    def __new__(
        cls,
        lr: float = 0.01,
        eps: float = 1e-10,
        initial_accumulator_value: float = 0.0,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
    ) -> Self: ...
    @property
    def lr(self) -> float: ...
    @property
    def eps(self) -> float: ...
    @property
    def initial_accumulator_value(self) -> float: ...
    @property
    def lr_decay(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...

@final
class RowWiseAdagrad:
    def __new__(
        cls,
        lr: float = 0.01,
        eps: float = 1e-8,
        initial_accumulator_value: float = 0.0,
        weight_decay: float = 0.0,
    ) -> Self: ...
    @property
    def lr(self) -> float: ...
    @property
    def eps(self) -> float: ...
    @property
    def initial_accumulator_value(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...

@final
class Adam:
    def __new__(
        cls,
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> Self: ...
    @property
    def lr(self) -> float: ...
    @property
    def betas(self) -> tuple[float, float]: ...
    @property
    def eps(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...

@final
class AdamW:
    def __new__(
        cls,
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> Self: ...
    @property
    def lr(self) -> float: ...
    @property
    def betas(self) -> tuple[float, float]: ...
    @property
    def eps(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...

@final
class FTRL:
    def __new__(
        cls,
        lr: float = 0.001,
        beta: float = 0.0,
        l1: float = 0.0,
        l2: float = 0.0,
        initial_accumulator_value: float = 0.1,
    ) -> Self: ...
    @property
    def lr(self) -> float: ...
    @property
    def beta(self) -> float: ...
    @property
    def l1(self) -> float: ...
    @property
    def l2(self) -> float: ...
    @property
    def initial_accumulator_value(self) -> float: ...

@final
class Zeros:
    def __new__(cls) -> Self: ...

@final
class Constant:
    def __new__(cls, value: float) -> Self: ...
    @property
    def value(self) -> float: ...

@final
class Uniform:
    def __new__(cls, low: float, high: float) -> Self: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...

@final
class Normal:
    def __new__(cls, mean: float, std: float) -> Self: ...
    @property
    def mean(self) -> float: ...
    @property
    def std(self) -> float: ...

@final
class TruncatedNormal:
    def __new__(
        cls,
        mean: float = 0.0,
        std: float = 1.0,
        low: Optional[float] = None,
        high: Optional[float] = None,
    ) -> Self: ...
    @property
    def mean(self) -> float: ...
    @property
    def std(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...

@final
class XavierUniform:
    def __new__(
        cls,
        fan_out: Optional[int] = None,
        fan_in: Optional[int] = None,
        gain: float = 1.0,
    ) -> Self: ...
    @property
    def fan_out(self) -> Optional[int]: ...
    @property
    def fan_in(self) -> Optional[int]: ...
    @property
    def gain(self) -> float: ...

@final
class XavierNormal:
    def __new__(
        cls,
        fan_out: Optional[int] = None,
        fan_in: Optional[int] = None,
        gain: float = 1.0,
    ) -> Self: ...
    @property
    def fan_out(self) -> Optional[int]: ...
    @property
    def fan_in(self) -> Optional[int]: ...
    @property
    def gain(self) -> float: ...

@final
class Recovered:
    @property
    def checkpoint(self) -> int: ...
    @property
    def blob(self) -> bytes: ...

@final
class Lease:
    @property
    def rows(self) -> NDArray[np.float32]: ...
    @property
    def per(self) -> Literal["key", "distinct", "bag"]: ...
    @property
    def held(self) -> bool: ...
    @property
    def state(self) -> Literal["held", "expired", "ended", "closed"]: ...
    def check(self) -> None: ...
    @property
    def keys(self) -> NDArray[np.uint64]: ...
    @property
    def inverse(self) -> NDArray[np.int64]: ...
    def sum_gradients(self, grads: _Values) -> NDArray[np.float32]: ...
    def apply(self, grads: _Values) -> None: ...
    def put(self, rows: _Values) -> None: ...
    def rewrite(self, places: _Keys, rows: _Values) -> None: ...
    def hand_over(self) -> None: ...
    def release(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exception_type: Optional[type[BaseException]] = None,
        exception: Optional[BaseException] = None,
        traceback: Optional[TracebackType] = None,
        /,
    ) -> None: ...
    def __len__(self) -> int: ...

@final
class AheadQueue:
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exception_type: Optional[type[BaseException]] = None,
        exception: Optional[BaseException] = None,
        traceback: Optional[TracebackType] = None,
        /,
    ) -> None: ...

@final
class Pending:
    @property
    def ready(self) -> bool: ...
    def wait(
        self,
        *,
        out: Optional[NDArray[np.float32]] = None,
        offsets: Optional[_Keys] = None,
        pooling: Literal["sum", "mean"] = "sum",
        weights: Optional[_Values] = None,
    ) -> Lease: ...
    def cancel(self) -> None: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> Literal[True]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exception_type: Optional[type[BaseException]] = None,
        exception: Optional[BaseException] = None,
        traceback: Optional[TracebackType] = None,
        /,
    ) -> None: ...

@final
class Prefetch:
    @property
    def ready(self) -> bool: ...
    def rows(self) -> NDArray[np.float32]: ...
    def cancel(self) -> None: ...
    def __len__(self) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exception_type: Optional[type[BaseException]] = None,
        exception: Optional[BaseException] = None,
        traceback: Optional[TracebackType] = None,
        /,
    ) -> None: ...

@final
class AutoDepth:
    def __new__(cls, bank: Bank, together: int = 1) -> Self: ...
    @property
    def depth(self) -> int: ...
    def begin_pass(self) -> None: ...
    def step(self) -> int: ...

@final
class Scan:
    @property
    def checkpoint(self) -> int: ...
    def close(self) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> tuple[NDArray[np.uint64], NDArray[np.float32]]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exception_type: Optional[type[BaseException]] = None,
        exception: Optional[BaseException] = None,
        traceback: Optional[TracebackType] = None,
        /,
    ) -> None: ...

@final
class Table:
    @property
    def bank(self) -> Bank: ...
    @property
    def name(self) -> str: ...
    @property
    def dim(self) -> int: ...
    @property
    def admits_all(self) -> bool: ...
    @property
    def dtype(self) -> _DtypeName: ...
    @property
    def learning_rate(self) -> Optional[float]: ...
    @learning_rate.setter
    def learning_rate(self, value: float) -> None: ...
    @property
    def optimizer(self) -> Optional[_Optimizer]: ...
    @optimizer.setter
    def optimizer(self, value: _Optimizer) -> None: ...
    @property
    def clip_row_norm(self) -> Optional[float]: ...
    @clip_row_norm.setter
    def clip_row_norm(self, value: Optional[float]) -> None: ...
    @property
    def shard(self) -> Optional[int]: ...
    @property
    def staleness_bound(self) -> Optional[int]: ...
    @staleness_bound.setter
    def staleness_bound(self, value: Optional[int]) -> None: ...
    def get(
        self, keys: _Keys, *, out: Optional[NDArray[np.float32]] = None, timeout: Optional[float] = None
    ) -> Lease: ...
    def try_get(
        self, keys: _Keys, *, out: Optional[NDArray[np.float32]] = None
    ) -> Optional[Lease]: ...
    def get_distinct(
        self,
        keys: _Keys,
        *,
        out: Optional[NDArray[np.float32]] = None,
        earlier: Optional[_Keys] = None,
        timeout: Optional[float] = None,
    ) -> Lease: ...
    def get_ahead(
        self,
        keys: _Keys,
        queue: AheadQueue,
        *,
        distinct: bool = False,
        offsets: Optional[_Keys] = None,
        pooling: Literal["sum", "mean"] = "sum",
        weights: Optional[_Values] = None,
        earlier: Optional[_Keys] = None,
        timeout: Optional[float] = None,
    ) -> Pending: ...
    def put(self, keys: _Keys, rows: _Values, *, blind: bool = False) -> None: ...
    def apply_gradients(self, keys: _Keys, grads: _Values) -> None: ...
    def apply_leases(
        self, leases: Sequence[Lease], keys: _Keys, grads: _Values
    ) -> None: ...
    def get_bags(
        self,
        keys: _Keys,
        offsets: _Keys,
        *,
        pooling: Literal["sum", "mean"] = "sum",
        weights: Optional[_Values] = None,
        out: Optional[NDArray[np.float32]] = None,
        timeout: Optional[float] = None,
    ) -> Lease: ...
    def peek_bags(
        self,
        keys: _Keys,
        offsets: _Keys,
        *,
        pooling: Literal["sum", "mean"] = "sum",
        weights: Optional[_Values] = None,
        out: Optional[NDArray[np.float32]] = None,
    ) -> NDArray[np.float32]: ...
    def peek(
        self,
        keys: _Keys,
        *,
        missing: Literal["initial", "error"] = "initial",
        out: Optional[NDArray[np.float32]] = None,
    ) -> NDArray[np.float32]: ...
    def initial(self, keys: _Keys) -> NDArray[np.float32]: ...
    def contains(self, keys: _Keys) -> NDArray[np.bool_]: ...
    def delete(self, keys: _Keys) -> int: ...
    def lookahead(self, keys: _Keys) -> int: ...
    def cancel_lookahead(self, keys: _Keys) -> int: ...
    def prefetch(
        self, keys: _Keys, *, missing: Literal["initial", "error"] = "initial"
    ) -> Prefetch: ...
    def scan(self, batch_size: Optional[int] = None) -> Scan: ...
    def set_time(self, time: int) -> None: ...
    def evict(
        self,
        *,
        unused_for: Optional[int] = None,
        used_fewer_than: Optional[int] = None,
        norm_below: Optional[float] = None,
        dry_run: bool = False,
        keys: bool = False,
        progress: Optional[Callable[[int, int], object]] = None,
    ) -> _Evicted: ...
    def forget_counts(self, unused_for: int, *, dry_run: bool = False) -> int: ...
    def export(
        self,
        path: _Path,
        *,
        format: Optional[Literal["safetensors", "npy", "parquet"]] = None,
        state: bool = False,
        dense: bool = False,
        rows: Optional[int] = None,
        fill_missing: bool = False,
        progress: Optional[Callable[[int, int], object]] = None,
    ) -> _Exported: ...
    def import_from(
        self,
        path: Union[_Path, list[_Path], tuple[_Path, ...]],
        *,
        format: Optional[Literal["safetensors", "npy", "parquet"]] = None,
        keys: Optional[str] = None,
        rows: Optional[str] = None,
        first_key: Optional[int] = None,
        state: bool = True,
        non_finite: bool = False,
        progress: Optional[Callable[[int, int], object]] = None,
    ) -> _Imported: ...
    def outstanding(self, key: int) -> Optional[int]: ...
    def outstanding_leases(self) -> list[_LeaseInfo]: ...
    def stats(self) -> _TableStats: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> Literal[True]: ...
    def __copy__(self) -> Self: ...
    def __deepcopy__(self, memo: dict[int, object]) -> Self: ...
    def __reduce__(self) -> NoReturn: ...

_RawValues = Union[_Keys, Iterable[Union[bytes, str]]]

@final
class Vocabulary:
    """Maps values to dense ids, and ids back to values. Made by `Bank.vocabulary`."""

    @property
    def name(self) -> str:
        """The vocabulary's name."""
    @property
    def kind(self) -> Literal["u64", "bytes"]:
        """The kind of its values."""
    @property
    def first_id(self) -> int:
        """The first value's id."""
    @property
    def next_id(self) -> int:
        """The id that the next new value gets."""
    @property
    def frozen(self) -> bool:
        """Whether the vocabulary refuses new values."""
    @frozen.setter
    def frozen(self, frozen: bool) -> None: ...
    @property
    def fingerprint(self) -> int:
        """A hash of all values and their order."""
    def __len__(self) -> int: ...
    def ids(self, values: _RawValues) -> NDArray[np.uint64]:
        """The ids of the values; `UNKNOWN_ID` for a value without an id."""
    def lookup(self, values: _RawValues) -> NDArray[np.uint64]:
        """The ids of the values; the vocabulary's `unknown_id` for a value without an id."""
    def ids_or_insert(self, values: _RawValues) -> NDArray[np.uint64]:
        """The ids of the values. New values get the next ids."""
    def values(self, ids: _Keys) -> Union[NDArray[np.uint64], list[bytes]]:
        """The values of the ids."""
    def count(self, ids: _Keys, counts: Optional[_Keys] = None) -> None:
        """Adds 1 to the count of each id, or the number at the id's place in `counts`."""
    def counts(self, ids: _Keys) -> NDArray[np.uint64]:
        """The count of each id."""
    def keep_frequent(self, min_count: int) -> tuple[int, int]:
        """Keeps the values counted at least `min_count` times; returns (kept, removed)."""
    def __copy__(self) -> Self: ...
    def __deepcopy__(self, memo: dict[int, object]) -> Self: ...
    def __reduce__(self) -> NoReturn: ...

@final
class Bank:
    def __new__(
        cls,
        path: _Path,
        *,
        memory_budget: Optional[Union[int, str]] = None,
        device: Literal["auto", "io_uring", "threads"] = "auto",
        checkpoints_kept: Optional[int] = None,
        wait_timeout: float = 60.0,
        lease_timeout: Optional[float] = None,
        compaction: Optional[bool] = None,
        space_amplification_target: float = 1.4,
        compaction_throttle: Optional[Union[int, str]] = None,
        disk_quota: Optional[Union[int, str]] = None,
        read_only: bool = False,
        checkpoint: Optional[int] = None,
        create: bool = True,
        threads: Optional[int] = None,
        cold_tier: Literal["auto", "never"] = "never",
    ) -> Self: ...
    @property
    def path(self) -> Path: ...
    @property
    def recovered(self) -> Optional[Recovered]: ...
    @property
    def last_checkpoint(self) -> Optional[int]: ...
    @property
    def changed_since_checkpoint(self) -> bool: ...
    @property
    def state_id(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    def table(
        self,
        name: str,
        dim: int,
        *,
        optimizer: Optional[_Optimizer] = None,
        initializer: Optional[_Initializer] = None,
        seed: Optional[int] = None,
        staleness_bound: Optional[int] = None,
        clip_row_norm: Optional[float] = None,
        tracking: Optional[Literal["minutes", "set_time"]] = None,
        admit_after_gets: Optional[int] = None,
        admit_probability: Optional[float] = None,
        dtype: _Dtype = None,
        state_dtype: _Dtype = None,
        rounding: Optional[Literal["nearest", "stochastic"]] = None,
        vocabulary: Optional[str] = None,
        shard: Optional[int] = None,
    ) -> Table: ...
    def table_as_exported(
        self,
        name: str,
        path: _Path,
        *,
        format: Optional[Literal["safetensors", "npy", "parquet"]] = None,
        vocabulary: bool = True,
    ) -> Table: ...
    def open_table(self, name: str) -> Table: ...
    def vocabulary(
        self,
        name: str,
        kind: Literal["u64", "bytes"] = "u64",
        *,
        first_id: Optional[int] = None,
        unknown_id: Optional[int] = None,
        counts: bool = False,
        value_bytes_max: Optional[int] = None,
    ) -> Vocabulary: ...
    def open_vocabulary(self, name: str) -> Vocabulary: ...
    def vocabularies(self) -> list[str]: ...
    def drop_vocabulary(self, name: str) -> None: ...
    def tables(self) -> list[str]: ...
    def drop_table(self, name: str) -> None: ...
    def compact(self) -> _Compacted: ...
    def checkpoint(self, blob: Optional[bytes] = None) -> int: ...
    def pin(self, checkpoint: int) -> None: ...
    def unpin(self, checkpoint: int) -> None: ...
    def roll_back(self, checkpoint: int) -> list[int]: ...
    def refresh(self) -> int: ...
    def ahead_queue(self) -> AheadQueue: ...
    def cancel_lookahead(self) -> int: ...
    def outstanding_leases(self) -> list[_LeaseInfo]: ...
    def wait_lookahead(self, timeout: float = 60.0) -> bool: ...
    def stats(self) -> _BankStats: ...
    def prometheus(self) -> str: ...
    def close(self, *, checkpoint: Optional[bytes] = None) -> Optional[int]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exception_type: Optional[type[BaseException]] = None,
        exception: Optional[BaseException] = None,
        traceback: Optional[TracebackType] = None,
        /,
    ) -> None: ...
    def __copy__(self) -> Self: ...
    def __deepcopy__(self, memo: dict[int, object]) -> Self: ...
    def __reduce__(self) -> NoReturn: ...

class _Checkpoint(TypedDict):
    number: int
    id: int
    time: int
    blob_bytes: int
    file_bytes: int
    pinned: bool
    tables: dict[str, int]

def get_many(
    requests: Sequence[tuple[Table, _Keys]],
    *,
    earlier: Optional[Sequence[Optional[_Keys]]] = None,
    timeout: Optional[float] = None,
) -> list[Lease]: ...
def apply_many(
    parts: Sequence[tuple[Table, Sequence[Lease], Optional[_Keys], _Values]],
) -> None: ...
def get_bags_many(
    requests: Sequence[
        tuple[Table, _Keys, _Keys, Literal["sum", "mean"], Optional[_Values]]
    ],
) -> list[Lease]: ...
@final
class ShardIdentity:
    @property
    def fleet(self) -> bytes: ...
    @property
    def shard(self) -> int: ...
    @property
    def shards(self) -> int: ...

@final
class FleetSet:
    @property
    def number(self) -> int: ...
    @property
    def id(self) -> int: ...
    @property
    def checkpoints(self) -> list[int]: ...
    @property
    def blob(self) -> bytes: ...

@final
class FleetPlan:
    @property
    def fleet(self) -> bytes: ...
    @property
    def set(self) -> Optional[int]: ...
    @property
    def holder(self) -> Optional[int]: ...
    @property
    def lacking(self) -> list[int]: ...
    @property
    def passed_over(self) -> list[str]: ...

@final
class Shard:
    def __init__(
        self, bank: Bank, shard: int, shards: int, *, sets_kept: Optional[int] = None
    ) -> None: ...
    @property
    def shard(self) -> int: ...
    @property
    def shards(self) -> int: ...
    @property
    def identity(self) -> Optional[ShardIdentity]: ...
    @property
    def recovered(self) -> Optional[FleetSet]: ...
    @property
    def newest_set(self) -> Optional[int]: ...
    def view(self) -> bytes: ...
    def record(self, set: int) -> bytes: ...
    def check(self, plan: FleetPlan) -> None: ...
    def settle(self, plan: FleetPlan, record: Optional[bytes] = None) -> None: ...
    def take(self) -> bytes: ...
    def abandon(self) -> None: ...
    def commit(self, taken: Sequence[bytes], blob: Optional[bytes] = None) -> FleetSet: ...
    def sets(self) -> list[FleetSet]: ...

def plan_fleet(
    views: Sequence[bytes], set: Optional[int] = None, id: Optional[int] = None
) -> FleetPlan: ...
def list_shards(directory: _Path) -> list[tuple[int, Optional[ShardIdentity]]]: ...
def shard_path(directory: _Path, shard: int) -> Path: ...
def route_keys(
    requests: Sequence[tuple[str, _Keys, Optional[int]]], shard_of_rank: Sequence[int]
) -> list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], list[int]]]: ...
def take_rows(
    parts: Sequence[tuple[NDArray[np.float32], NDArray[np.int64]]], out: NDArray[np.float32]
) -> None: ...
def place_rows(
    parts: Sequence[tuple[NDArray[np.float32], NDArray[np.int64]]], values: NDArray[np.float32]
) -> None: ...
def sum_rows(
    count: int,
    dim: int,
    parts: Sequence[tuple[NDArray[np.float32], NDArray[np.int64]]],
    divisor: float,
) -> NDArray[np.float32]: ...
def prometheus(banks: dict[str, Bank]) -> str: ...
def end_feeds_with_callables() -> None: ...
def checkpoint_id(state_id: str, checkpoint: int) -> int: ...
def list_checkpoints(path: _Path) -> list[_Checkpoint]: ...
def roll_back(path: _Path, checkpoint: int) -> list[int]: ...
def copy_checkpoint(path: _Path, to: _Path, checkpoint: Optional[int] = None) -> int: ...
def export_delta(path: _Path, file: _Path, *, since: int, to: Optional[int] = None) -> int: ...
def apply_delta(path: _Path, file: _Path, *, checkpoints_kept: Optional[int] = None) -> int: ...

_Input = Union[str, PathLike[str], bytes]

@final
class RunReport:
    """The result of a run."""

    @property
    def rows(self) -> int:
        """Rows that the run made. A feed's rows that were skipped count."""
    @property
    def passed_rows(self) -> int:
        """Those of the rows that the run did not read, because a feed that resumed could begin
        after them.
        """
    @property
    def bad_rows(self) -> int:
        """Bad rows, which were left out."""
    @property
    def bad_lines(self) -> int:
        """Lines of input that the bad rows span."""
    @property
    def first_bad_rows(self) -> list[str]:
        """The first ten bad rows: file, line, column and the problem."""
    @property
    def missing_columns(self) -> int:
        """Columns that files of Parquet or Arrow do not have, counted for each file."""
    @property
    def first_missing_columns(self) -> list[str]:
        """The first ten missing columns: file and column."""
    @property
    def made_arrays(self) -> int:
        """Arrays that `image` and `decode` have made."""
    @property
    def cached_arrays(self) -> int:
        """Arrays from the pipeline's `cache`."""
    @property
    def spooled_arrays(self) -> int:
        """Arrays from the `spool`."""
    @property
    def damaged_groups(self) -> int:
        """Groups of the spool's files that were damaged. Their arrays were made again."""
    @property
    def bytes(self) -> int:
        """Bytes of input."""
    @property
    def seconds(self) -> float:
        """Duration of the run."""

@final
class ArrowBatch:
    """A batch for libraries of Arrow, without a copy. Made by `Batch.arrow`."""

    def __new__(cls, arrays: dict[str, NDArray[Any]]) -> Self: ...
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_array__(
        self, requested_schema: Optional[object] = None
    ) -> tuple[object, object]: ...
    def __len__(self) -> int: ...

@final
class Feed:
    """Batches of a pipeline, made in the background. Made by `Pipeline.feed`."""

    @property
    def position(self) -> int:
        """The number of rows that were skipped or handed out."""
    def state_dict(self, rows: Optional[int] = None) -> dict[str, Any]:
        """The place after these rows, with the inputs that they came from, for `skip_rows`."""
    @property
    def report(self) -> Optional[RunReport]:
        """The report of the run after its last batch, otherwise None."""
    def split(self, parts: int) -> list[Feed]:
        """Divides the feed among trainers: batch k goes to part k modulo `parts`."""
    @property
    def discarded_rows(self) -> int:
        """The rows of parts that were closed early, so far."""
    def close(self) -> None:
        """Ends the run. The feed yields no batch any more."""
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_stream__(self, requested_schema: Optional[object] = None) -> object: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Batch: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exception_type: Optional[type[BaseException]] = None,
        exception: Optional[BaseException] = None,
        traceback: Optional[TracebackType] = None,
        /,
    ) -> None: ...

# Number, path, begin and end of a part, and bytes and time of change of its file.
_PartRow = tuple[int, str, int, int, int, int]
# A vocabulary: name, numbers, or offsets and bytes of texts, and counts.
_PartValues = tuple[
    str,
    Optional[NDArray[np.uint64]],
    Optional[NDArray[np.uint64]],
    Optional[NDArray[np.uint8]],
    Optional[NDArray[np.uint64]],
]

@final
class PartPipeline:
    """A pipeline whose vocabularies are in memory, for the parts of a split. Used by
    `embank.pipeline.FrozenPipeline`.
    """

    def __new__(cls, spec: Union[Spec, str, dict[str, Any]]) -> Self: ...
    @property
    def spec(self) -> str:
        """The spec as JSON. Equal specs have equal JSON."""
    @property
    def outputs(self) -> list[tuple[str, list[int], str]]:
        """Name, shape of a row and dtype of each output."""
    def check_split(self, split: str) -> None:
        """Fails if the split was made for another spec."""
    def generate(self, split: str, row: _PartRow) -> str:
        """Gives ids to the values of a part. Returns the report as JSON."""
    def generate_rows(self, stream: bytes) -> str:
        """Gives ids to the values of rows that are an Arrow stream."""
    def values(self) -> list[_PartValues]:
        """The values of all vocabularies: numbers, or offsets and bytes of texts, and counts."""
    def absorb(
        self,
        vocabulary: str,
        numbers: Optional[NDArray[np.uint64]],
        offsets: Optional[NDArray[np.uint64]],
        bytes: Optional[NDArray[np.uint8]],
        counts: Optional[NDArray[np.uint64]],
    ) -> None:
        """Gives ids to new ones among these values, in their order, and adds the counts."""
    def add_report(self, report: str) -> None:
        """Adds the report of a part. Fails if too many rows are bad."""
    def finish_merge(self) -> None:
        """Keeps what is frequent in vocabularies with a `min_count`."""
    def finish_copy(self) -> None:
        """Freezes the vocabularies with a `min_count`."""
    def report(self) -> RunReport:
        """The sum of the reports that were added."""
    def report_json(self) -> str:
        """The sum of the reports as JSON, which `add_report` takes."""
    def feed(self, split: str, row: _PartRow, replay: bool, batch_rows: int) -> Feed:
        """The batches of a part."""
    def feed_rows(self, stream: bytes, batch_rows: int) -> Feed:
        """The batches of rows that are an Arrow stream."""
    def write(self, bank: Bank) -> None:
        """Writes the vocabularies into a bank."""

def split_files(
    spec: Union[Spec, str, dict[str, Any]],
    inputs: Union[_Input, Iterable[_Input]],
    part_bytes: Union[int, str],
    format: Optional[str],
    separator: Optional[str],
    header: Optional[Union[str, bool]],
    quote: Optional[str],
) -> tuple[str, list[_PartRow]]:
    """Divides files into parts. Returns the split as JSON, and the parts."""

@final
class Pipeline:
    """Turns text into numbers in one pass, with all cores. It decodes fields, fills missing
    values, scales, hashes, and gives each category a number.
    """

    def __new__(
        cls,
        spec: Union[Spec, str, dict[str, Any]],
        *,
        bank: Optional[Bank] = None,
        format: Optional[Literal["tsv", "csv", "packed", "columns"]] = None,
        separator: Optional[str] = None,
        header: Optional[Union[Literal["names", "skip", "none"], bool]] = None,
        quote: Optional[str] = None,
        threads: Optional[int] = None,
        chunk_bytes: Optional[int] = None,
        root: Optional[Union[str, PathLike[str]]] = None,
        decoders: Optional[dict[str, Callable[[bytes], Any]]] = None,
        cache: Optional[Union[int, str]] = None,
        spool: Optional[Union[str, PathLike[str]]] = None,
        spool_bytes: Optional[Union[int, str]] = None,
    ) -> Self: ...
    @property
    def outputs(self) -> dict[str, list[str]]:
        """The outputs' names, and for each output the names of its columns."""
    def feed(
        self,
        inputs: Union[_Input, Iterable[_Input]],
        *,
        batch_rows: Optional[int] = None,
        shuffle_rows: Optional[int] = None,
        seed: Optional[int] = None,
        threads: Optional[int] = None,
        skip_rows: Optional[Union[int, dict[str, Any]]] = None,
        batches_ahead: Optional[int] = None,
        drop_last: bool = False,
        save_each_batch: bool = True,
        learn: Optional[bool] = None,
    ) -> Feed:
        """Batches of exactly `batch_rows` rows. With `learn=False` nothing is inserted."""
    def run(
        self,
        inputs: Union[_Input, Iterable[_Input]],
        *,
        threads: Optional[int] = None,
        learn: Optional[bool] = None,
    ) -> RunReport:
        """Runs over the inputs without batches: fills the vocabularies, unless `learn=False`."""
    def generate(
        self, inputs: Union[_Input, Iterable[_Input]], *, threads: Optional[int] = None
    ) -> RunReport:
        """Gives ids to the values of the inputs, and counts them in vocabularies that count."""
    def keep_frequent(self, min_count: int) -> list[tuple[str, int, int]]:
        """Keeps values that came at least `min_count` times; [(name, kept, removed), ...]."""
    def save(self) -> None:
        """Saves the new values in the bank; durable with the bank's next checkpoint."""
    def checkpoint(self, blob: Optional[bytes] = None) -> int:
        """Saves, and takes a checkpoint of the bank."""
    def __copy__(self) -> Self: ...
    def __deepcopy__(self, memo: dict[int, object]) -> Self: ...
    def __reduce__(self) -> NoReturn: ...
    def vocabularies(self) -> dict[str, NDArray[np.uint32]]:
        """The values of each vocabulary with a known range, in the order of their ids."""
