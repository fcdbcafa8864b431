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
// once, with the function that the type's comment names. This holds also for a lease that has ended
// or a table that was dropped. Handles may be freed in any order: a table, lease or scan keeps its
// bank open, and the bank closes when the last of them is freed. Freeing NULL does nothing. Using a
// handle after it was freed, or freeing it while another call uses it, is undefined.
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
// longjmp or an exception out of it is undefined.
//
// Threads. Several threads may use a handle at once, and a handle may move between threads. Calls
// on a bank, table or lease run beside each other; calls on one scan take turns.
//
// fork(). A child process can't use its parent's handles: calls return EMBANK_STATUS_FORKED and
// freeing does nothing, so the parent's bank stays intact. The child does not keep the bank locked:
// it can open the bank after the parent has closed it, or to read only at any time; or use exec.


#ifndef EMBANK_H
#define EMBANK_H

#include <stddef.h>
#include <stdint.h>

// With EMBANK_UNKNOWN_VALUES_MARK: the id that embank_vocabulary_ids_of_numbers and
// embank_vocabulary_ids_of_bytes give a value without an id.
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
  // A get waited at the staleness bound for wait_timeout_ms. It holds nothing and can be called
  // again.
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
  // The bank was opened to read only.
  EMBANK_STATUS_READ_ONLY = 15,
  // A checkpoint is being read, so it can't be removed.
  EMBANK_STATUS_BEING_READ = 16,
  // A delta does not follow the bank's newest checkpoint.
  EMBANK_STATUS_DELTA_MISMATCH = 17,
  // The memory budget is too small; the message names one that is enough.
  EMBANK_STATUS_BUDGET_TOO_SMALL = 18,
  // The disk quota is used up.
  EMBANK_STATUS_QUOTA_EXCEEDED = 19,
  // An earlier write failed; nothing more is written until the bank is opened again.
  EMBANK_STATUS_POISONED = 20,
  // The store contradicts itself: a mistake in Embank. The last checkpoint stands.
  EMBANK_STATUS_INCONSISTENT = 21,
  // The device that was asked for by name can't be used here.
  EMBANK_STATUS_DEVICE_UNAVAILABLE = 22,
  // An earlier lookahead met an error while it read. The keys of this call are not queued.
  EMBANK_STATUS_LOOKAHEAD_FAILED = 23,
  // The handle was made before a fork(), in the parent process.
  EMBANK_STATUS_FORKED = 24,
  // A panic: a mistake in Embank. Open the bank again from its last checkpoint.
  EMBANK_STATUS_INTERNAL = 25,
  // A failure that has no number of its own; see the message.
  EMBANK_STATUS_OTHER = 26,
  // The lease grew older than the bank's lease_timeout_ms, and a get of its table ended it.
  // Nothing was changed.
  EMBANK_STATUS_LEASE_EXPIRED = 27,
  // A callback ended the call.
  EMBANK_STATUS_CANCELLED = 28,
  // A file can't be read as a table: it is damaged, holds values that are not finite, or does
  // not tell which of its parts are keys and vectors. The batches before the one that failed are
  // in the table.
  EMBANK_STATUS_UNREADABLE_FILE = 29,
  // The bank's directory was moved, removed or replaced while the bank was open. Nothing is
  // written.
  EMBANK_STATUS_DIRECTORY_MOVED = 30,
  // A key of a table whose keys are a vocabulary's ids is no id of it. Nothing was read or
  // changed.
  EMBANK_STATUS_UNKNOWN_ID = 31,
  // A get would wait for leases of its own thread. Nothing is held. End those leases first; or,
  // if another thread ends them, call embank_lease_hand_over.
  EMBANK_STATUS_SELF_BLOCKED = 32,
  // A row to put has a value that is NaN or infinite, or too large for the table's dtype. No row
  // has been changed.
  EMBANK_STATUS_NON_FINITE_ROW = 33,
  // A step would make some rows infinite in the table's dtype. These rows are unchanged; all
  // others took their step.
  EMBANK_STATUS_ROW_OVERFLOW = 34,
  // The bank has no vocabulary of this name.
  EMBANK_STATUS_NO_SUCH_VOCABULARY = 35,
  // The vocabulary exists with other settings.
  EMBANK_STATUS_VOCABULARY_MISMATCH = 36,
  // A value has no id in the vocabulary, and its settings give it none.
  EMBANK_STATUS_UNKNOWN_VALUE = 37,
  // The vocabulary of this handle was dropped.
  EMBANK_STATUS_VOCABULARY_DROPPED = 38,
  // The vocabulary is frozen, so no value can be inserted.
  EMBANK_STATUS_VOCABULARY_FROZEN = 39,
  // The table's keys are ids of a vocabulary that was renumbered, replaced or dropped since the
  // table was made.
  EMBANK_STATUS_OTHER_VOCABULARY = 40,
  // The disk has no room for the data that the call must write. No row is lost: make room and
  // call again.
  EMBANK_STATUS_DISK_FULL = 41,
  // A file can be read, but does not fit the table: another dim, the state of another optimizer,
  // ids of another vocabulary. The batches before the one that failed are in the table.
  EMBANK_STATUS_FILE_MISMATCH = 42,
} embank_status;

// How a table's values are stored. Rows go in and out as float with every dtype.
typedef enum embank_dtype {
  // IEEE 754 single precision.
  EMBANK_DTYPE_F32 = 0,
  // IEEE 754 half precision: 11 significant bits. Magnitudes above 65,504 become infinite.
  EMBANK_DTYPE_F16 = 1,
  // The upper half of an F32: 8 significant bits, and the range of an F32.
  EMBANK_DTYPE_BF16 = 2,
  // Whole numbers from -127 to 127, multiplied by a scale for each row, which is an F32.
  EMBANK_DTYPE_INT8 = 3,
} embank_dtype;

// How updates are rounded to a dtype below F32. Initial values and puts always round to the
// nearest.
typedef enum embank_rounding {
  // Stochastic for INT8, to the nearest for the other dtypes.
  EMBANK_ROUNDING_BY_DTYPE = 0,
  // To the nearest, ties to even. An update below half a step is lost.
  EMBANK_ROUNDING_NEAREST = 1,
  // Up or down at random, right on average. Reproducible. Takes 4 bytes a row.
  EMBANK_ROUNDING_STOCHASTIC = 2,
} embank_rounding;

// The keys for which a get makes a row. For other keys the get returns the initial values, and
// their gradients are dropped.
typedef enum embank_admission {
  // Every key, at its first get.
  EMBANK_ADMISSION_ALWAYS = 0,
  // A key at its get number admission_gets. Gets are counted exactly.
  EMBANK_ADMISSION_AFTER_GETS = 1,
  // A key without a row at each get with the probability admission_probability.
  EMBANK_ADMISSION_PROBABILITY = 2,
} embank_admission;

