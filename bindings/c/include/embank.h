// Embank: embedding tables larger than memory, for training. The C ABI.
//
// cbindgen makes this file from bindings/c/src. To make it again:
// `EMBANK_BLESS=1 cargo test -p embank-c --test header`.
// The guide is docs/c.md, the tutorial bindings/c/examples/train.cpp.
//
// These rules hold for every function:
//
// Errors. A function that can fail returns an embank_status. EMBANK_STATUS_OK is 0; the other
// numbers never change their meaning. embank_last_error_message() says what happened and what to
// do. Out parameters are written only on success, with two exceptions: after a failure an out
// parameter for a handle is NULL, and buffers of rows have unspecified content. A Rust panic never
// reaches the caller: it is EMBANK_STATUS_INTERNAL.
//
// Handles. The caller owns every handle that a function returns through a `T **`, and frees it
// once, with the function that the type's comment names. This holds also for a lease or a get ahead
// that has ended, or a table that was dropped. Handles may be freed in any order: a table, lease,
// scan, queue or get ahead keeps its bank open, and the bank closes when the last of them is freed.
// Freeing NULL does nothing. Using a handle after it was freed, or freeing it while another call
// uses it, is undefined.
//
// Buffers. Keys, rows, gradients, names and paths are lent during the call; the library keeps no
// pointer to them. A batch is `key_count` keys and key_count * dim values, row after row. A
// `..._len` counts values; one that does not fit is an error before the call changes anything. A
// buffer that is written to must not overlap another buffer of the call. An overlap, a misaligned
// pointer, and NULL with a length are errors. Names are UTF-8, paths are bytes of the system; both
// end with a NUL.
//
// Callbacks. A call runs its callbacks on the thread of the caller, with the `context` that was
// passed beside it, and never after the call has returned. A callback may be NULL. A callback that
// returns a number other than 0 ends the call, which then returns EMBANK_STATUS_CANCELLED. A
// callback may call the library, but must not free a handle that the call uses. It must return:
// longjmp or an exception out of it is undefined. The callback of embank_table_update differs:
// several threads may call it at the same time, it must not call the library, and it must not be
// NULL.
//
// Threads. Several threads may use a handle at once, and a handle may move between threads. Calls
// on a bank, table or lease run beside each other; calls on one scan take turns.
//
// pthread_cancel(). A thread can't be cancelled during a call, nor in the call's callbacks: the
// request takes effect at the first cancellation point after the call. To end a call, let a
// callback return a number other than 0. A thread that allows asynchronous cancellation
// (PTHREAD_CANCEL_ASYNCHRONOUS) must not call the library.
//
// fork(). A child process can't use its parent's handles: calls return EMBANK_STATUS_FORKED and
// freeing does nothing, so the parent's bank stays intact. The child does not keep the bank locked:
// it can open the bank after the parent has closed it, or to read only at any time; or use exec.


#ifndef EMBANK_H
#define EMBANK_H

#include <stddef.h>
#include <stdint.h>

// Marks a value without an id: with EMBANK_UNKNOWN_VALUES_MARK, embank_vocabulary_ids_of_numbers
// and embank_vocabulary_ids_of_bytes return this number in place of an id.
#define EMBANK_NO_ID 18446744073709551615ull

// The result of a call. Numbers never change their meaning. A newer library may return numbers
// that are not listed here.
typedef enum embank_status {
  // The call succeeded.
  EMBANK_STATUS_OK = 0,
  // An argument is NULL, misaligned, overlapping, not UTF-8 or out of its range; or an option or
  // setting is out of its range.
  EMBANK_STATUS_INVALID_ARGUMENT = 1,
  // A buffer's length does not fit the keys and the table's dim.
  EMBANK_STATUS_SHAPE_MISMATCH = 2,
  // The table exists with another layout or other initial values.
  EMBANK_STATUS_TABLE_MISMATCH = 3,
  // The bank has no table of this name.
  EMBANK_STATUS_NO_SUCH_TABLE = 4,
  // The table of this handle or lease was dropped.
  EMBANK_STATUS_TABLE_DROPPED = 5,
  // The bank holds a table that this version can't read.
  EMBANK_STATUS_UNREADABLE_TABLE = 6,
  // A peek with EMBANK_MISSING_ERROR met keys that have no row.
  EMBANK_STATUS_MISSING_ROW = 7,
  // A get waited for wait_timeout_ms, but a staleness clock stayed above the table's bound. The
  // get took no lease and can be called again.
  EMBANK_STATUS_STALENESS_TIMEOUT = 8,
  // The table has no optimizer that could apply a gradient.
  EMBANK_STATUS_NO_OPTIMIZER = 9,
  // A gradient is NaN or infinite. No row has been changed.
  EMBANK_STATUS_NON_FINITE_GRADIENT = 10,
  // The lease was already applied, put or released.
  EMBANK_STATUS_LEASE_ENDED = 11,
  // A system call on a file failed.
  EMBANK_STATUS_IO = 12,
  // A file is damaged or cut short.
  EMBANK_STATUS_DAMAGED = 13,
  // The bank is already open for writing, in this process or another.
  EMBANK_STATUS_LOCKED = 14,
  // The bank was opened read-only.
  EMBANK_STATUS_READ_ONLY = 15,
  // A reader shows the checkpoint, so it can't be removed.
  EMBANK_STATUS_BEING_READ = 16,
  // A delta does not follow the bank's newest checkpoint.
  EMBANK_STATUS_DELTA_MISMATCH = 17,
  // The memory budget is too small; the message names one that is enough.
  EMBANK_STATUS_BUDGET_TOO_SMALL = 18,
  // The disk quota is used up.
  EMBANK_STATUS_QUOTA_EXCEEDED = 19,
  // An earlier write failed. The bank writes nothing more until it is opened again.
  EMBANK_STATUS_POISONED = 20,
  // The store found a contradiction in its own data: a mistake in Embank. The last checkpoint is
  // still good.
  EMBANK_STATUS_INCONSISTENT = 21,
  // The device that was asked for by name can't be used here.
  EMBANK_STATUS_DEVICE_UNAVAILABLE = 22,
  // An earlier lookahead met an error while it read. The keys of this call are not queued.
  EMBANK_STATUS_LOOKAHEAD_FAILED = 23,
  // The handle was made before a fork(), in the parent process.
  EMBANK_STATUS_FORKED = 24,
  // A panic: a mistake in Embank. Open the bank again from its last checkpoint.
  EMBANK_STATUS_INTERNAL = 25,
  // A failure that has no number of its own; see the message. Also the refusal to change one
  // shard of a fleet alone.
  EMBANK_STATUS_OTHER = 26,
  // The lease grew older than the bank's lease_timeout_ms, and a get of its table ended it. The
  // call changed no row.
  EMBANK_STATUS_LEASE_EXPIRED = 27,
  // A callback ended the call.
  EMBANK_STATUS_CANCELLED = 28,
  // A file can't be read as a table. It is damaged, holds values that are not finite, or does
  // not tell which of its parts are keys and vectors. Batches that were imported before the
  // failure are in the table.
  EMBANK_STATUS_UNREADABLE_FILE = 29,
  // The bank's directory was moved, removed or replaced while the bank was open. The bank writes
  // nothing more.
  EMBANK_STATUS_DIRECTORY_MOVED = 30,
  // The table's keys are ids of a vocabulary, and a key of the call is not one of these ids. The
  // call read and changed no row.
  EMBANK_STATUS_UNKNOWN_ID = 31,
  // A get would wait for leases of its own thread, which can't end them while it waits. The get
  // took no lease. End those leases first. If another thread will end them, call
  // embank_lease_hand_over.
  EMBANK_STATUS_SELF_BLOCKED = 32,
  // A row of a put has a value that is NaN or infinite, or too large for the table's dtype. No
  // row has been changed.
  EMBANK_STATUS_NON_FINITE_ROW = 33,
  // A step would make some rows infinite in the table's dtype. These rows are unchanged. All
  // other rows of the batch took their step.
  EMBANK_STATUS_ROW_OVERFLOW = 34,
  // The bank has no vocabulary of this name.
  EMBANK_STATUS_NO_SUCH_VOCABULARY = 35,
  // The vocabulary exists with other settings.
  EMBANK_STATUS_VOCABULARY_MISMATCH = 36,
  // A value has no id in the vocabulary, and the vocabulary has no unknown_id.
  EMBANK_STATUS_UNKNOWN_VALUE = 37,
  // The vocabulary of this handle was dropped.
  EMBANK_STATUS_VOCABULARY_DROPPED = 38,
  // The call would insert a value, but the vocabulary is frozen.
  EMBANK_STATUS_VOCABULARY_FROZEN = 39,
  // The table's keys are ids of a vocabulary that was renumbered, replaced or dropped since the
  // table was made.
  EMBANK_STATUS_OTHER_VOCABULARY = 40,
  // The disk has no room for the data that the call must write. No row is lost: make room and
  // call again.
  EMBANK_STATUS_DISK_FULL = 41,
  // A file can be read, but does not fit the table: it has another dim, the state of another
  // optimizer, or ids of another vocabulary. Batches that were imported before the failure are
  // in the table.
  EMBANK_STATUS_FILE_MISMATCH = 42,
  // The callback of embank_table_update gave some rows a value that is not finite in the table's
  // dtype. These rows are unchanged. All other rows of the batch are changed.
  EMBANK_STATUS_UPDATE_REFUSED = 43,
  // The get ahead has ended: embank_pending_wait was called for it already, or its queue was
  // freed before it made the get. Call embank_table_get_ahead again.
  EMBANK_STATUS_AHEAD_ENDED = 44,
  // A newer version of Embank wrote a file of the bank. The file is not damaged: use a newer
  // library. The message names the file, its format version, and the versions that this library
  // reads.
  EMBANK_STATUS_NEWER_FORMAT = 45,
} embank_status;

// How a table's values are stored. With every dtype, functions take and return rows as float.
typedef enum embank_dtype {
  // IEEE 754 single precision.
  EMBANK_DTYPE_F32 = 0,
  // IEEE 754 half precision: 11 significant bits. Magnitudes above 65,504 become infinite.
  EMBANK_DTYPE_F16 = 1,
  // The upper half of an F32: 8 significant bits, and the range of an F32.
  EMBANK_DTYPE_BF16 = 2,
  // Whole numbers from -127 to 127. Each row has a scale, an F32, by which its numbers are
  // multiplied.
  EMBANK_DTYPE_INT8 = 3,
} embank_dtype;

// How an update rounds a row to a dtype smaller than F32. Initial values and rows of a put are
// always rounded to the nearest value.
typedef enum embank_rounding {
  // Stochastic for INT8, to the nearest for the other dtypes.
  EMBANK_ROUNDING_BY_DTYPE = 0,
  // To the nearest value, ties to even. An update smaller than half the distance to the next
  // value is lost.
  EMBANK_ROUNDING_NEAREST = 1,
  // Up or down at random, with the exact value as the mean. A repeated run rounds in the same
  // way. Takes 4 bytes a row.
  EMBANK_ROUNDING_STOCHASTIC = 2,
} embank_rounding;

// The keys for which a get inserts a row. For every other key without a row, the get returns the
// initial values, and the key's gradient is dropped.
typedef enum embank_admission {
  // A key gets its row at its first get.
  EMBANK_ADMISSION_ALWAYS = 0,
  // Get number admission_gets of a key makes the key's row. Until then the table counts the
  // key's gets. The table forgets this count after it has counted enough other keys: as many as
  // the table has rows, and at least 65,536.
  EMBANK_ADMISSION_AFTER_GETS = 1,
  // Each get of a key without a row inserts the row with the probability admission_probability.
  EMBANK_ADMISSION_PROBABILITY = 2,
} embank_admission;

// The kinds of optimizers. docs/optimizers.md has the formulas.
typedef enum embank_optimizer_kind {
  // No optimizer: rows change only by puts.
  EMBANK_OPTIMIZER_KIND_NONE = 0,
  // torch.optim.SGD.
  EMBANK_OPTIMIZER_KIND_SGD = 1,
  // torch.optim.Adagrad.
  EMBANK_OPTIMIZER_KIND_ADAGRAD = 2,
  // Adagrad with one accumulator per row.
  EMBANK_OPTIMIZER_KIND_ROW_WISE_ADAGRAD = 3,
  // torch.optim.Adam.
  EMBANK_OPTIMIZER_KIND_ADAM = 4,
  // torch.optim.AdamW.
  EMBANK_OPTIMIZER_KIND_ADAM_W = 5,
  // FTRL-proximal.
  EMBANK_OPTIMIZER_KIND_FTRL = 6,
} embank_optimizer_kind;

// The kinds of initializers.
typedef enum embank_initializer_kind {
  // Zeros.
  EMBANK_INITIALIZER_KIND_ZEROS = 0,
  // Every value is parameters[0].
  EMBANK_INITIALIZER_KIND_CONSTANT = 1,
  // Uniform between parameters[0] and parameters[1].
  EMBANK_INITIALIZER_KIND_UNIFORM = 2,
  // Normal with mean parameters[0] and standard deviation parameters[1].
  EMBANK_INITIALIZER_KIND_NORMAL = 3,
  // Normal with mean parameters[0] and standard deviation parameters[1], but only values between
  // parameters[2] and parameters[3].
  EMBANK_INITIALIZER_KIND_TRUNCATED_NORMAL = 4,
  // torch.nn.init.xavier_uniform_, with gain parameters[0].
  EMBANK_INITIALIZER_KIND_XAVIER_UNIFORM = 5,
  // torch.nn.init.xavier_normal_, with gain parameters[0].
  EMBANK_INITIALIZER_KIND_XAVIER_NORMAL = 6,
} embank_initializer_kind;

// Tracking: whether each row records its last use and its number of uses, and the unit of time.
typedef enum embank_tracking {
  // Rows do not record their uses.
  EMBANK_TRACKING_NONE = 0,
  // The time is in minutes, by the system's clock.
  EMBANK_TRACKING_MINUTES = 1,
  // The caller sets the time with embank_table_set_time, in a unit of its choice.
  EMBANK_TRACKING_SET_TIME = 2,
} embank_tracking;

// The system interface with which a bank reads and writes its log.
typedef enum embank_device {
  // io_uring if the kernel grants it, otherwise threads.
  EMBANK_DEVICE_AUTO = 0,
  // io_uring; opening fails if the kernel refuses it.
  EMBANK_DEVICE_IO_URING = 1,
  // A pool of threads.
  EMBANK_DEVICE_THREADS = 2,
} embank_device;

// When rows move to the cold tier: files of sorted rows, which take about 1 byte of memory for
// each row, where a row of the log takes 15 bytes of index. A bank with a cold tier keeps it, and
// programs older than format 7 can't open it. A bank with a cold tier that is opened without
// EMBANK_COLD_TIER_AUTO and with background_compaction = 0 has no thread that moves rows: its log
// grows until embank_bank_compact. So a resumed run needs EMBANK_COLD_TIER_AUTO again.
typedef enum embank_cold_tier {
  // If the index would take more than a quarter of the memory budget. A thread of the bank then
  // moves rows, also with background_compaction = 0.
  EMBANK_COLD_TIER_AUTO = 0,
  // As EMBANK_COLD_TIER_AUTO, but with background_compaction = 0 rows move only in
  // embank_bank_compact.
  EMBANK_COLD_TIER_ON_COMPACT = 1,
  // Never. For a bank that has a cold tier already, this is the same as
  // EMBANK_COLD_TIER_ON_COMPACT.
  EMBANK_COLD_TIER_NEVER = 2,
} embank_cold_tier;

// How a peek treats a key that has no row.
typedef enum embank_missing {
  // The key gets the row's initial values, which a get would return.
  EMBANK_MISSING_INITIAL = 0,
  // The peek fails with EMBANK_STATUS_MISSING_ROW.
  EMBANK_MISSING_ERROR = 1,
  // The peek leaves the key's part of `rows` unchanged.
  EMBANK_MISSING_SKIP = 2,
} embank_missing;

// How the rows of a bag become one row.
typedef enum embank_pooling {
  // The sum of the rows; zeros for an empty bag.
  EMBANK_POOLING_SUM = 0,
  // The sum of the rows divided by their number; zeros for an empty bag.
  EMBANK_POOLING_MEAN = 1,
} embank_pooling;

// What a row of a request stands for.
typedef enum embank_row_per {
  // A key of the batch. The rows of repeated keys repeat too.
  EMBANK_ROW_PER_KEY = 0,
  // A distinct key, in order of first appearance. embank_lease_distinct lists the distinct keys.
  EMBANK_ROW_PER_DISTINCT = 1,
  // A bag: the rows of its keys, pooled into one.
  EMBANK_ROW_PER_BAG = 2,
} embank_row_per;

// The file formats of exports and imports. docs/export.md describes their content.
typedef enum embank_file_format {
  // The format of the path's suffix: .safetensors, .npy or .parquet.
  EMBANK_FILE_FORMAT_BY_SUFFIX = 0,
  // One safetensors file.
  EMBANK_FILE_FORMAT_SAFETENSORS = 1,
  // NumPy's format: several files, or one for a dense table without state.
  EMBANK_FILE_FORMAT_NPY = 2,
  // One Parquet file. A library that was built without Parquet returns an error.
  EMBANK_FILE_FORMAT_PARQUET = 3,
} embank_file_format;

// The kinds of values of a vocabulary.
typedef enum embank_value_kind {
  // 64-bit numbers.
  EMBANK_VALUE_KIND_U64 = 0,
  // Byte strings. The empty string is a value too.
  EMBANK_VALUE_KIND_BYTES = 1,
} embank_value_kind;

// A vocabulary's setting for values that have no id.
typedef enum embank_unknown {
  // The call fails with EMBANK_STATUS_UNKNOWN_VALUE.
  EMBANK_UNKNOWN_ERROR = 0,
  // The value gets the unknown_id of the settings.
  EMBANK_UNKNOWN_ID = 1,
} embank_unknown;

// How a call treats values that have no id.
typedef enum embank_unknown_values {
  // They get EMBANK_NO_ID.
  EMBANK_UNKNOWN_VALUES_MARK = 0,
  // The setting `unknown` of the vocabulary decides (embank_unknown).
  EMBANK_UNKNOWN_VALUES_AS_SETTINGS = 1,
  // The call inserts them, and each gets the next free id. If the vocabulary is frozen, its
  // setting `unknown` decides (embank_unknown).
  EMBANK_UNKNOWN_VALUES_INSERT = 2,
} embank_unknown_values;

// A queue of gets ahead. A thread of the queue makes the gets in the order of the calls. The gets
// may be of several tables of the bank. A program has one queue for each training loop. Free with
// embank_ahead_queue_free.
typedef struct embank_ahead_queue embank_ahead_queue;

// An open bank: a directory with tables that share one memory budget. Free with embank_bank_close.
typedef struct embank_bank embank_bank;

// Byte strings that a call returns. Free with embank_byte_strings_free.
typedef struct embank_byte_strings embank_byte_strings;

// Bytes that a call returns. Free with embank_bytes_free.
typedef struct embank_bytes embank_bytes;

// A lease, which a get returns. Until the lease ends, it counts in the staleness clock of each row
// of the get. Applying, putting or releasing the lease ends it, even if the call returns an error.
// Only if an argument is wrong does the lease stay as it was. Free with embank_lease_free, which
// also releases the lease if it has not ended.
typedef struct embank_lease embank_lease;

// Names that a call returns. Free with embank_names_free.
typedef struct embank_names embank_names;

// A get ahead. embank_pending_wait ends it, even if that call returns an error. If an argument is
// wrong, the get stays as it was. Free with embank_pending_free, which also cancels the get if it
// has not ended.
typedef struct embank_pending embank_pending;

// A scan: the rows of a table in the checkpoint that was the newest when the scan began. Each row
// comes once, in no particular order. Free with embank_scan_free.
typedef struct embank_scan embank_scan;

// A table of a bank: rows of floats, each under a 64-bit key. A table may have several handles.
// Free with embank_table_free.
typedef struct embank_table embank_table;

// A vocabulary of an open bank: a list of values, each with an id. The ids follow each other
// without gaps. Free with embank_vocabulary_free.
typedef struct embank_vocabulary embank_vocabulary;