// The kinds of optimizers. docs/optimizers.md has the formulas.
typedef enum embank_optimizer_kind {
  // No optimizer: rows are only put.
  EMBANK_OPTIMIZER_KIND_NONE = 0,
  // torch.optim.SGD.
  EMBANK_OPTIMIZER_KIND_SGD = 1,
  // torch.optim.Adagrad.
  EMBANK_OPTIMIZER_KIND_ADAGRAD = 2,
  // Adagrad with one accumulator a row.
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
  // Normal, cut off at parameters[2] and parameters[3].
  EMBANK_INITIALIZER_KIND_TRUNCATED_NORMAL = 4,
  // torch.nn.init.xavier_uniform_, with gain parameters[0].
  EMBANK_INITIALIZER_KIND_XAVIER_UNIFORM = 5,
  // torch.nn.init.xavier_normal_, with gain parameters[0].
  EMBANK_INITIALIZER_KIND_XAVIER_NORMAL = 6,
} embank_initializer_kind;

// Tracking: whether rows record their last use and number of uses, and in which unit of time.
typedef enum embank_tracking {
  // Rows record nothing.
  EMBANK_TRACKING_NONE = 0,
  // Time in minutes, by the system's clock.
  EMBANK_TRACKING_MINUTES = 1,
  // Time in the unit of the caller, by the last embank_table_set_time.
  EMBANK_TRACKING_SET_TIME = 2,
} embank_tracking;

// The system interface that a bank reads and writes its log with.
typedef enum embank_device {
  // io_uring if the kernel grants it, otherwise threads.
  EMBANK_DEVICE_AUTO = 0,
  // io_uring; opening fails if the kernel refuses it.
  EMBANK_DEVICE_IO_URING = 1,
  // A pool of threads.
  EMBANK_DEVICE_THREADS = 2,
} embank_device;

// What a peek does about keys that have no row. It never makes up zeros.
typedef enum embank_missing {
  // Fills in the row's initial values, which the first get would give it.
  EMBANK_MISSING_INITIAL = 0,
  // Fails with EMBANK_STATUS_MISSING_ROW.
  EMBANK_MISSING_ERROR = 1,
  // Leaves that part of the rows as it is.
  EMBANK_MISSING_SKIP = 2,
} embank_missing;

// How the rows of a bag become one.
typedef enum embank_pooling {
  // Their sum; zeros for an empty bag.
  EMBANK_POOLING_SUM = 0,
  // Their sum by their number; zeros for an empty bag.
  EMBANK_POOLING_MEAN = 1,
} embank_pooling;

// The formats that a table can be written to and read from. docs/export.md describes their
// content.
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
  // Byte strings, the empty one too.
  EMBANK_VALUE_KIND_BYTES = 1,
} embank_value_kind;

// The result of looking up a value that has no id.
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
  // They get what the vocabulary's settings say (embank_unknown).
  EMBANK_UNKNOWN_VALUES_AS_SETTINGS = 1,
  // They are inserted, and each gets the next id. In a frozen vocabulary they get what the
  // settings say.
  EMBANK_UNKNOWN_VALUES_INSERT = 2,
} embank_unknown_values;

// An open bank: a directory with many tables under one memory budget. Free with embank_bank_close.
typedef struct embank_bank embank_bank;

// Byte strings that a call returns. Free with embank_byte_strings_free.
typedef struct embank_byte_strings embank_byte_strings;

// Bytes that a call returns. Free with embank_bytes_free.
typedef struct embank_bytes embank_bytes;

// The counts that a get took up in the staleness clocks of its rows. Applying, putting and
// releasing end it, whatever they return, except that a wrong argument leaves it as it was. Free
// with embank_lease_free, which releases it if it has not ended.
typedef struct embank_lease embank_lease;

// Names that a call returns. Free with embank_names_free.
typedef struct embank_names embank_names;

// The rows of a table as the newest checkpoint held them. Each row comes once, in no particular
// order. Free with embank_scan_free.
typedef struct embank_scan embank_scan;

// A table of a bank: rows of f32 by 64-bit key. All handles of a table are one table. Free with
// embank_table_free.
typedef struct embank_table embank_table;

// A vocabulary of an open bank: values and their ids, which are dense and never change. Free with
// embank_vocabulary_free.
typedef struct embank_vocabulary embank_vocabulary;

// The options of opening a bank. Call embank_bank_options_init, then change fields.
typedef struct embank_bank_options {
  // Set by embank_bank_options_init.
  size_t size;
  // The memory budget in bytes: rows, index, buffers and the lookahead queue.
  uint64_t memory_budget_bytes;
  // The number of newest checkpoints that stay. Default: 2.
  uint64_t checkpoints_kept;
  // The longest time that a get waits at a staleness bound, in milliseconds. Default: 60,000.
  uint64_t wait_timeout_ms;
  // The largest age of a lease, in milliseconds. An older lease expires with the next get of its
  // table, whichever rows that gets: its counts are given back, and applying or putting it
  // returns EMBANK_STATUS_LEASE_EXPIRED. Releasing and freeing it do nothing, and are no error.
  // 0 means that no lease expires. Default: 0.
  uint64_t lease_timeout_ms;
  // The largest number of keys in the lookahead queue. 0 turns lookahead off; a negative number
  // means as many as fit 1/32 of the budget. Default: -1.
  int64_t lookahead_queue_keys;
  // The largest length of the log on disk, in bytes. 0 means no quota. Default: 0.
  uint64_t disk_quota_bytes;
  // The largest number of bytes that compaction in the background reads and writes in a second.
  // 0 means no limit. Default: 0.
  uint64_t compaction_throttle_bytes_per_s;
  // Compaction in the background starts when the log is longer than its rows by this factor, 1.1
  // to 10. Default: 1.4.
  double space_amplification_target;
  // One of embank_device. Default: EMBANK_DEVICE_AUTO.
  uint32_t device;
  // 0 or 1: whether a thread frees disk space in the background. With 0, only
  // embank_bank_compact frees space.
  uint32_t background_compaction;
  // 0 or 1: whether a bank is created if there is none. With 0, a mistyped path or a file system
  // that is not mounted is EMBANK_STATUS_INVALID_ARGUMENT. Default: 1.
  uint32_t create;
  // Threads that share a large batch, the calling one among them; 1 shares nothing. Results are
  // those of one thread, bit for bit. 0 means the processors that the process may use, at most
  // 16. Default: 0.
  uint32_t threads;
} embank_bank_options;