// The options of opening a bank. Call embank_bank_options_init, then change fields.
typedef struct embank_bank_options {
  // Set by embank_bank_options_init.
  size_t size;
  // The memory budget in bytes, for rows, index, buffers and the lookahead queue together.
  uint64_t memory_budget_bytes;
  // The number of newest checkpoints that the bank keeps. Default: 2.
  uint64_t checkpoints_kept;
  // The longest time that a get waits at a staleness bound, in milliseconds. A suspension of the
  // process counts as 100 ms at most. Default: 60,000.
  uint64_t wait_timeout_ms;
  // The largest age of a lease, in milliseconds. An older lease expires at the next get of its
  // table, whatever rows that get takes. The staleness clocks then no longer count the lease.
  // Applying or putting it returns EMBANK_STATUS_LEASE_EXPIRED. Releasing or freeing it succeeds
  // and does not change a row. A suspension of the process, and a time in which no thread calls
  // a get, count as 100 ms at most. 0 means that no lease expires. Default: 0.
  uint64_t lease_timeout_ms;
  // The largest number of keys in the lookahead queue. 0 turns lookahead off; a negative number
  // means the keys that fit 1/32 of the memory budget. Default: -1.
  int64_t lookahead_queue_keys;
  // The largest size on disk of the log and of the cold tier's files together, in bytes. 0 means
  // no quota. Default: 0.
  uint64_t disk_quota_bytes;
  // The largest number of bytes that background compaction reads and writes in a second. 0 means
  // no limit. Default: 0.
  uint64_t compaction_throttle_bytes_per_s;
  // Background compaction starts when the log is this many times as long as its current rows.
  // From 1.1 to 10. Default: 1.4.
  double space_amplification_target;
  // One of embank_device. Default: EMBANK_DEVICE_AUTO.
  uint32_t device;
  // 0 or 1: with 1, a thread frees disk space in the background. With 0, only
  // embank_bank_compact frees space, except with EMBANK_COLD_TIER_AUTO (see cold_tier).
  // Default: 0.
  uint32_t background_compaction;
  // 0 or 1: with 1, opening creates the bank if there is none. With 0, opening returns
  // EMBANK_STATUS_INVALID_ARGUMENT for a path without a bank, such as a mistyped path or a file
  // system that is not mounted. Default: 1.
  uint32_t create;
  // The number of threads that share a large batch, including the thread of the caller. With 1,
  // no batch is shared. The results have the same bits with any number of threads. 0 means one
  // thread for each processor that the process may use, at most 16. Default: 0.
  uint32_t threads;
  // One of embank_cold_tier. Default: EMBANK_COLD_TIER_NEVER.
  uint32_t cold_tier;
  // Must be 0.
  uint32_t reserved;
} embank_bank_options;

// An optimizer: its kind and its numbers. Fields that the kind does not use must be 0. Make one
// with embank_sgd or another function of its kind, which sets the usual defaults, then change
// fields. For a table, these never change: the kind, the initial accumulator, whether momentum is
// 0, and whether Adagrad's lr_decay is 0. The other numbers may change.
typedef struct embank_optimizer {
  // One of embank_optimizer_kind.
  uint32_t kind;
  // SGD: 0 or 1. With 1, momentum is Nesterov's.
  uint32_t nesterov;
  // The learning rate: not negative. FTRL takes 0 or at least 3e-39.
  double learning_rate;
  // The weight decay of every kind but FTRL.
  double weight_decay;
  // SGD: the factor of the momentum buffer at each step; 0 means no momentum.
  double momentum;
  // SGD with momentum: the share of the gradient that is not added to the momentum buffer.
  double dampening;
  // Adagrad: how fast the learning rate falls with the number of the row's steps. Must be 0 for
  // row-wise Adagrad.
  double lr_decay;
  // Adam and AdamW: the factor of the first moment at each step.
  double beta1;
  // Adam and AdamW: the factor of the second moment at each step.
  double beta2;
  // Adagrad, row-wise Adagrad, Adam and AdamW: a small number added to a divisor, so that it is
  // never 0.
  double eps;
  // Adagrad, row-wise Adagrad and FTRL: the value of a new row's accumulators.
  double initial_accumulator;
  // FTRL: makes the first steps of a row smaller; the paper suggests 1.
  double beta;
  // FTRL: the penalty on absolute values, which keeps values at zero.
  double l1;
  // FTRL: the penalty on the squares of values.
  double l2;
  // Must be zeros. Reserved for numbers of later optimizers.
  double reserved[5];
} embank_optimizer;

// An initializer: its kind and its numbers. Make one with embank_uniform or another function of
// its kind. A struct of zeros is EMBANK_INITIALIZER_KIND_ZEROS.
typedef struct embank_initializer {
  // One of embank_initializer_kind.
  uint32_t kind;
  // The kind's parameters. Elements that the kind does not use must be zeros.
  float parameters[7];
  // For the Xavier kinds: the fan_in. 0 means the table's dim, which torch also takes as the
  // fan_in of an Embedding.
  uint64_t fan_in;
  // For the Xavier kinds: the fan_out. 0 means the table's dim. Torch takes the number of rows
  // as the fan_out of an Embedding, so set that number to get torch's values.
  uint64_t fan_out;
} embank_initializer;

// The settings of a table. Call embank_table_settings_init, set the dim, then change fields. These
// settings never change for a table: dim, dtypes, rounding, initializer, seed, tracking,
// admission, and the layout of the optimizer's state. Opening a table with other values of them
// fails. The other settings may differ at each opening; the values of the latest call apply.
typedef struct embank_table_settings {
  // Set by embank_table_settings_init.
  size_t size;
  // Seed of the initial values. Default: 0.
  uint64_t seed;
  // A get waits while one of its rows has more outstanding gets than this number. A negative
  // number means that no get waits. Default: -1.
  int64_t staleness_bound;
  // Values per row. Must be set to 1 or more. Default: 0.
  uint32_t dim;
  // One of embank_dtype. Default: EMBANK_DTYPE_F32.
  uint32_t dtype;
  // One of embank_tracking. Tracking of uses takes 8 bytes a row. Default: EMBANK_TRACKING_NONE.
  uint32_t tracking;
  // The dtype of the optimizer's state: one of embank_dtype except EMBANK_DTYPE_INT8. Default:
  // EMBANK_DTYPE_F32.
  uint32_t state_dtype;
  // The largest L2 norm of a row's gradient; a longer gradient is scaled down to it. 0 means no
  // limit. Default: 0.
  double clip_row_norm;
  // The optimizer. Default: none.
  struct embank_optimizer optimizer;
  // The initial values of rows. Default: uniform between -0.05 and 0.05.
  struct embank_initializer initializer;
  // How updates are rounded: one of embank_rounding. Default: EMBANK_ROUNDING_BY_DTYPE.
  uint32_t rounding;
  // The keys for which a get makes a row: one of embank_admission. Default:
  // EMBANK_ADMISSION_ALWAYS.
  uint32_t admission;
  // For EMBANK_ADMISSION_AFTER_GETS: the number of gets, 1 or more. Default: 0.
  uint32_t admission_gets;
  // For EMBANK_ADMISSION_PROBABILITY: the probability, above 0 and at most 1. Default: 0.
  float admission_probability;
} embank_table_settings;

// The settings of a vocabulary. Call embank_vocabulary_settings_init, then change fields. A
// vocabulary's settings never change: opening a vocabulary with other settings than those of its
// creation fails.
typedef struct embank_vocabulary_settings {
  // Set by embank_vocabulary_settings_init.
  size_t size;
  // The first value's id, at most 2^62. The vocabulary never gives out smaller ids; the caller
  // may use them for padding and unknown values. Default: 0.
  uint64_t first_id;
  // With EMBANK_UNKNOWN_ID: the id of values that have no id of their own; it must be below
  // first_id. With EMBANK_UNKNOWN_ERROR it must be 0. Default: 0.
  uint64_t unknown_id;
  // One of embank_value_kind. Default: EMBANK_VALUE_KIND_U64.
  uint32_t kind;
  // One of embank_unknown. Default: EMBANK_UNKNOWN_ERROR.
  uint32_t unknown;
  // The largest length of a byte string, 1 to 131,072. Default: 1,024.
  uint32_t value_bytes_max;
  // 0 or 1: with 1, the vocabulary counts the occurrences of each value. Default: 0.
  uint32_t counts;
} embank_vocabulary_settings;

// A callback that changes a row in place. `row` has `dim` values, and `state` has `state_len`
// values of the optimizer's state: the state vectors and then the single values, without the count
// of steps. Both are valid until the callback returns. A result other than 0 leaves the row
// unchanged and ends the call of the library.
typedef int32_t (*embank_on_row)(void *context,
                                 uint64_t key,
                                 float *row,
                                 size_t dim,
                                 float *state,
                                 size_t state_len);

// The bags of a batch: which of its keys belong to each bag, and how the rows of a bag are pooled.
typedef struct embank_bags {
  // Bag i has the keys at the places offsets[i] to offsets[i + 1] - 1 of the batch. The first
  // offset is 0, the last offset is the number of keys, and offsets never decrease.
  const uint64_t *offsets;
  // The number of offsets: the number of bags plus 1.
  size_t offset_count;
  // One weight for each key of the batch; the key's row is multiplied by it. Only with
  // EMBANK_POOLING_SUM. NULL means that every weight is 1.
  const float *weights;
  // One of embank_pooling.
  uint32_t pooling;
  // Must be 0.
  uint32_t reserved;
} embank_bags;

// Says what the rows of a get stand for, and how long it may wait. Call embank_request_init, then
// change fields.
typedef struct embank_request {
  // Set by embank_request_init.
  size_t size;
  // The longest wait for rows whose clocks are above the table's staleness bound, in
  // milliseconds. With 0, if a clock is above the bound, the get fails at once with
  // EMBANK_STATUS_STALENESS_TIMEOUT. Negative for the bank's wait timeout. Default: -1.
  int64_t timeout_ms;
  // The bags, for EMBANK_ROW_PER_BAG. The lease keeps a copy. Default: NULL.
  const struct embank_bags *bags;
  // Keys whose rows this training step has got before, for example for another part of the
  // model. Admission counts both gets of such a key as one. Default: NULL.
  const uint64_t *earlier;
  // The number of keys in `earlier`. Default: 0.
  size_t earlier_count;
  // One of embank_row_per. Default: EMBANK_ROW_PER_KEY.
  uint32_t per;
  // Must be 0.
  uint32_t reserved;
} embank_request;

// A callback for keys. The library calls it with the keys of a batch of rows. `keys` is valid
// until the callback returns. A result other than 0 ends the call of the library.
typedef int32_t (*embank_on_keys)(void *context, const uint64_t *keys, size_t key_count);

// A callback for progress. The library calls it after each batch of rows, with the number of rows
// done so far and the total number of rows. A result other than 0 ends the call of the library.
typedef int32_t (*embank_on_progress)(void *context, uint64_t rows_done, uint64_t rows_total);

// The conditions of an eviction. The eviction deletes a row if every condition that is set holds
// for it. Call embank_eviction_init, then set at least one condition.
typedef struct embank_eviction {
  // Set by embank_eviction_init.
  size_t size;
  // Deletes rows whose last use is at least this long ago. The unit is the minute, or with
  // EMBANK_TRACKING_SET_TIME the unit of embank_table_set_time. Only for tables that track uses.
  // A negative number is no condition. Default: -1.
  int64_t unused_for;
  // Deletes rows with fewer uses than this. Only for tables that track uses. A negative number
  // is no condition. Default: -1.
  int64_t used_fewer_than;
  // Deletes rows whose vector has an L2 norm below this. 0 is no condition. Default: 0.
  float norm_below;
  // 0 or 1: with 1, the eviction counts rows and passes their keys to `gone`, but deletes no
  // row. Default: 0.
  uint32_t dry_run;
  // The callback that gets the keys of the deleted rows; with dry_run, of the rows that would be
  // deleted. Default: NULL.
  embank_on_keys gone;
  // The callback that gets the progress. Default: NULL.
  embank_on_progress progress;
  // The first argument of both callbacks. Default: NULL.
  void *context;
} embank_eviction;

// The result of an eviction.
typedef struct embank_evicted {
  // The size that the caller passed, sizeof(embank_evicted).
  size_t size;
  // The checkpoint whose rows were examined.
  uint64_t checkpoint;
  // The number of examined rows.
  uint64_t examined;
  // The number of deleted rows; with dry_run, of the rows that would be deleted.
  uint64_t rows;
  // The number of rows that stayed only because leases hold them.
  uint64_t leased;
} embank_evicted;

// The options of an export. Call embank_export_options_init, then change fields.
typedef struct embank_export_options {
  // Set by embank_export_options_init.
  size_t size;
  // With dense: the number of rows of the matrix. A key that is not below this number is an
  // error. 0 means the largest key plus 1. Default: 0.
  uint64_t dense_rows;
  // One of embank_file_format. Default: EMBANK_FILE_FORMAT_BY_SUFFIX.
  uint32_t format;
  // 0 or 1: with 1, the file also gets the optimizer's state, so that an import restores
  // training exactly. If the table has tracking, the file also gets each row's number of uses
  // and last use. Default: 0.
  uint32_t state;
  // 0 or 1: with 1, the file is one matrix without the keys: row i is the row of key i. Not for
  // Parquet. Default: 0.
  uint32_t dense;
  // With dense, 0 or 1: with 1, the matrix has initial values for keys without a row. With 0, a
  // key without a row is an error. Default: 0.
  uint32_t fill_missing;
  // The callback that gets the progress. Default: NULL.
  embank_on_progress progress;
  // The first argument of the callback. Default: NULL.
  void *context;
} embank_export_options;

// The options of an import. Call embank_import_options_init, then change fields.
typedef struct embank_import_options {
  // Set by embank_import_options_init.
  size_t size;
  // The name of the tensor or column with the keys; for npy, the name of the file with the keys.
  // NULL means `keys` or `key`. If neither exists, row i is the row of key i; but the import
  // fails if another tensor or column may hold keys. Default: NULL.
  const char *keys;
  // The name of the tensor or column with the vectors; for npy, the name of the file with the
  // vectors. NULL means `rows` or `vector`, or else the only matrix. Default: NULL.
  const char *rows;
  // One of embank_file_format. Default: EMBANK_FILE_FORMAT_BY_SUFFIX.
  uint32_t format;
  // 0 or 1: with 1, the import also takes the optimizer's state, if the file has it. In a table
  // with tracking, it also takes each row's number of uses and last use. Default: 1.
  uint32_t state;
  // 0 or 1: with 1, the import accepts NaN and infinite values, values that become infinite in
  // the table's dtype, and negative sums of squares in the optimizer's state. With 0, such a
  // value is an error. Default: 0.
  uint32_t non_finite;
  // 0 or 1: with 1, row i is the row of key first_key + i, and the import ignores keys in the
  // file. With several files, the keys continue from file to file. Default: 0.
  uint32_t by_position;
  // The callback that gets the progress. Default: NULL.
  embank_on_progress progress;
  // The first argument of the callback. Default: NULL.
  void *context;
  // With by_position: the key of the first row. Default: 0.
  uint64_t first_key;
} embank_import_options;

// The result of an export.
typedef struct embank_exported {
  // The size that the caller passed, sizeof(embank_exported).
  size_t size;
  // The checkpoint whose rows were written.
  uint64_t checkpoint;
  // The number of rows that came from the table.
  uint64_t rows;
  // The number of rows of a dense file that have initial values.
  uint64_t filled_rows;
  // The size of all files, in bytes.
  uint64_t bytes;
} embank_exported;

// The result of an import.
typedef struct embank_imported {
  // The size that the caller passed, sizeof(embank_imported).
  size_t size;
  // The number of imported rows.
  uint64_t rows;
  // 1 if the import took the optimizer's state from the file, otherwise 0.
  uint64_t with_state;
} embank_imported;