// An optimizer with its numbers. Numbers that its kind does not have must be zeros. Make one with
// embank_sgd and so on, which set the usual defaults, then change fields. The kind, the initial
// accumulator, whether there is momentum, and whether Adagrad's rate decays belong to the table
// for good. The other numbers may change.
typedef struct embank_optimizer {
  // One of embank_optimizer_kind.
  uint32_t kind;
  // SGD: 0 or 1, whether momentum is Nesterov's.
  uint32_t nesterov;
  // The learning rate: not negative, and above 0 for FTRL.
  double learning_rate;
  // The weight decay of every kind but FTRL.
  double weight_decay;
  // SGD: the share of the last step's buffer that stays; 0 means no momentum.
  double momentum;
  // SGD with momentum: the share of the gradient that the buffer leaves out.
  double dampening;
  // Adagrad: the decay of the learning rate by the row's steps. Must be 0 for row-wise Adagrad.
  double lr_decay;
  // Adam and AdamW: the share of the first moment that stays at a step.
  double beta1;
  // Adam and AdamW: the share of the second moment that stays at a step.
  double beta2;
  // Adagrad, row-wise Adagrad, Adam and AdamW: the number that keeps a division finite.
  double eps;
  // Adagrad, row-wise Adagrad and FTRL: the accumulators of a new row.
  double initial_accumulator;
  // FTRL: makes first steps smaller; the paper suggests 1.
  double beta;
  // FTRL: the penalty that keeps values at zero.
  double l1;
  // FTRL: the penalty on squares.
  double l2;
  // Must be zeros: room for numbers of later optimizers.
  double reserved[5];
} embank_optimizer;

// An initializer with its numbers. Make one with embank_uniform and so on. A struct of zeros is
// the initializer with zeros.
typedef struct embank_initializer {
  // One of embank_initializer_kind.
  uint32_t kind;
  // The kind's parameters; the other elements are zeros.
  float parameters[7];
  // For the Xavier kinds. 0 means the table's dim, which is torch's fan_in of an Embedding.
  uint64_t fan_in;
  // For the Xavier kinds. 0 means the table's dim; torch's fan_out of an Embedding is its number
  // of rows.
  uint64_t fan_out;
} embank_initializer;