// What a bank has done since it was opened. docs/python.md explains the main counters.
typedef struct embank_bank_stats {
  // sizeof(embank_bank_stats), as it was passed.
  size_t size;
  // The bank's memory budget, in bytes, as given at open.
  uint64_t memory_budget_bytes;
  // Gauge: what is taken of the memory budget, in bytes.
  uint64_t memory_used_bytes;
  // Rows found in the mutable region.
  uint64_t hits_mutable;
  // Rows found in the read-only region.
  uint64_t hits_read_only;
  // Rows found in the read cache, which holds copies of rows on disk.
  uint64_t hits_cache;
  // Rows found on disk, and read from disk.
  uint64_t hits_disk;
  // Rows that an operation looked for and did not find, including those that it then
  // inserted.
  uint64_t missing;
  // Rows inserted.
  uint64_t inserted;
  // Read requests to the device. One request may read several rows that lie close together.
  uint64_t disk_reads;
  // Bytes read from the device. The reads of merges of the cold tier do not count.
  uint64_t disk_read_bytes;
  // Bytes written to the device: the log's pages, and the parts of the cold tier.
  uint64_t disk_write_bytes;
  // Gauge: rows in all tables.
  uint64_t live_rows;
  // Gauge: bytes of the records of all rows, including headers.
  uint64_t live_bytes;
  // Gauge: bytes of log on disk. In a bank with two tiers, pages count that were never
  // written, because their rows went to the cold tier from memory. They take no space.
  uint64_t log_disk_bytes;
  // Gets that had to wait for a staleness bound, in all tables.
  uint64_t waits;
  // Total time that Gets waited for a staleness bound, in microseconds.
  uint64_t wait_us;
  // Gets that failed because they had waited for `wait_timeout`.
  uint64_t timeouts;
  // Dropped or expired leases that could not lower the clocks of all their rows.
  uint64_t release_failures;
  // Leases that grew older than lease_timeout and
  // were declared expired.
  uint64_t leases_expired;
  // Checkpoints taken.
  uint64_t checkpoints;
  // Gauge: duration of the last checkpoint, in microseconds.
  uint64_t last_checkpoint_us;
  // Requested keys. Equal keys of one call count once.
  uint64_t lookahead_requested;
  // Keys that had no row at the request, or whose row was already in mutable memory.
  uint64_t lookahead_resident;
  // Keys put in the queue.
  uint64_t lookahead_queued;
  // Keys that were already pending because of an earlier request.
  uint64_t lookahead_merged;
  // Keys that the full queue refused.
  uint64_t lookahead_dropped;
  // Rows brought from disk, or from the read-only region, into mutable memory.
  uint64_t lookahead_moved;
  // Rows that were moved or kept, and then used from memory.
  uint64_t lookahead_on_time;
  // Rows that were copied to the mutable region because they were about to leave memory
  // before their use. One announcement may keep a row several times.
  uint64_t lookahead_kept;
  // Keys whose turn came too late: another call had got the row, and may have waited for the
  // disk.
  uint64_t lookahead_late;
  // Rows that were moved or kept, and left memory without a use.
  uint64_t lookahead_wasted;
  // Keys that were given up before their turn, by
  // embank_bank_cancel_lookahead or because their table was
  // dropped.
  uint64_t lookahead_cancelled;
  // Rows left on disk because reading failed, or because the disk quota left no room.
  uint64_t lookahead_failed;
  // Gauge: keys that wait for their turn or are being read.
  uint64_t lookahead_pending;
  // Gauge: largest number of pending keys.
  uint64_t lookahead_capacity;
  // Gauge: the number of the newest checkpoint, which may have been taken before this
  // opening. 0 if there is no checkpoint, or if the store is open read-only.
  uint64_t newest_checkpoint;
  // Gauge: the part of changed that came after the newest checkpoint, or
  // after the opening if no checkpoint was taken since. Closing the store now would lose
  // these changes. A row that changed twice counts twice. Rows of vocabularies count too. A
  // change that another thread makes while a checkpoint begins may count here although the
  // checkpoint contains it.
  uint64_t changed_since_checkpoint;
  // Batches that were run.
  uint64_t batches;
  // Keys of peeks.
  uint64_t peek_keys;
  // Keys of gets.
  uint64_t get_keys;
  // Keys of updates.
  uint64_t update_keys;
  // Keys of puts.
  uint64_t put_keys;
  // Keys of deletions.
  uint64_t delete_keys;
  // Rows changed. A row changes if it is updated, put, inserted by a get, or deleted.
  uint64_t changed;
  // Rows deleted.
  uint64_t deleted;
  // Records appended to the log, including copies.
  uint64_t records_appended;
  // Records appended because an operation used a row that was in the read-only region or on
  // disk.
  uint64_t copied_to_tail;
  // Rows copied to the log's tail before their page left memory, because they are used
  // often.
  uint64_t retained;
  // Rows that needed no read request of their own, because the request for another row read
  // them too.
  uint64_t disk_reads_joined;
  // Gauge: the most reads that one batch had in flight at the same time.
  uint64_t disk_queue_depth_max;
  // Gauge: bytes of log on disk that the present state does not need, and that kept
  // checkpoints, readers of checkpoints, or scans still need.
  uint64_t log_held_bytes;
  // Bytes of log that compaction has read.
  uint64_t compacted_bytes;
  // Bytes of records that compaction copied to the log's tail.
  uint64_t compaction_copied_bytes;
  // Time that compaction worked, in microseconds. Time in which it waited for work or for
  // the throttle does not count.
  uint64_t compaction_us;
  // Bytes of log freed on the file system.
  uint64_t freed_bytes;
  // Segment files removed.
  uint64_t segments_freed;
  // Times that a batch waited for memory for the log's next page.
  uint64_t page_waits;
  // Times that a batch waited for compaction to free disk space.
  uint64_t compaction_waits;
  // Times that a batch split buckets of the index after its inserts.
  uint64_t growth_steps;
  // Total time that batches waited for memory for the log's next page, in microseconds.
  uint64_t page_waits_us;
  // Total time that batches waited for compaction to free disk space, in microseconds.
  uint64_t compaction_waits_us;
  // Total time that batches split buckets of the index after their inserts, in microseconds.
  uint64_t growth_steps_us;
  // Total time that checkpoints paused batches, in microseconds.
  uint64_t checkpoint_pauses_us;
  // The longest wait of a batch for memory for the log's next page, in microseconds.
  uint64_t page_waits_us_max;
  // The longest wait of a batch for compaction to free disk space, in microseconds.
  uint64_t compaction_waits_us_max;
  // The longest time that one batch split buckets of the index, in microseconds.
  uint64_t growth_steps_us_max;
  // The most processor time that one batch took to split buckets of the index, in
  // microseconds. Time in which the thread did not run does not count. Measured only for
  // batches that insert 64 rows or more. For a smaller batch, reading the processor time
  // from the system costs more than the splits.
  uint64_t growth_steps_cpu_us_max;
  // The longest pause of batches by a checkpoint, in microseconds.
  uint64_t checkpoint_pauses_us_max;
  // Gauge: time that the last checkpoint paused batches, in microseconds.
  uint64_t last_checkpoint_pause_us;
  // Gauge: memory of the log's frames, in bytes.
  uint64_t memory_frames_bytes;
  // Gauge: memory of the index, in bytes.
  uint64_t memory_index_bytes;
  // Gauge: memory of the read cache, in bytes.
  uint64_t memory_cache_bytes;
  // Gauge: memory of the read and write buffers, in bytes.
  uint64_t memory_buffers_bytes;
  // Gauge: index slots in use.
  uint64_t index_entries;
  // Gauge: address where the log begins, in bytes.
  uint64_t log_begin;
  // Gauge: address where the log's pages in memory begin, in bytes. Lower addresses are only
  // on disk.
  uint64_t log_head;
  // Gauge: address where the mutable region begins, in bytes.
  uint64_t log_read_only;
  // Gauge: address where the log ends, in bytes.
  uint64_t log_tail;
  // Gauge: bytes of log that can be appended before the bank's addresses are used up. At 0
  // the bank refuses all writes. A new bank has 512 TiB of addresses, or 4,294,967,294 pages
  // if that is less.
  uint64_t log_address_left_bytes;
  // The size of a log page, in bytes.
  uint64_t page_size_bytes;
  // Keys that had no row when their turn came.
  uint64_t lookahead_missing;
  // Working time of the lookahead thread, in microseconds: for reading announced rows, for
  // prefetches, and for rows that it keeps in memory.
  uint64_t lookahead_reading_us;
  // Gauge: the last depth that an AutoDepth has chosen; 0 without one.
  uint64_t lookahead_depth;
  // Gauge: most bytes of memory for the queue, a part of the bank's budget.
  uint64_t lookahead_memory_bytes;
  // Gauge: 2 if rows leave the log for the cold tier, or if the bank has a cold tier. Else
  // 1.
  uint64_t tiers;
  // Gauge: row versions in the cold tier. Tombstones, and versions that a newer version
  // supersedes, count until a merge into the base removes them.
  uint64_t cold_versions;
  // Gauge: parts of the cold tier. A part is a file of sorted rows.
  uint64_t cold_parts;
  // Gauge: runs of the cold tier. A run has the rows that left the log at one time, in one
  // part or several. Runs are merged into the base, the oldest rows of the cold tier.
  uint64_t cold_runs;
  // Gauge: bytes of the parts on disk, also of those that only kept checkpoints or scans
  // need.
  uint64_t cold_disk_bytes;
  // Gauge: bytes of the base of the cold tier.
  uint64_t cold_base_bytes;
  // Gauge: bytes of runs that are not merged into the base yet.
  uint64_t cold_run_bytes;
  // Gauge: bytes of runs above which merges into the base are due. 0 in a bank with one tier
  // and in a read-only store.
  uint64_t cold_run_limit_bytes;
  // Gauge: length of the log, in bytes, above which rows leave it for the cold tier. 0 in a
  // bank with one tier and in a read-only store.
  uint64_t cold_log_limit_bytes;
  // Gauge: the largest size of the runs as a part of the base's, in thousandths: 400 where
  // the memory allows, at least 50. With shorter runs, merges write more.
  uint64_t cold_run_share_per_mille;
  // Gauge: columns of the filters of new runs, at most 9. With c columns, a lookup reads one
  // block in 2^c for nothing, for each run that does not have its key.
  uint64_t cold_filter_columns;
  // Gauge: blocks of new base parts for each fence in memory. A lookup reads that number of
  // blocks together.
  uint64_t cold_fence_stride;
  // Blocks of the cold tier that lookups read, one for each key and block.
  uint64_t cold_blocks_read;
  // Blocks of the cold tier that a lookup read although they do not have the row: a filter
  // or a fence was wrong, or the bank does not have the row.
  uint64_t cold_false_reads;
  // Rows and tombstones that left the log for the cold tier.
  uint64_t spilled_rows;
  // Bytes of the runs that rows from the log were written to.
  uint64_t spilled_bytes;
  // Rows that left the log without a write, because the cold tier has an equal version.
  uint64_t spilled_clean_rows;
  // Rows and tombstones that merges of the cold tier have written.
  uint64_t merged_rows;
  // Bytes of the parts that merges of the cold tier have written.
  uint64_t merged_bytes;
  // Gauge: memory of the cold tier, in bytes: the fences and filters of its parts.
  uint64_t memory_cold_bytes;
  // Gauge: memory lent to scans, to prefetches, and to the spills and merges of the cold
  // tier, in bytes.
  uint64_t memory_lent_bytes;
} embank_bank_stats;

// What a table has done since its bank was opened. Rows are counted once per batch.
typedef struct embank_table_stats {
  // sizeof(embank_table_stats), as it was passed.
  size_t size;
  // Batches got.
  uint64_t gets;
  // Distinct rows got.
  uint64_t get_rows;
  // Batches peeked at.
  uint64_t peeks;
  // Rows peeked at, duplicates counted.
  uint64_t peek_rows;
  // Batches put, with or without a lease, and batches changed by a function.
  uint64_t puts;
  // Distinct rows put or changed by a function.
  uint64_t put_rows;
  // Batches of gradients applied, with or without a lease.
  uint64_t applies;
  // Distinct rows that gradients were applied to.
  uint64_t apply_rows;
  // Rows deleted.
  uint64_t deleted_rows;
  // Rows evicted.
  uint64_t evicted_rows;
  // Rows that a get, peek, put, apply or update had to read from disk.
  uint64_t disk_reads;
  // Gets that had to wait for the staleness bound.
  uint64_t waits;
  // Total time that Gets waited for a staleness bound, in microseconds.
  uint64_t wait_us;
  // Gets that failed because they had waited for `wait_timeout`.
  uint64_t timeouts;
  // Dropped or expired leases that could not lower the clocks of all their rows.
  uint64_t release_failures;
  // Leases that grew older than lease_timeout and
  // were declared expired.
  uint64_t leases_expired;
  // Rows that Gets did not make, because their keys were not admitted. Their gradients were
  // dropped.
  uint64_t not_admitted_rows;
  // Steps that left a value of the optimizer's state at the largest value of its dtype,
  // where it stays.
  uint64_t saturated_rows;
} embank_table_stats;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The message of the last failed call of this thread, as UTF-8 text that names the problem and the
// cure. "" if no call of this thread failed. Valid until the next failed call of this thread, or
// until the thread ends. A language that may move a caller to another thread between calls must
// copy the message at once.
const char *embank_last_error_message(void);

// The name of a status without its prefix, such as "LOCKED". "UNKNOWN" for a number that this
// library does not know. The text is always valid.
const char *embank_status_name(int32_t status);

// The library's version, such as "0.1.0". The text is always valid.
const char *embank_version(void);

// Sets every option to its default. `size` is sizeof(embank_bank_options).
enum embank_status embank_bank_options_init(struct embank_bank_options *options, size_t size);

// torch.optim.SGD without momentum and weight decay.
struct embank_optimizer embank_sgd(double learning_rate);

// torch.optim.Adagrad: eps 1e-10, initial accumulator 0, no weight decay and no decay of the
// learning rate.
struct embank_optimizer embank_adagrad(double learning_rate);

// Adagrad with one accumulator per row, as FBGEMM's EXACT_ROWWISE_ADAGRAD: eps 1e-8, initial
// accumulator 0.
struct embank_optimizer embank_row_wise_adagrad(double learning_rate);

// torch.optim.Adam: betas 0.9 and 0.999, eps 1e-8, no weight decay.
struct embank_optimizer embank_adam(double learning_rate);

// torch.optim.AdamW: betas 0.9 and 0.999, eps 1e-8, weight decay 0.01.
struct embank_optimizer embank_adam_w(double learning_rate);

// FTRL-proximal as in Keras: beta, l1 and l2 0, initial accumulator 0.1.
struct embank_optimizer embank_ftrl(double learning_rate);

// Every value of a new row is `value`.
struct embank_initializer embank_constant(float value);

// The values of new rows are uniform between `low` and `high`.
struct embank_initializer embank_uniform(float low, float high);

// The values of new rows are normal (Gaussian), with this mean and standard deviation.
struct embank_initializer embank_normal(float mean, float std);

// The values of new rows are normal, but only values between `low` and `high`, as with
// torch.nn.init.trunc_normal_.
struct embank_initializer embank_truncated_normal(float mean, float std, float low, float high);

// Initializes as torch.nn.init.xavier_uniform_ does. Both fans are the table's dim; to change
// that, set fan_in and fan_out of the result.
struct embank_initializer embank_xavier_uniform(float gain);

// Initializes as torch.nn.init.xavier_normal_ does. Both fans are the table's dim; to change that,
// set fan_in and fan_out of the result.
struct embank_initializer embank_xavier_normal(float gain);

// Sets every setting to its default, and the dim to 0. `size` is sizeof(embank_table_settings).
enum embank_status embank_table_settings_init(struct embank_table_settings *settings, size_t size);

// Opens the bank in the directory `path`, or creates it there. An existing bank has the content of
// its newest complete checkpoint; changes after that checkpoint are lost. If `options` is NULL,
// every option has its default.
enum embank_status embank_bank_open(const char *path,
                                    const struct embank_bank_options *options,
                                    struct embank_bank **bank);

// Opens the bank in the directory `path` read-only. Another process may write the bank meanwhile.
// `checkpoint` is the number of the checkpoint to open, or 0 for the newest. Peeks and scans work;
// a call that would write returns EMBANK_STATUS_READ_ONLY. The process that writes the bank keeps
// the checkpoint until this bank is refreshed or closed. `options` may be NULL. Only its memory
// budget, device and threads have an effect.
enum embank_status embank_bank_open_read_only(const char *path,
                                              const struct embank_bank_options *options,
                                              uint64_t checkpoint,
                                              struct embank_bank **bank);

// Frees the handle. The bank closes when the handles of its tables, vocabularies, leases, scans,
// gets ahead and their queues are freed too. Until then no other process can open the bank for
// writing. This function takes no checkpoint, so changes after the last checkpoint are lost.
// changed_since_checkpoint of embank_bank_get_stats is their number, and embank_bank_checkpoint
// saves them.
void embank_bank_close(struct embank_bank *bank);

// Opens the table `name`, or creates it. The next checkpoint makes a new table durable.
// embank_bank_table_of_vocabulary creates a table whose keys are a vocabulary's ids; this function
// only opens such a table.
enum embank_status embank_bank_table(const struct embank_bank *bank,
                                     const char *name,
                                     const struct embank_table_settings *settings,
                                     struct embank_table **table);

// Opens or creates, as embank_bank_table does, a table whose keys are the ids of the vocabulary
// `vocabulary`. Calls with another key return EMBANK_STATUS_UNKNOWN_ID. The table can't be opened
// after the vocabulary was renumbered, replaced or dropped.
enum embank_status embank_bank_table_of_vocabulary(const struct embank_bank *bank,
                                                   const char *name,
                                                   const struct embank_table_settings *settings,
                                                   const char *vocabulary,
                                                   struct embank_table **table);

// Opens the vocabulary `name`, or creates it. The next checkpoint makes a new vocabulary durable.
enum embank_status embank_bank_vocabulary(const struct embank_bank *bank,
                                          const char *name,
                                          const struct embank_vocabulary_settings *settings,
                                          struct embank_vocabulary **vocabulary);

// Opens the existing vocabulary `name`, with the settings of its creation.
enum embank_status embank_bank_open_vocabulary(const struct embank_bank *bank,
                                               const char *name,
                                               struct embank_vocabulary **vocabulary);

// Drops the vocabulary `name`. Its values are gone when the call returns; the next checkpoint
// makes this durable. Tables whose keys are the vocabulary's ids stay in the bank, but can't be
// opened. The caller must still free the vocabulary's handles.
enum embank_status embank_bank_drop_vocabulary(const struct embank_bank *bank, const char *name);

// Lists the names of the bank's vocabularies, sorted.
enum embank_status embank_bank_vocabularies(const struct embank_bank *bank,
                                            struct embank_names **names);

// Opens the existing table `name`, with the settings that it has now.
enum embank_status embank_bank_open_table(const struct embank_bank *bank,
                                          const char *name,
                                          struct embank_table **table);

// Drops the table `name`. Its rows are gone when the call returns; the next checkpoint makes this
// durable. The caller must still free the table's handles and leases. A new table may have the
// name at once.
enum embank_status embank_bank_drop_table(const struct embank_bank *bank, const char *name);

// Lists the names of the bank's tables, sorted.
enum embank_status embank_bank_tables(const struct embank_bank *bank, struct embank_names **names);

// Takes a checkpoint: makes all tables and the caller's own bytes, `blob`, durable together. When
// the call returns, all of them are on stable storage. After a crash at any later moment, the bank
// opens at this checkpoint or a later one. `number` gets the checkpoint's number and may be NULL.
enum embank_status embank_bank_checkpoint(const struct embank_bank *bank,
                                          const void *blob,
                                          size_t blob_size,
                                          uint64_t *number);

// Gets the number and the blob of a checkpoint: of the one at which the bank was opened, or of the
// one that a read-only bank shows now. Without a checkpoint, the number is 0 and the blob is NULL.
// `number` and `blob` may be NULL.
enum embank_status embank_bank_recovered(const struct embank_bank *bank,
                                         uint64_t *number,
                                         struct embank_bytes **blob);

// Moves a read-only bank to the newest checkpoint on disk. `number` gets the number of that
// checkpoint and may be NULL.
enum embank_status embank_bank_refresh(const struct embank_bank *bank, uint64_t *number);

// Compacts the log: frees the disk space of old records, except space that a kept checkpoint or a
// scan still needs. Other threads may use the bank meanwhile. In a bank with two tiers, rows go to
// the cold tier instead, and files that are due are merged. The disk needs room for the new files
// beside those that kept checkpoints hold. After blind puts, the call moves all rows of the log to
// the cold tier, those in memory too, and rewrites the cold tier once. The number of rows is then
// exact, unless rows have outstanding gets, other threads write meanwhile, files are damaged or
// the disk has no room.
enum embank_status embank_bank_compact(const struct embank_bank *bank);

// Removes from the lookahead queue all keys that are not being read yet. `cancelled` gets the
// number of removed keys, and may be NULL.
enum embank_status embank_bank_cancel_lookahead(const struct embank_bank *bank, size_t *cancelled);

// Waits until the lookahead queue is empty. `idle` gets 1 if the queue is empty, and 0 if
// `timeout_ms` milliseconds passed before. For tests and measurements: training does not need it.
enum embank_status embank_bank_wait_lookahead(const struct embank_bank *bank,
                                              uint64_t timeout_ms,
                                              uint8_t *idle);

// Frees the handle. The table stays in its bank.
void embank_table_free(struct embank_table *table);

// The table's name as UTF-8; NULL if `table` is NULL. Valid until the handle is freed.
const char *embank_table_name(const struct embank_table *table);

// The number of values per row; 0 if `table` is NULL.
uint32_t embank_table_dim(const struct embank_table *table);

// Fills `settings` with the table's present settings. `size` is sizeof(embank_table_settings).
enum embank_status embank_table_get_settings(const struct embank_table *table,
                                             struct embank_table_settings *settings,
                                             size_t size);

// `name` gets the name of the vocabulary whose ids are the table's keys, or NULL if the keys
// belong to no vocabulary. Free with embank_bytes_free.
enum embank_status embank_table_vocabulary(const struct embank_table *table,
                                           struct embank_bytes **name);

// Gets rows for training: one per key, duplicates included. Inserts missing rows with their
// initial values. Raises the staleness clock of each distinct key by one until the lease ends. If
// a clock is above the table's staleness bound, the call first waits until it is not, at most for
// the bank's wait timeout. A call that fails raises no clock. Rows that it has inserted before it
// failed stay, with their initial values.
enum embank_status embank_table_get(const struct embank_table *table,
                                    const uint64_t *keys,
                                    size_t key_count,
                                    float *rows,
                                    size_t rows_len,
                                    struct embank_lease **lease);

// Reads rows for evaluation, one per key. Changes no staleness clock, waits for no clock, and
// writes nothing. `missing` is one of embank_missing. `present` has key_count bytes: 1 for each
// key that has a row, and 0 for each key that has none. It may be NULL.
enum embank_status embank_table_peek(const struct embank_table *table,
                                     const uint64_t *keys,
                                     size_t key_count,
                                     float *rows,
                                     size_t rows_len,
                                     uint32_t missing,
                                     uint8_t *present);

// Fills `rows` with the initial values of the keys' rows, whether the table has the rows or not.
// The values depend only on the table's settings and name, the key and the column.
enum embank_status embank_table_initial(const struct embank_table *table,
                                        const uint64_t *keys,
                                        size_t key_count,
                                        float *rows,
                                        size_t rows_len);

// Replaces or inserts rows without a lease. If a key repeats, its last row wins. Keeps the
// optimizer state of rows that exist. Changes no staleness clock.
enum embank_status embank_table_put(const struct embank_table *table,
                                    const uint64_t *keys,
                                    size_t key_count,
                                    const float *rows,
                                    size_t rows_len);

// Replaces or inserts rows as embank_table_put does, but reads fewer old rows (a blind write). In
// a bank with two tiers, the call does not read old rows of the cold tier. It still reads a row
// that the log has only on disk. In a bank with one tier, it does what embank_table_put does.
// After blind puts in a bank with two tiers, the table's number of rows may be wrong, and that of
// a scan is an upper bound, until embank_bank_compact has counted the rows. Values, scans and
// exports are exact. Returns EMBANK_STATUS_INVALID_ARGUMENT for a table with optimizer state,
// admission or tracking.
enum embank_status embank_table_put_blind(const struct embank_table *table,
                                          const uint64_t *keys,
                                          size_t key_count,
                                          const float *rows,
                                          size_t rows_len);