// The settings of a table. Call embank_table_settings_init, set the dim, then change fields. dim,
// dtypes, rounding, initializer, seed, tracking, admission and the optimizer's state belong to the
// table for good; opening a table with other ones fails. The other settings are those of the
// latest call.
typedef struct embank_table_settings {
  // Set by embank_table_settings_init.
  size_t size;
  // Seed of the initial values. Default: 0.
  uint64_t seed;
  // A get waits while more than this many gets of one of its rows are outstanding. A negative
  // number means that no get waits. Default: -1.
  int64_t staleness_bound;
  // Values per row. Must be set to 1 or more. Default: 0.
  uint32_t dim;
  // One of embank_dtype. Default: EMBANK_DTYPE_F32.
  uint32_t dtype;
  // One of embank_tracking. Tracking takes 8 bytes a row. Default: EMBANK_TRACKING_NONE.
  uint32_t tracking;
  // How the optimizer's vectors are stored: one of embank_dtype except INT8. Default:
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

// The settings of a vocabulary. Call embank_vocabulary_settings_init, then change fields. They
// belong to the vocabulary for good; opening a vocabulary with other ones fails.
typedef struct embank_vocabulary_settings {
  // Set by embank_vocabulary_settings_init.
  size_t size;
  // The first value's id, at most 2^62. Smaller ids are the caller's, for padding and unknown
  // values. Default: 0.
  uint64_t first_id;
  // With EMBANK_UNKNOWN_ID: the id of values without one, below first_id. Must be 0 otherwise.
  // Default: 0.
  uint64_t unknown_id;
  // One of embank_value_kind. Default: EMBANK_VALUE_KIND_U64.
  uint32_t kind;
  // One of embank_unknown. Default: EMBANK_UNKNOWN_ERROR.
  uint32_t unknown;
  // The largest length of a byte string, 1 to 131,072. Default: 1,024.
  uint32_t value_bytes_max;
  // 0 or 1: with 1, the vocabulary counts how often values come. Default: 0.
  uint32_t counts;
} embank_vocabulary_settings;

// Which keys of a batch make up each bag, and how their rows are pooled.
typedef struct embank_bags {
  // The keys of bag i are those at the places offsets[i] to offsets[i + 1] - 1 of the batch: the
  // first offset is 0, the last one is the number of keys, and none is less than the one before.
  const uint64_t *offsets;
  // One more than there are bags.
  size_t offset_count;
  // What each key's row is multiplied by, one for each key; with EMBANK_POOLING_SUM alone. NULL:
  // 1.
  const float *weights;
  // One of embank_pooling.
  uint32_t pooling;
  // Must be 0.
  uint32_t reserved;
} embank_bags;

// Is called with the keys of a batch of rows, which are valid until it returns. A result other
// than 0 ends the call.
typedef int32_t (*embank_on_keys)(void *context, const uint64_t *keys, size_t key_count);

// Is called after each batch of rows with the number of rows done and the number of rows in all. A
// result other than 0 ends the call.
typedef int32_t (*embank_on_progress)(void *context, uint64_t rows_done, uint64_t rows_total);

// The conditions of an eviction. It deletes the rows for which every condition that is set holds.
// Call embank_eviction_init, then set at least one condition.
typedef struct embank_eviction {
  // Set by embank_eviction_init.
  size_t size;
  // Deletes rows whose last use is at least this long ago: in minutes, or in the unit of
  // embank_table_set_time. Call embank_table_set_time first, because the time is 0 after an
  // open. Only for tables that track uses. A negative number is no condition. Default: -1.
  int64_t unused_for;
  // Deletes rows with fewer uses than this. Only for tables that track uses. A negative number
  // is no condition. Default: -1.
  int64_t used_fewer_than;
  // Deletes rows whose vector has an L2 norm below this. 0 is no condition. Default: 0.
  float norm_below;
  // 0 or 1: with 1, rows are counted and their keys handed out, but no row is deleted. Default:
  // 0.
  uint32_t dry_run;
  // Is called with the keys of the rows that are deleted, or would be. Default: NULL.
  embank_on_keys gone;
  // Is called with the progress. Default: NULL.
  embank_on_progress progress;
  // The first argument of both callbacks. Default: NULL.
  void *context;
} embank_eviction;

// The result of an eviction.
typedef struct embank_evicted {
  // sizeof(embank_evicted), as it was passed.
  size_t size;
  // The checkpoint whose rows were examined.
  uint64_t checkpoint;
  // The number of examined rows.
  uint64_t examined;
  // The number of rows that were deleted, or would be.
  uint64_t rows;
  // The number of rows that stayed only because leases hold them.
  uint64_t leased;
} embank_evicted;

// The options of an export. Call embank_export_options_init, then change fields.
typedef struct embank_export_options {
  // Set by embank_export_options_init.
  size_t size;
  // With dense: the number of rows of the matrix; a larger key is an error. 0 means largest key
  // + 1. Default: 0.
  uint64_t dense_rows;
  // One of embank_file_format. Default: EMBANK_FILE_FORMAT_BY_SUFFIX.
  uint32_t format;
  // 0 or 1: with 1, the file also gets the optimizer's state, so that an import restores
  // training exactly, and for a table with tracking each row's uses and last use. Default: 0.
  uint32_t state;
  // 0 or 1: with 1, the file is one matrix in order of the keys, without the keys. Not for
  // Parquet. Default: 0.
  uint32_t dense;
  // With dense, 0 or 1: with 1, keys without a row get their initial values; with 0 they are an
  // error. Default: 0.
  uint32_t fill_missing;
  // Is called with the progress. Default: NULL.
  embank_on_progress progress;
  // The first argument of the callback. Default: NULL.
  void *context;
} embank_export_options;

// The options of an import. Call embank_import_options_init, then change fields.
typedef struct embank_import_options {
  // Set by embank_import_options_init.
  size_t size;
  // The name of the tensor or column of the keys, or for npy the file. NULL means `keys` or
  // `key`. If the file has neither, row i is the row of key i if nothing else in the file may be
  // keys; otherwise the file is refused. Default: NULL.
  const char *keys;
  // The name of the tensor or column of the vectors, or for npy the file. NULL means `rows` or
  // `vector`, or the only matrix. Default: NULL.
  const char *rows;
  // One of embank_file_format. Default: EMBANK_FILE_FORMAT_BY_SUFFIX.
  uint32_t format;
  // 0 or 1: with 1, the optimizer's state is imported too, and in a table with tracking each
  // row's uses and last use, if the file has them. Default: 1.
  uint32_t state;
  // 0 or 1: with 1, NaN and infinite values are imported; with 0 they are an error. Default: 0.
  uint32_t non_finite;
  // 0 or 1: with 1, row i is the row of key first_key + i, whatever else is in the file; rows of
  // the next file follow. Default: 0.
  uint32_t by_position;
  // Is called with the progress. Default: NULL.
  embank_on_progress progress;
  // The first argument of the callback. Default: NULL.
  void *context;
  // With by_position: the key of the first row. Default: 0.
  uint64_t first_key;
} embank_import_options;

// The result of an export.
typedef struct embank_exported {
  // sizeof(embank_exported), as it was passed.
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
  // sizeof(embank_imported), as it was passed.
  size_t size;
  // The number of rows of the file.
  uint64_t rows;
  // 1 if the file has the optimizer's state, otherwise 0.
  uint64_t with_state;
} embank_imported;

// What a bank has done since it was opened. docs/python.md and docs/staleness.md say more of each.
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
  // Rows found in the row cache, which holds copies of rows on disk.
  uint64_t hits_cache;
  // Rows found on disk and read from there.
  uint64_t hits_disk;
  // Rows that an operation looked for and did not find, including those that it then
  // inserted.
  uint64_t missing;
  // Rows inserted.
  uint64_t inserted;
  // Read requests to the device, after coalescing.
  uint64_t disk_reads;
  // Bytes read from the device.
  uint64_t disk_read_bytes;
  // Bytes written to the device.
  uint64_t disk_write_bytes;
  // Gauge: rows in all tables.
  uint64_t live_rows;
  // Gauge: bytes of the records of all rows, including headers.
  uint64_t live_bytes;
  // Gauge: bytes of log on disk.
  uint64_t log_disk_bytes;
  // Gets that had to wait for a staleness bound, in all tables.
  uint64_t waits;
  // Total time of these waits, in microseconds.
  uint64_t wait_us;
  // Gets that gave up waiting.
  uint64_t timeouts;
  // Leases that were dropped or expired, and of which not all counts could be given back.
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
  // Keys that were in mutable memory already, or in no table, at the request.
  uint64_t lookahead_resident;
  // Keys put in the queue.
  uint64_t lookahead_queued;
  // Keys that were pending already at another request for them.
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
  // Gauge: the number of the newest checkpoint, also if it was taken before this opening. 0
  // if there is no checkpoint, or if the store is open read-only.
  uint64_t newest_checkpoint;
  // Gauge: the part of changed that came after the newest checkpoint, or
  // after the opening if no checkpoint was taken since. Closing the store now would lose
  // these changes. A row that changed twice counts twice, and rows of vocabularies count
  // too. Changes by other threads while a checkpoint begins may be in the checkpoint and
  // count here as well.
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
  // Rows changed: updated, put, inserted by a get, deleted.
  uint64_t changed;
  // Rows deleted.
  uint64_t deleted;
  // Records appended to the log, including copies.
  uint64_t records_appended;
  // Records appended because an operation used a row of the read-only region or of the disk.
  uint64_t copied_to_tail;
  // Rows copied to the tail before their page left memory, because they are used often.
  uint64_t retained;
  // Rows on disk that came with the read of another row.
  uint64_t disk_reads_joined;
  // Gauge: the most reads that one batch had in flight at the same time.
  uint64_t disk_queue_depth_max;
  // Gauge: bytes of log on disk that only kept checkpoints, readers of checkpoints, or scans
  // still need.
  uint64_t log_held_bytes;
  // Bytes of log that compaction has read.
  uint64_t compacted_bytes;
  // Bytes of rows that compaction copied to the tail.
  uint64_t compaction_copied_bytes;
  // Time that compaction worked, in microseconds, without its waits for work and for the
  // throttle.
  uint64_t compaction_us;
  // Bytes of log freed on the file system.
  uint64_t freed_bytes;
  // Segment files removed.
  uint64_t segments_freed;
  // Times that a batch waited for a free frame.
  uint64_t page_waits;
  // Times that a batch waited for compaction to make room.
  uint64_t compaction_waits;
  // Times that a batch split buckets of the index after its inserts.
  uint64_t growth_steps;
  // Total time that batches waited for a free frame, in microseconds.
  uint64_t page_waits_us;
  // Total time that batches waited for compaction to make room, in microseconds.
  uint64_t compaction_waits_us;
  // Total time that batches split buckets of the index after their inserts, in microseconds.
  uint64_t growth_steps_us;
  // Total time that checkpoints paused batches, in microseconds.
  uint64_t checkpoint_pauses_us;
  // The longest wait of a batch for a free frame, in microseconds.
  uint64_t page_waits_us_max;
  // The longest wait of a batch for compaction, in microseconds.
  uint64_t compaction_waits_us_max;
  // The longest time that a batch split buckets, in microseconds.
  uint64_t growth_steps_us_max;
  // The most processor time that one batch took to split buckets, in microseconds. Time that
  // the thread spent off the processor does not count. Measured only for batches that insert
  // 64 rows or more, because asking the system for the time costs more than the splits of a
  // smaller batch.
  uint64_t growth_steps_cpu_us_max;
  // The longest pause of batches by a checkpoint, in microseconds.
  uint64_t checkpoint_pauses_us_max;
  // Gauge: time that the last checkpoint paused batches, in microseconds.
  uint64_t last_checkpoint_pause_us;
  // Gauge: memory of the log's frames, in bytes.
  uint64_t memory_frames_bytes;
  // Gauge: memory of the index, in bytes.
  uint64_t memory_index_bytes;
  // Gauge: memory of the row cache, in bytes.
  uint64_t memory_cache_bytes;
  // Gauge: memory of the read and write buffers, in bytes.
  uint64_t memory_buffers_bytes;
  // Gauge: index slots in use.
  uint64_t index_entries;
  // Gauge: address where the log begins, in bytes.
  uint64_t log_begin;
  // Gauge: address where the part of the log in memory begins, in bytes.
  uint64_t log_head;
  // Gauge: address where the mutable region begins, in bytes.
  uint64_t log_read_only;
  // Gauge: address where the log ends, in bytes.
  uint64_t log_tail;
  // Gauge: bytes of log that can be appended before the bank's addresses are used up. At 0
  // the bank takes no more writes. A new bank has 512 TiB, or 4,294,967,294 pages if that is
  // less.
  uint64_t log_address_left_bytes;
  // The size of a log page, in bytes.
  uint64_t page_size_bytes;
  // Keys that were in no table when their turn came.
  uint64_t lookahead_missing;
  // Working time of the lookahead thread, in microseconds: for bursts, prefetches, and rows
  // that it keeps in memory.
  uint64_t lookahead_reading_us;
  // Gauge: the last depth that an AutoDepth has chosen; 0 without one.
  uint64_t lookahead_depth;
  // Gauge: most bytes of memory for the queue, a part of the bank's budget.
  uint64_t lookahead_memory_bytes;
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
  // Batches put, with or without a lease.
  uint64_t puts;
  // Distinct rows put.
  uint64_t put_rows;
  // Batches of gradients applied, with or without a lease.
  uint64_t applies;
  // Distinct rows that gradients were applied to.
  uint64_t apply_rows;
  // Rows deleted.
  uint64_t deleted_rows;
  // Rows evicted.
  uint64_t evicted_rows;
  // Rows that a get, peek, put or apply had to read from disk.
  uint64_t disk_reads;
  // Gets that had to wait for the staleness bound.
  uint64_t waits;
  // Total time of these waits, in microseconds.
  uint64_t wait_us;
  // Gets that gave up waiting.
  uint64_t timeouts;
  // Leases that were dropped or expired, and of which not all counts could be given back.
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
// cure; "" if no call failed. Valid until the next failed call of this thread, or until the thread
// ends. A language that moves calls between threads must copy it at once.
const char *embank_last_error_message(void);

// The name of a status without its prefix, such as "LOCKED". "UNKNOWN" for a number that this
// library does not know. Always valid.
const char *embank_status_name(int32_t status);

// The library's version, such as "0.1.0". Always valid.
const char *embank_version(void);

// Sets every option to its default. `size` is sizeof(embank_bank_options).
enum embank_status embank_bank_options_init(struct embank_bank_options *options, size_t size);

// torch.optim.SGD without momentum and weight decay.
struct embank_optimizer embank_sgd(double learning_rate);

// torch.optim.Adagrad: eps 1e-10, initial accumulator 0, no decay.
struct embank_optimizer embank_adagrad(double learning_rate);

// Adagrad with one accumulator a row, FBGEMM's EXACT_ROWWISE_ADAGRAD: eps 1e-8, initial
// accumulator 0.
struct embank_optimizer embank_row_wise_adagrad(double learning_rate);

// torch.optim.Adam: betas 0.9 and 0.999, eps 1e-8, no weight decay.
struct embank_optimizer embank_adam(double learning_rate);

// torch.optim.AdamW: betas 0.9 and 0.999, eps 1e-8, weight decay 0.01.
struct embank_optimizer embank_adam_w(double learning_rate);

// FTRL-proximal as in Keras: beta, l1 and l2 0, initial accumulator 0.1.
struct embank_optimizer embank_ftrl(double learning_rate);

// New rows are all `value`.
struct embank_initializer embank_constant(float value);

// New rows are uniform between `low` and `high`.
struct embank_initializer embank_uniform(float low, float high);

// New rows are normal (Gaussian).
struct embank_initializer embank_normal(float mean, float std);

// New rows are normal between `low` and `high`, as torch.nn.init.trunc_normal_ has them.
struct embank_initializer embank_truncated_normal(float mean, float std, float low, float high);

// As torch.nn.init.xavier_uniform_; set the fans if they are not the table's dim.
struct embank_initializer embank_xavier_uniform(float gain);

// As torch.nn.init.xavier_normal_; set the fans if they are not the table's dim.
struct embank_initializer embank_xavier_normal(float gain);

// Sets every setting to its default, and the dim to 0. `size` is sizeof(embank_table_settings).
enum embank_status embank_table_settings_init(struct embank_table_settings *settings, size_t size);

// Opens the bank in the directory `path`, or creates it there. An existing bank comes back as its
// newest complete checkpoint has it; changes after that checkpoint are gone. `options` may be NULL
// for defaults.
enum embank_status embank_bank_open(const char *path,
                                    const struct embank_bank_options *options,
                                    struct embank_bank **bank);

// Opens the bank in the directory `path` to read only, also while another process writes it.
// `checkpoint` is the number of the checkpoint to open, or 0 for the newest. Peeks and scans work;
// a call that would write returns EMBANK_STATUS_READ_ONLY. The writer keeps the checkpoint until
// this bank leaves it. Of `options`, which may be NULL, only the memory budget and the device are
// used.
enum embank_status embank_bank_open_read_only(const char *path,
                                              const struct embank_bank_options *options,
                                              uint64_t checkpoint,
                                              struct embank_bank **bank);

// Frees the handle. The bank closes when its tables, leases and scans are freed too; until then no
// other process can open it for writing. Takes no checkpoint: changed_since_checkpoint of
// embank_bank_get_stats is the number of changes that would be lost, and embank_bank_checkpoint
// keeps them.
void embank_bank_close(struct embank_bank *bank);

// Opens the table `name`, or creates it. A new table is durable with the next checkpoint.
// embank_bank_table_of_vocabulary creates a table whose keys are a vocabulary's ids; this function
// only opens such a table.
enum embank_status embank_bank_table(const struct embank_bank *bank,
                                     const char *name,
                                     const struct embank_table_settings *settings,
                                     struct embank_table **table);

// Opens or creates a table as embank_bank_table does, whose keys are the ids of the vocabulary
// with this name. The table refuses other keys, and can't be opened after the vocabulary is
// renumbered or replaced.
enum embank_status embank_bank_table_of_vocabulary(const struct embank_bank *bank,
                                                   const char *name,
                                                   const struct embank_table_settings *settings,
                                                   const char *vocabulary,
                                                   struct embank_table **table);

// Opens the vocabulary `name`, or creates it. A new one is durable with the next checkpoint.
enum embank_status embank_bank_vocabulary(const struct embank_bank *bank,
                                          const char *name,
                                          const struct embank_vocabulary_settings *settings,
                                          struct embank_vocabulary **vocabulary);

// Opens the vocabulary `name` with the settings that it has.
enum embank_status embank_bank_open_vocabulary(const struct embank_bank *bank,
                                               const char *name,
                                               struct embank_vocabulary **vocabulary);

// Drops the vocabulary `name`. Its values are gone at once, and durably with the next checkpoint.
// Tables whose keys are its ids stay, and can't be opened. Its handles must still be freed.
enum embank_status embank_bank_drop_vocabulary(const struct embank_bank *bank, const char *name);

// Lists the names of the bank's vocabularies, in order.
enum embank_status embank_bank_vocabularies(const struct embank_bank *bank,
                                            struct embank_names **names);

// Opens the table `name` with the settings that it has.
enum embank_status embank_bank_open_table(const struct embank_bank *bank,
                                          const char *name,
                                          struct embank_table **table);

// Drops the table `name`. Its rows are gone at once, and durably with the next checkpoint. Its
// handles and leases must still be freed. The name can be used again at once.
enum embank_status embank_bank_drop_table(const struct embank_bank *bank, const char *name);

// Lists the names of the bank's tables, in order.
enum embank_status embank_bank_tables(const struct embank_bank *bank, struct embank_names **names);

// Makes all tables and the caller's own bytes durable together. When the call returns, everything
// is on stable storage; a crash at any later moment recovers this checkpoint or a later one.
// `number` gets the checkpoint's number and may be NULL.
enum embank_status embank_bank_checkpoint(const struct embank_bank *bank,
                                          const void *blob,
                                          size_t blob_size,
                                          uint64_t *number);

// The number and the blob of the checkpoint that the bank was opened at, or that a bank open to
// read only is at now. Without a checkpoint, the number is 0 and the blob NULL. Either place may
// be NULL.
enum embank_status embank_bank_recovered(const struct embank_bank *bank,
                                         uint64_t *number,
                                         struct embank_bytes **blob);

// Moves a bank that is open to read only to its newest checkpoint. `number` gets the number of
// that checkpoint and may be NULL.
enum embank_status embank_bank_refresh(const struct embank_bank *bank, uint64_t *number);

// Frees disk space now, except space that a kept checkpoint holds. Other calls go on at the same
// time.
enum embank_status embank_bank_compact(const struct embank_bank *bank);

// Removes the keys from the lookahead queue that are not being read yet. `cancelled` gets their
// number and may be NULL.
enum embank_status embank_bank_cancel_lookahead(const struct embank_bank *bank, size_t *cancelled);

// Waits until the lookahead queue is empty. `idle` gets 1 if it is, and 0 if `timeout_ms`
// milliseconds have passed first. For tests and measurements: training does not need it.
enum embank_status embank_bank_wait_lookahead(const struct embank_bank *bank,
                                              uint64_t timeout_ms,
                                              uint8_t *idle);

// Frees the handle. The table stays in its bank.
void embank_table_free(struct embank_table *table);

// The table's name as UTF-8, valid until the handle is freed. NULL for NULL.
const char *embank_table_name(const struct embank_table *table);

// Values per row. 0 for NULL.
uint32_t embank_table_dim(const struct embank_table *table);

// The table's settings as they are now. `size` is sizeof(embank_table_settings).
enum embank_status embank_table_get_settings(const struct embank_table *table,
                                             struct embank_table_settings *settings,
                                             size_t size);

// The name of the vocabulary whose ids are the table's keys; NULL if they are no vocabulary's.
// Free with embank_bytes_free.
enum embank_status embank_table_vocabulary(const struct embank_table *table,
                                           struct embank_bytes **name);

// Gets rows for training: one per key, duplicates included. Missing rows are inserted with their
// initial values. The staleness clock of each distinct key goes up by one until the lease ends; if
// a clock is above the table's bound, the call waits, at most the bank's wait timeout.
enum embank_status embank_table_get(const struct embank_table *table,
                                    const uint64_t *keys,
                                    size_t key_count,
                                    float *rows,
                                    size_t rows_len,
                                    struct embank_lease **lease);

// As embank_table_get, but waits at most `timeout_ms` milliseconds in place of the bank's wait
// timeout. With 0 it fails at once with EMBANK_STATUS_STALENESS_TIMEOUT if a clock is above the
// bound.
enum embank_status embank_table_get_within(const struct embank_table *table,
                                           const uint64_t *keys,
                                           size_t key_count,
                                           float *rows,
                                           size_t rows_len,
                                           uint64_t timeout_ms,
                                           struct embank_lease **lease);

// Gets one row per distinct key for training, in order of first appearance. `rows` may be longer
// than that: key_count * dim values always do. How many distinct keys there are goes to
// `distinct_count`, which may be NULL; which they are is told by embank_lease_distinct. Otherwise
// as embank_table_get.
enum embank_status embank_table_get_distinct(const struct embank_table *table,
                                             const uint64_t *keys,
                                             size_t key_count,
                                             float *rows,
                                             size_t rows_len,
                                             size_t *distinct_count,
                                             struct embank_lease **lease);

// Reads rows for evaluation, one per key. Touches no clock, waits for none, and writes nothing.
// `missing` is one of embank_missing. `present`, key_count bytes, gets 1 for each key that has a
// row and 0 for the others; it may be NULL.
enum embank_status embank_table_peek(const struct embank_table *table,
                                     const uint64_t *keys,
                                     size_t key_count,
                                     float *rows,
                                     size_t rows_len,
                                     uint32_t missing,
                                     uint8_t *present);

// What rows start with, whether they are there or not: a pure function of the table's seed and
// name, key and column.
enum embank_status embank_table_initial(const struct embank_table *table,
                                        const uint64_t *keys,
                                        size_t key_count,
                                        float *rows,
                                        size_t rows_len);

// Replaces or inserts rows without a lease; of equal keys the last one wins. Optimizer state
// stays. Touches no clock.
enum embank_status embank_table_put(const struct embank_table *table,
                                    const uint64_t *keys,
                                    size_t key_count,
                                    const float *rows,
                                    size_t rows_len);

// Takes a step of the table's optimizer without a lease; gradients of equal keys are summed first.
// Missing rows start from their initial values. Touches no clock.
enum embank_status embank_table_apply_gradients(const struct embank_table *table,
                                                const uint64_t *keys,
                                                size_t key_count,
                                                const float *gradients,
                                                size_t gradients_len);

// Deletes rows. `deleted` gets the number of rows that existed, and may be NULL. Leases on the
// rows lose their counts and their gradients for them, also if a row is made again.
enum embank_status embank_table_delete(const struct embank_table *table,
                                       const uint64_t *keys,
                                       size_t key_count,
                                       uint64_t *deleted);

// Says which rows there are: `present`, key_count bytes, gets 1 or 0 for each key. Touches no
// clock.
enum embank_status embank_table_contains(const struct embank_table *table,
                                         const uint64_t *keys,
                                         size_t key_count,
                                         uint8_t *present);

// Has the rows of `keys` that are on disk brought into memory soon. Never waits for the disk: what
// does not fit the queue is dropped, and a worker does the rest. `accepted`, how many keys are on
// their way, may be NULL.
enum embank_status embank_table_lookahead(const struct embank_table *table,
                                          const uint64_t *keys,
                                          size_t key_count,
                                          size_t *accepted);

// The staleness clock of a row: gets whose update has not come yet. -1 if the row is missing.
enum embank_status embank_table_outstanding(const struct embank_table *table,
                                            uint64_t key,
                                            int64_t *outstanding);

// The staleness bound; -1 if the table has no bound.
enum embank_status embank_table_staleness_bound(const struct embank_table *table, int64_t *bound);

// Sets the staleness bound of all handles of the table; a negative number removes the bound. Gets
// that wait look at the new bound. Not durable.
enum embank_status embank_table_set_staleness_bound(const struct embank_table *table,
                                                    int64_t bound);

// Sets the learning rate of all handles of the table, for batches applied from now on. Not
// durable.
enum embank_status embank_table_set_learning_rate(const struct embank_table *table,
                                                  double learning_rate);

// Sets the time that rows used from now on tell: an epoch, thousands of steps. The table's
// tracking is EMBANK_TRACKING_SET_TIME.
enum embank_status embank_table_set_time(const struct embank_table *table, uint32_t time);

// Sets the numbers of the optimizer, for all handles of the table and batches applied from now on.
// Its kind, initial accumulator, whether there is momentum and whether Adagrad's rate decays must
// be the table's. Not durable.
enum embank_status embank_table_set_optimizer(const struct embank_table *table,
                                              struct embank_optimizer optimizer);

// Goes through the table as the newest checkpoint holds it, while training goes on. Disk space is
// not given back until the scan is freed.
enum embank_status embank_table_scan(const struct embank_table *table, struct embank_scan **scan);

// Fills the settings with their defaults. `size` is sizeof(embank_vocabulary_settings).
enum embank_status embank_vocabulary_settings_init(struct embank_vocabulary_settings *settings,
                                                   size_t size);

// Frees the handle.
void embank_vocabulary_free(struct embank_vocabulary *vocabulary);

// The vocabulary's settings. `size` is sizeof(embank_vocabulary_settings).
enum embank_status embank_vocabulary_get_settings(const struct embank_vocabulary *vocabulary,
                                                  struct embank_vocabulary_settings *settings,
                                                  size_t size);

// The number of values, and the id that the next new value gets. Either place may be NULL.
enum embank_status embank_vocabulary_len(const struct embank_vocabulary *vocabulary,
                                         uint64_t *len,
                                         uint64_t *next_id);

// With 1, no value is inserted from now on. With 0, new values are inserted again.
enum embank_status embank_vocabulary_set_frozen(const struct embank_vocabulary *vocabulary,
                                                uint32_t frozen);

// The ids of `count` numbers, in a vocabulary of EMBANK_VALUE_KIND_U64. `unknown` is one of
// embank_unknown_values.
enum embank_status embank_vocabulary_ids_of_numbers(const struct embank_vocabulary *vocabulary,
                                                    const uint64_t *values,
                                                    size_t count,
                                                    uint32_t unknown,
                                                    uint64_t *ids);

// The ids of `count` byte strings, in a vocabulary of EMBANK_VALUE_KIND_BYTES. The strings lie one
// after the other in `bytes`: string i from offsets[i] to offsets[i + 1]. So there are count + 1
// offsets, as in Arrow's large strings. `unknown` is one of embank_unknown_values.
enum embank_status embank_vocabulary_ids_of_bytes(const struct embank_vocabulary *vocabulary,
                                                  const uint64_t *offsets,
                                                  size_t count,
                                                  const void *bytes,
                                                  size_t bytes_len,
                                                  uint32_t unknown,
                                                  uint64_t *ids);

// The numbers of `count` ids, in a vocabulary of EMBANK_VALUE_KIND_U64.
enum embank_status embank_vocabulary_numbers(const struct embank_vocabulary *vocabulary,
                                             const uint64_t *ids,
                                             size_t count,
                                             uint64_t *values);

// The byte strings of `count` ids, in a vocabulary of EMBANK_VALUE_KIND_BYTES.
enum embank_status embank_vocabulary_byte_strings(const struct embank_vocabulary *vocabulary,
                                                  const uint64_t *ids,
                                                  size_t count,
                                                  struct embank_byte_strings **strings);

// The number of byte strings. 0 for NULL.
size_t embank_byte_strings_count(const struct embank_byte_strings *strings);

// The byte string at `place`, from 0, without a NUL at its end. Its length goes to `size`, which
// may be NULL. Valid until embank_byte_strings_free. NULL if `place` is not below the number of
// byte strings.
const char *embank_byte_strings_at(const struct embank_byte_strings *strings,
                                   size_t place,
                                   size_t *size);

// Frees the byte strings.
void embank_byte_strings_free(struct embank_byte_strings *strings);

// Applies one gradient per key of the batch with the table's optimizer; those of equal keys are
// summed first. The next checkpoint makes it durable.
enum embank_status embank_lease_apply(const struct embank_lease *lease,
                                      const float *gradients,
                                      size_t gradients_len);

// Applies one gradient per distinct key, in the order of embank_lease_distinct.
enum embank_status embank_lease_apply_distinct(const struct embank_lease *lease,
                                               const float *gradients,
                                               size_t gradients_len);

// Replaces the rows, one per key of the batch; of equal keys the last one wins. Optimizer state
// stays.
enum embank_status embank_lease_put(const struct embank_lease *lease,
                                    const float *rows,
                                    size_t rows_len);

// Replaces the rows, one per distinct key, in the order of embank_lease_distinct.
enum embank_status embank_lease_put_distinct(const struct embank_lease *lease,
                                             const float *rows,
                                             size_t rows_len);

// Gives the counts back without an update, and says if that failed. Of a lease that has ended,
// there are none left.
enum embank_status embank_lease_release(const struct embank_lease *lease);

// Says that another thread than the one that took it ends the lease. A get of this thread that its
// count blocks then waits, where it would fail with EMBANK_STATUS_SELF_BLOCKED otherwise. Call it
// before the other thread gets the lease; needed only until some lease of the bank has been ended
// by another thread than the one that took it.
enum embank_status embank_lease_hand_over(const struct embank_lease *lease);

// The distinct keys of the batch in order of first appearance, and each key's place among them:
// place[i] is that of keys[i]. `count` is how many there are. `keys` and `places` may be NULL;
// else the first holds at least that many, and the second as many as the batch has keys.
enum embank_status embank_lease_distinct(const struct embank_lease *lease,
                                         uint64_t *keys,
                                         size_t keys_len,
                                         uint32_t *places,
                                         size_t places_len,
                                         size_t *count);

// Releases the lease, if it has not ended, and frees the handle.
void embank_lease_free(struct embank_lease *lease);

// Gets rows for training, and pools those of each bag to one row of `pooled`, bags * dim values.
// Rows are not copied out. The lease takes one gradient for each bag (embank_lease_apply_bags).
// Otherwise as embank_table_get.
enum embank_status embank_table_get_bags(const struct embank_table *table,
                                         const uint64_t *keys,
                                         size_t key_count,
                                         const struct embank_bags *bags,
                                         float *pooled,
                                         size_t pooled_len,
                                         struct embank_lease **lease);

// Reads rows for evaluation, and pools those of each bag to one row of `pooled`, bags * dim
// values. A key without a row counts with its initial values. Touches no clock, waits for none,
// and writes nothing.
enum embank_status embank_table_peek_bags(const struct embank_table *table,
                                          const uint64_t *keys,
                                          size_t key_count,
                                          const struct embank_bags *bags,
                                          float *pooled,
                                          size_t pooled_len);

// Applies one gradient for each bag with the table's optimizer: `gradients` holds bags * dim
// values, and `bags` are those of the get. The gradient of a row is the sum over its places in the
// batch. The next checkpoint makes it durable.
enum embank_status embank_lease_apply_bags(const struct embank_lease *lease,
                                           const struct embank_bags *bags,
                                           const float *gradients,
                                           size_t gradients_len);

// Fills `keys` and `rows` with the next rows; `rows` has room for capacity * dim values. `count`
// gets the number of rows: below `capacity` only at the end, and 0 after the last row.
enum embank_status embank_scan_next(const struct embank_scan *scan,
                                    uint64_t *keys,
                                    size_t capacity,
                                    float *rows,
                                    size_t rows_len,
                                    size_t *count);

// The number of the checkpoint, the number of its rows of the table, and the number of rows still
// to come. Any place may be NULL.
enum embank_status embank_scan_progress(const struct embank_scan *scan,
                                        uint64_t *checkpoint,
                                        uint64_t *rows,
                                        uint64_t *remaining);

// Ends the scan and frees the handle.
void embank_scan_free(struct embank_scan *scan);

// Sets every field to its default: no condition. `size` is sizeof(embank_eviction).
enum embank_status embank_eviction_init(struct embank_eviction *eviction, size_t size);

// Deletes rows by age, frequency or norm, in memory and on disk, while training goes on. It
// examines the rows of the newest checkpoint and deletes those for which every condition holds
// now. Rows that were made later, and rows with outstanding leases, stay. Durable with the next
// checkpoint. After EMBANK_STATUS_CANCELLED and other failures, the rows that were already deleted
// stay deleted. `evicted` may be NULL; `evicted_size` is sizeof(embank_evicted).
enum embank_status embank_table_evict(const struct embank_table *table,
                                      const struct embank_eviction *eviction,
                                      struct embank_evicted *evicted,
                                      size_t evicted_size);

// Sets every option to its default. `size` is sizeof(embank_export_options).
enum embank_status embank_export_options_init(struct embank_export_options *options, size_t size);

// Sets every option to its default. `size` is sizeof(embank_import_options).
enum embank_status embank_import_options_init(struct embank_import_options *options, size_t size);

// Writes the rows that the newest checkpoint has of the table to a file, in constant memory, while
// training goes on. When the call returns, the file is complete and on stable storage, and has
// replaced an older one. After a failure no part of it is left. `options` may be NULL for
// defaults, and so may `exported`; `exported_size` is sizeof(embank_exported).
enum embank_status embank_table_export(const struct embank_table *table,
                                       const char *path,
                                       const struct embank_export_options *options,
                                       struct embank_exported *exported,
                                       size_t exported_size);

// Puts the rows of a file into the table, in constant memory. The file is an export, or a matrix
// that another program made. A row that exists is replaced. Durable with the next checkpoint;
// after a failure the batches before it are in the table. `options` may be NULL for defaults, and
// so may `imported`; `imported_size` is sizeof(embank_imported).
enum embank_status embank_table_import(const struct embank_table *table,
                                       const char *path,
                                       const struct embank_import_options *options,
                                       struct embank_imported *imported,
                                       size_t imported_size);

// Imports `path_count` files or directories one after another, as embank_table_import does. All of
// them are checked before the first row is put.
enum embank_status embank_table_import_files(const struct embank_table *table,
                                             const char *const *paths,
                                             size_t path_count,
                                             const struct embank_import_options *options,
                                             struct embank_imported *imported,
                                             size_t imported_size);

// The settings of the table that a file was exported from, for embank_bank_table. `found` gets 1
// if the file has them. Otherwise it gets 0, and `settings` stay unchanged. `format` is one of
// embank_file_format. `settings` may be NULL; `size` is sizeof(embank_table_settings).
enum embank_status embank_exported_settings(const char *path,
                                            uint32_t format,
                                            struct embank_table_settings *settings,
                                            size_t size,
                                            uint8_t *found);

// Lists the kept checkpoints of the bank in `path`, oldest first. Another process may have the
// bank open. `count` gets their number; the first `capacity` numbers go to `numbers`.
enum embank_status embank_list_checkpoints(const char *path,
                                           uint64_t *numbers,
                                           size_t capacity,
                                           size_t *count);

// Takes the bank in `path` back to an older checkpoint for good; newer checkpoints are removed. No
// process may have the bank open for writing.
enum embank_status embank_roll_back(const char *path, uint64_t checkpoint);

// Copies a checkpoint of the bank in `path`, or the newest one for 0, to the directory `to`, which
// is then a bank of its own. Another process may have the bank in `path` open.
enum embank_status embank_copy_checkpoint(const char *path, uint64_t checkpoint, const char *to);

// Writes the difference between the checkpoints `from` and `to` (0 means the newest) of the bank
// in `path` to a new file, for embank_apply_delta. Another process may have the bank open.
enum embank_status embank_export_delta(const char *path,
                                       uint64_t from,
                                       uint64_t to,
                                       const char *file);

// Brings the bank in `path`, a copy, to the checkpoint that the delta in `file` leads to, and
// keeps its newest `checkpoints_kept` checkpoints. No process may have the copy open for writing.
// Returns EMBANK_STATUS_DELTA_MISMATCH if the delta does not follow the copy's newest checkpoint.
enum embank_status embank_apply_delta(const char *path, const char *file, size_t checkpoints_kept);

// The bank's counters. `size` is sizeof(embank_bank_stats).
enum embank_status embank_bank_get_stats(const struct embank_bank *bank,
                                         struct embank_bank_stats *stats,
                                         size_t size);

// The table's counters. `size` is sizeof(embank_table_stats).
enum embank_status embank_table_get_stats(const struct embank_table *table,
                                          struct embank_table_stats *stats,
                                          size_t size);

// All counters of the bank as text in the format of Prometheus.
enum embank_status embank_bank_prometheus(const struct embank_bank *bank,
                                          struct embank_bytes **text);

// The bytes, followed by a NUL. Valid until embank_bytes_free. NULL for NULL.
const void *embank_bytes_data(const struct embank_bytes *bytes);

// The number of bytes, without the NUL. 0 for NULL.
size_t embank_bytes_size(const struct embank_bytes *bytes);

// Frees the bytes.
void embank_bytes_free(struct embank_bytes *bytes);

// The number of names. 0 for NULL.
size_t embank_names_count(const struct embank_names *names);

// The name at `place`, from 0, as UTF-8. Valid until embank_names_free. NULL if `place` is not
// below the number of names.
const char *embank_names_at(const struct embank_names *names, size_t place);

// Frees the names.
void embank_names_free(struct embank_names *names);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* EMBANK_H */