// Applies gradients with the table's optimizer, without a lease. Sums the gradients of equal keys
// first. Inserts missing rows with their initial values before the step. Changes no staleness
// clock.
enum embank_status embank_table_apply_gradients(const struct embank_table *table,
                                                const uint64_t *keys,
                                                size_t key_count,
                                                const float *gradients,
                                                size_t gradients_len);

// Changes rows by the callback `change`, without a lease: a read-modify-write. Inserts missing
// rows with their initial values before the change. Changes each distinct key once. Changes no
// staleness clock. The result replaces exactly the row that `change` got, so no change by another
// call is lost.
//
// Several threads may call `change` at the same time, for different rows: the calling thread and
// threads of the bank. If a row's record moves during the call, `change` is called again with the
// row's present values, and only the last result counts. So `change` should only compute from its
// arguments. It must be short, and it must not call the library, which may then wait forever.
//
// A value that is not finite in the table's dtype leaves its row unchanged, and the call fails
// with EMBANK_STATUS_UPDATE_REFUSED after all other rows are changed. After
// EMBANK_STATUS_CANCELLED or a failure of the store, some rows may be changed.
enum embank_status embank_table_update(const struct embank_table *table,
                                       const uint64_t *keys,
                                       size_t key_count,
                                       embank_on_row change,
                                       void *context);

// Deletes rows. `deleted` gets the number of rows that existed, and may be NULL. A lease on a
// deleted row no longer counts in the row's staleness clock, and its gradient for the row is
// dropped. This holds even if a get inserts the row again before the lease ends.
enum embank_status embank_table_delete(const struct embank_table *table,
                                       const uint64_t *keys,
                                       size_t key_count,
                                       uint64_t *deleted);

// Tells which keys have a row. `present` has key_count bytes: 1 for each key that has a row, and 0
// for each key that has none. Changes no staleness clock.
enum embank_status embank_table_contains(const struct embank_table *table,
                                         const uint64_t *keys,
                                         size_t key_count,
                                         uint8_t *present);

// Asks for lookahead: a worker thread of the bank soon brings the rows of `keys` that are on disk
// into memory. The call itself never waits for the disk. It drops keys that do not fit the
// lookahead queue. `accepted` gets the number of keys that the worker will bring into memory, and
// may be NULL.
enum embank_status embank_table_lookahead(const struct embank_table *table,
                                          const uint64_t *keys,
                                          size_t key_count,
                                          size_t *accepted);

// `outstanding` gets the staleness clock of a row: the number of its gets whose update has not
// come yet. It gets -1 if the key has no row.
enum embank_status embank_table_outstanding(const struct embank_table *table,
                                            uint64_t key,
                                            int64_t *outstanding);

// `bound` gets the table's staleness bound, or -1 if the table has no bound.
enum embank_status embank_table_staleness_bound(const struct embank_table *table, int64_t *bound);

// Sets the staleness bound for all handles of the table. A negative number removes the bound. Gets
// that already wait use the new bound. The setting is not durable.
enum embank_status embank_table_set_staleness_bound(const struct embank_table *table,
                                                    int64_t bound);

// Sets the learning rate for all handles of the table and all batches that are applied from now
// on. The setting is not durable.
enum embank_status embank_table_set_learning_rate(const struct embank_table *table,
                                                  double learning_rate);

// Sets the time that each row records when it is used from now on, for example an epoch, or
// thousands of steps. The table's tracking must be EMBANK_TRACKING_SET_TIME.
enum embank_status embank_table_set_time(const struct embank_table *table, uint32_t time);

// Sets the numbers of the optimizer, for all handles of the table and all batches that are applied
// from now on. The kind and the initial accumulator must equal the table's. Momentum and Adagrad's
// lr_decay must be 0 if the table's number is 0, and must not be 0 otherwise. The setting is not
// durable.
enum embank_status embank_table_set_optimizer(const struct embank_table *table,
                                              struct embank_optimizer optimizer);

// Begins a scan, which returns the table's rows in the newest checkpoint. Training may go on
// meanwhile. Until the scan is freed, the bank frees no disk space that the checkpoint needs.
enum embank_status embank_table_scan(const struct embank_table *table, struct embank_scan **scan);

// Fills the settings with their defaults. `size` is sizeof(embank_vocabulary_settings).
enum embank_status embank_vocabulary_settings_init(struct embank_vocabulary_settings *settings,
                                                   size_t size);

// Frees the handle. The vocabulary stays in its bank.
void embank_vocabulary_free(struct embank_vocabulary *vocabulary);

// Fills `settings` with the vocabulary's settings. `size` is sizeof(embank_vocabulary_settings).
enum embank_status embank_vocabulary_get_settings(const struct embank_vocabulary *vocabulary,
                                                  struct embank_vocabulary_settings *settings,
                                                  size_t size);

// `len` gets the number of values, and `next_id` the id that the next new value will get. Each of
// the two may be NULL.
enum embank_status embank_vocabulary_len(const struct embank_vocabulary *vocabulary,
                                         uint64_t *len,
                                         uint64_t *next_id);

// Freezes the vocabulary if `frozen` is 1: from now on no call inserts a value. If `frozen` is 0,
// calls insert new values again. The next checkpoint makes the change durable.
enum embank_status embank_vocabulary_set_frozen(const struct embank_vocabulary *vocabulary,
                                                uint32_t frozen);

// Looks up the ids of `count` numbers, in a vocabulary of EMBANK_VALUE_KIND_U64. `unknown` is one
// of embank_unknown_values.
enum embank_status embank_vocabulary_ids_of_numbers(const struct embank_vocabulary *vocabulary,
                                                    const uint64_t *values,
                                                    size_t count,
                                                    uint32_t unknown,
                                                    uint64_t *ids);

// Looks up the ids of `count` byte strings, in a vocabulary of EMBANK_VALUE_KIND_BYTES. The
// strings lie one after the other in `bytes`: string i begins at offsets[i] and ends before
// offsets[i + 1]. There are count + 1 offsets, as in Arrow's large strings. `unknown` is one of
// embank_unknown_values.
enum embank_status embank_vocabulary_ids_of_bytes(const struct embank_vocabulary *vocabulary,
                                                  const uint64_t *offsets,
                                                  size_t count,
                                                  const void *bytes,
                                                  size_t bytes_len,
                                                  uint32_t unknown,
                                                  uint64_t *ids);

// Looks up the numbers of `count` ids, in a vocabulary of EMBANK_VALUE_KIND_U64.
enum embank_status embank_vocabulary_numbers(const struct embank_vocabulary *vocabulary,
                                             const uint64_t *ids,
                                             size_t count,
                                             uint64_t *values);

// Looks up the byte strings of `count` ids, in a vocabulary of EMBANK_VALUE_KIND_BYTES.
enum embank_status embank_vocabulary_byte_strings(const struct embank_vocabulary *vocabulary,
                                                  const uint64_t *ids,
                                                  size_t count,
                                                  struct embank_byte_strings **strings);

// The number of byte strings; 0 if `strings` is NULL.
size_t embank_byte_strings_count(const struct embank_byte_strings *strings);

// The byte string with the number `place`, counted from 0, without a NUL at its end. NULL if there
// is no such byte string. `size` gets the length in bytes, and may be NULL. The bytes are valid
// until embank_byte_strings_free.
const char *embank_byte_strings_at(const struct embank_byte_strings *strings,
                                   size_t place,
                                   size_t *size);

// Frees the byte strings.
void embank_byte_strings_free(struct embank_byte_strings *strings);

// Ends the lease: applies one gradient per row of the get, that is per key of the batch, per
// distinct key, or per bag, with the table's optimizer. Sums the gradients of equal keys first. A
// bag's gradient goes to the rows of its keys, once for each place of a key: times the weight, or
// with EMBANK_POOLING_MEAN divided by the bag's number of keys. The next checkpoint makes the
// update durable.
enum embank_status embank_lease_apply(const struct embank_lease *lease,
                                      const float *gradients,
                                      size_t gradients_len);

// Ends the lease: replaces the rows. `rows` has one row per row of the get. If a key repeats, its
// last row wins. The optimizer state of the rows stays. Fails for a lease on bags, which then
// ends.
enum embank_status embank_lease_put(const struct embank_lease *lease,
                                    const float *rows,
                                    size_t rows_len);

// Ends the lease without an update: lowers the staleness clocks of its rows again. Returns an
// error if that fails. Does nothing if the lease has ended already.
enum embank_status embank_lease_release(const struct embank_lease *lease);

// Declares that a thread other than the one that took the lease will end it. If the lease then
// blocks a get of the thread that took it, that get waits. Without this call, the get may fail
// with EMBANK_STATUS_SELF_BLOCKED. Call this function before the other thread receives the lease.
// The call becomes unnecessary once any lease of the bank was ended by a thread that did not take
// it.
enum embank_status embank_lease_hand_over(const struct embank_lease *lease);

// `keys` gets the distinct keys of the batch, in order of first appearance. `places[i]` gets the
// place of the batch's key i among the distinct keys. `count` gets the number of distinct keys.
// `keys` and `places` may be NULL. Otherwise `keys` needs room for all distinct keys, and `places`
// for one number per key of the batch.
enum embank_status embank_lease_distinct(const struct embank_lease *lease,
                                         uint64_t *keys,
                                         size_t keys_len,
                                         uint32_t *places,
                                         size_t places_len,
                                         size_t *count);

// Releases the lease if it has not ended, then frees the handle.
void embank_lease_free(struct embank_lease *lease);

// Reads rows for evaluation, and pools the rows of each bag into one row of `pooled`. `pooled` has
// room for number of bags * dim values. For a key without a row, the pooling takes the row's
// initial values. Changes no staleness clock, waits for no clock, and writes nothing.
enum embank_status embank_table_peek_bags(const struct embank_table *table,
                                          const uint64_t *keys,
                                          size_t key_count,
                                          const struct embank_bags *bags,
                                          float *pooled,
                                          size_t pooled_len);

// Sets every field to its default. `size` is sizeof(embank_request).
enum embank_status embank_request_init(struct embank_request *request, size_t size);

// Gets rows for training, as `request` says; NULL stands for the defaults. `rows` needs room for
// one row of dim values per key, distinct key or bag. For distinct keys it may be longer: room for
// a row per key is always enough. `row_count` gets the number of rows, and may be NULL. The caller
// ends the lease with as many gradients or rows (embank_lease_apply, embank_lease_put). In all
// else, works as embank_table_get.
enum embank_status embank_table_get_rows(const struct embank_table *table,
                                         const uint64_t *keys,
                                         size_t key_count,
                                         const struct embank_request *request,
                                         float *rows,
                                         size_t rows_len,
                                         size_t *row_count,
                                         struct embank_lease **lease);

// Makes a queue of gets ahead, and starts its thread.
enum embank_status embank_bank_ahead_queue(const struct embank_bank *bank,
                                           struct embank_ahead_queue **queue);

// Asks for rows of a later batch, as `request` says, and returns at once; NULL stands for the
// defaults. The queue's thread makes the get after the earlier gets of the queue: it takes the
// lease, and brings rows from disk into memory. embank_pending_wait returns the lease and the
// rows. The lease counts for the staleness bound from the time when the thread makes the get. To
// get n batches ahead of the batch in hand, a program needs a bound of n or more. With a smaller
// bound, a get ahead waits until the leases of earlier batches end.
enum embank_status embank_table_get_ahead(const struct embank_table *table,
                                          const uint64_t *keys,
                                          size_t key_count,
                                          const struct embank_request *request,
                                          const struct embank_ahead_queue *queue,
                                          struct embank_pending **pending);

// `ready` gets 1 if embank_pending_wait would not wait for the get, and 0 if it would.
enum embank_status embank_pending_is_ready(const struct embank_pending *pending, uint8_t *ready);

// Waits for a get ahead, and returns its lease and its rows, with all updates up to now. `rows`
// and `row_count` are as for embank_table_get_rows. The time limit of the get begins with this
// call. No other call reports an error of the get. The calling thread becomes the thread that took
// the lease.
enum embank_status embank_pending_wait(const struct embank_pending *pending,
                                       float *rows,
                                       size_t rows_len,
                                       size_t *row_count,
                                       struct embank_lease **lease);

// Cancels the get if it has not ended, and releases its lease. Then frees the handle.
void embank_pending_free(struct embank_pending *pending);

// Ends the queue's thread and frees the handle. For gets that the thread has not made,
// embank_pending_wait then returns EMBANK_STATUS_AHEAD_ENDED.
void embank_ahead_queue_free(struct embank_ahead_queue *queue);

// Fills `keys` and `rows` with the next rows of the scan. `keys` has room for `capacity` keys, and
// `rows` for capacity * dim values. `count` gets the number of rows. It is less than `capacity`
// only at the end of the table, and 0 after the last row.
enum embank_status embank_scan_next(const struct embank_scan *scan,
                                    uint64_t *keys,
                                    size_t capacity,
                                    float *rows,
                                    size_t rows_len,
                                    size_t *count);

// `checkpoint` gets the number of the checkpoint, `rows` the number of the table's rows in that
// checkpoint, and `remaining` the number of rows that the scan has not returned yet. After blind
// puts, the two numbers are upper bounds. Each of the three may be NULL.
enum embank_status embank_scan_progress(const struct embank_scan *scan,
                                        uint64_t *checkpoint,
                                        uint64_t *rows,
                                        uint64_t *remaining);

// Ends the scan and frees the handle.
void embank_scan_free(struct embank_scan *scan);

// Sets every field to its default, so that no condition is set. `size` is sizeof(embank_eviction).
enum embank_status embank_eviction_init(struct embank_eviction *eviction, size_t size);

// Deletes rows by age, frequency or norm, in memory and on disk, while training goes on. The call
// examines the rows of the newest checkpoint, and deletes a row if every condition now holds for
// it. Rows that were inserted after the checkpoint, and rows with outstanding leases, stay. The
// next checkpoint makes the deletions durable. After EMBANK_STATUS_CANCELLED or another failure,
// the rows that were already deleted stay deleted. `evicted` may be NULL; `evicted_size` is
// sizeof(embank_evicted).
enum embank_status embank_table_evict(const struct embank_table *table,
                                      const struct embank_eviction *eviction,
                                      struct embank_evicted *evicted,
                                      size_t evicted_size);

// Sets every option to its default. `size` is sizeof(embank_export_options).
enum embank_status embank_export_options_init(struct embank_export_options *options, size_t size);

// Sets every option to its default. `size` is sizeof(embank_import_options).
enum embank_status embank_import_options_init(struct embank_import_options *options, size_t size);

// Writes the table's rows, as the newest checkpoint has them, to a file. Training may go on
// meanwhile. The memory that the call takes does not depend on the number of rows. When the call
// returns, the file is complete and on stable storage, and has replaced an older file at `path`.
// After a failure, the call leaves no part of the new file. If `options` is NULL, every option has
// its default. `exported` may be NULL; `exported_size` is sizeof(embank_exported).
enum embank_status embank_table_export(const struct embank_table *table,
                                       const char *path,
                                       const struct embank_export_options *options,
                                       struct embank_exported *exported,
                                       size_t exported_size);

// Puts the rows of a file into the table, and replaces rows that exist. The file is an export, or
// a matrix that another program made. The memory that the call takes does not depend on the number
// of rows. The next checkpoint makes the rows durable. After a failure, the table has the rows of
// the batches before the failure. If `options` is NULL, every option has its default. `imported`
// may be NULL; `imported_size` is sizeof(embank_imported).
enum embank_status embank_table_import(const struct embank_table *table,
                                       const char *path,
                                       const struct embank_import_options *options,
                                       struct embank_imported *imported,
                                       size_t imported_size);

// Imports `path_count` files or directories one after another, as embank_table_import does. Checks
// all files before it puts the first row.
enum embank_status embank_table_import_files(const struct embank_table *table,
                                             const char *const *paths,
                                             size_t path_count,
                                             const struct embank_import_options *options,
                                             struct embank_imported *imported,
                                             size_t imported_size);

// `settings` gets the settings of the table from which the file was exported, for
// embank_bank_table. `found` gets 1 if the file has settings. Otherwise `found` gets 0, and
// `settings` stays unchanged. `format` is one of embank_file_format. `settings` may be NULL;
// `size` is sizeof(embank_table_settings).
enum embank_status embank_exported_settings(const char *path,
                                            uint32_t format,
                                            struct embank_table_settings *settings,
                                            size_t size,
                                            uint8_t *found);

// Lists the kept checkpoints of the bank in `path`, oldest first. Another process may have the
// bank open. `count` gets the number of kept checkpoints. `numbers` gets the numbers of the first
// `capacity` of them.
enum embank_status embank_list_checkpoints(const char *path,
                                           uint64_t *numbers,
                                           size_t capacity,
                                           size_t *count);

// Takes the bank in `path` back to an older checkpoint, and removes all newer checkpoints. This
// can't be undone. No process may have the bank open for writing. Returns EMBANK_STATUS_OTHER for
// a shard of a fleet: the whole fleet goes back together.
enum embank_status embank_roll_back(const char *path, uint64_t checkpoint);

// Copies a checkpoint of the bank in `path` to the directory `to`, which is then an independent
// bank. If `checkpoint` is 0, copies the newest checkpoint. Another process may have the bank in
// `path` open.
enum embank_status embank_copy_checkpoint(const char *path, uint64_t checkpoint, const char *to);

// Writes a delta, the difference between the checkpoints `from` and `to` of the bank in `path`, to
// a new file. embank_apply_delta reads this file. If `to` is 0, it means the newest checkpoint.
// Another process may have the bank open.
enum embank_status embank_export_delta(const char *path,
                                       uint64_t from,
                                       uint64_t to,
                                       const char *file);

// Brings a copy of a bank to the checkpoint at which the delta in `file` ends. The copy is the
// bank in `path`; it keeps its newest `checkpoints_kept` checkpoints. No process may have the copy
// open for writing. Returns EMBANK_STATUS_DELTA_MISMATCH if the delta does not follow the copy's
// newest checkpoint.
enum embank_status embank_apply_delta(const char *path, const char *file, size_t checkpoints_kept);

// Fills `stats` with the bank's counters. `size` is sizeof(embank_bank_stats).
enum embank_status embank_bank_get_stats(const struct embank_bank *bank,
                                         struct embank_bank_stats *stats,
                                         size_t size);

// Fills `stats` with the table's counters. `size` is sizeof(embank_table_stats).
enum embank_status embank_table_get_stats(const struct embank_table *table,
                                          struct embank_table_stats *stats,
                                          size_t size);

// `text` gets all counters of the bank, in the text format of Prometheus.
enum embank_status embank_bank_prometheus(const struct embank_bank *bank,
                                          struct embank_bytes **text);

// `text` gets all counters of `count` banks, as embank_bank_prometheus gives them for one. Each
// number has the label `bank` with its bank's name from `names`. Two banks can't have the same
// name. The texts of embank_bank_prometheus can't be joined, because they have the same series.
enum embank_status embank_banks_prometheus(const struct embank_bank *const *banks,
                                           const char *const *names,
                                           size_t count,
                                           struct embank_bytes **text);

// The bytes, followed by a NUL; NULL if `bytes` is NULL. Valid until embank_bytes_free.
const void *embank_bytes_data(const struct embank_bytes *bytes);

// The number of bytes, without the NUL; 0 if `bytes` is NULL.
size_t embank_bytes_size(const struct embank_bytes *bytes);

// Frees the bytes.
void embank_bytes_free(struct embank_bytes *bytes);

// The number of names; 0 if `names` is NULL.
size_t embank_names_count(const struct embank_names *names);

// The name with the number `place`, counted from 0, as UTF-8. NULL if there is no such name. Valid
// until embank_names_free.
const char *embank_names_at(const struct embank_names *names, size_t place);

// Frees the names.
void embank_names_free(struct embank_names *names);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* EMBANK_H */
