// Embank: embedding tables larger than memory, for training. The C ABI.
//
// Made by cbindgen from bindings/c/src; `EMBANK_BLESS=1 cargo test -p embank-c --test header` makes it anew.
// The guide is docs/c.md, the tutorial bindings/c/examples/train.cpp.
//
// These rules hold for every function:
//
// Errors. A function that can fail returns an embank_status: EMBANK_STATUS_OK is 0, the other numbers never change
// their meaning. embank_last_error_message() says what happened and what to do. Out parameters are written only on
// success, except that a handle's is NULL after a failure, and that buffers of rows are unspecified then. No Rust
// panic crosses: it is EMBANK_STATUS_INTERNAL.
//
// Handles. What a function hands out through a `T **` is yours, and is freed once, by the function that its type
// names, whatever has become of it meanwhile. Handles may be freed in any order: a table, lease or scan keeps its bank
// open, and the bank closes with the last of them. Freeing NULL does nothing. Using a handle after that, or freeing it
// while another call uses it, is undefined.
//
// Buffers. Keys, rows, gradients, names and paths are lent for the time of the call; nothing is kept. A batch is
// `key_count` keys and key_count * dim values, row after row; `..._len` is counted in values, and one that does not
// fit is an error before anything happens. A buffer that is written to must not overlap another of the call; that,
// NULL with a length, and a misaligned pointer are errors. Names are UTF-8, paths are bytes as the system takes them,
// both end with a NUL.
//
// Callbacks. A call that takes one calls it on its own thread, with the `context` that was given beside it, and never
// after it has returned. A callback may be NULL; one that returns anything but 0 ends the call, which is
// EMBANK_STATUS_CANCELLED then. It may call the library, but must not free what the call uses, and must return: longjmp
// or an exception out of it is undefined.
//
// Threads. Every handle may be used by several threads at once, and moved between threads. Functions on a bank, table
// or lease do not exclude each other; calls on one scan take turns.
//
// fork(). A handle is of no use in a child process: calls return EMBANK_STATUS_FORKED and freeing does nothing, so the
// parent's bank comes to no harm. A child does not keep it locked: open the bank in the child, once the parent has
// closed it, or to read only at any time; or use exec.


#ifndef EMBANK_H
#define EMBANK_H

#include <stddef.h>
#include <stdint.h>

// The id that embank_vocabulary_ids_of_numbers and embank_vocabulary_ids_of_bytes give a value without one, with
// EMBANK_UNKNOWN_VALUES_MARK.
#define EMBANK_NO_ID 18446744073709551615ull

// How a call went. Numbers never change their meaning; a newer library may return ones that are not listed here.
typedef enum embank_status {
  // It did what it says.
  EMBANK_STATUS_OK = 0,
  // An argument is NULL, misaligned, overlapping, no UTF-8 or out of its range, or an option or setting is.
  EMBANK_STATUS_INVALID_ARGUMENT = 1,
  // A buffer's length does not fit the keys and the table's dim.
  EMBANK_STATUS_SHAPE_MISMATCH = 2,
  // The table exists with another layout or other initial values.
  EMBANK_STATUS_TABLE_MISMATCH = 3,
  // The bank has no table of this name.
  EMBANK_STATUS_NO_SUCH_TABLE = 4,
  // The table was dropped while this handle or lease of it was around.
  EMBANK_STATUS_TABLE_DROPPED = 5,
  // The bank holds a table that this version can't read.
  EMBANK_STATUS_UNREADABLE_TABLE = 6,
  // A peek with EMBANK_MISSING_ERROR met keys that have no row.
  EMBANK_STATUS_MISSING_ROW = 7,
  // A get waited for the staleness bound until its time was up. Nothing is held; it may be called again.
  EMBANK_STATUS_STALENESS_TIMEOUT = 8,
  // The table has no optimizer that could apply a gradient.
  EMBANK_STATUS_NO_OPTIMIZER = 9,
  // A gradient is NaN or infinite. No row has been changed.
  EMBANK_STATUS_NON_FINITE_GRADIENT = 10,
  // The lease was applied, put or released already.
  EMBANK_STATUS_LEASE_ENDED = 11,
  // A system call on a file failed.
  EMBANK_STATUS_IO = 12,
  // A file is damaged or cut short.
  EMBANK_STATUS_DAMAGED = 13,
  // The bank is open for writing already, in this process or another.
  EMBANK_STATUS_LOCKED = 14,
  // The bank was opened to read only.
  EMBANK_STATUS_READ_ONLY = 15,
  // A checkpoint is being read, so it can't be removed.
  EMBANK_STATUS_BEING_READ = 16,
  // A delta does not lead on from where the bank is.
  EMBANK_STATUS_DELTA_MISMATCH = 17,
  // The memory budget can't hold what it must; the message names one that would do.
  EMBANK_STATUS_BUDGET_TOO_SMALL = 18,
  // The disk quota is used up.
  EMBANK_STATUS_QUOTA_EXCEEDED = 19,
  // An earlier write failed; nothing more is written until the bank is opened again.
  EMBANK_STATUS_POISONED = 20,
  // The store contradicts itself: a mistake in Embank. The last checkpoint stands.
  EMBANK_STATUS_INCONSISTENT = 21,
  // The device was asked for by name and can't be had here.
  EMBANK_STATUS_DEVICE_UNAVAILABLE = 22,
  // An earlier lookahead met an error while it read ahead. This call's keys are not queued.
  EMBANK_STATUS_LOOKAHEAD_FAILED = 23,
  // The handle came from before a fork().
  EMBANK_STATUS_FORKED = 24,
  // A panic: a mistake in Embank. Open the bank again from its last checkpoint.
  EMBANK_STATUS_INTERNAL = 25,
  // A failure that has no number of its own yet; see the message.
  EMBANK_STATUS_OTHER = 26,
  // The lease grew older than the bank's lease_timeout_ms, and a get of its table ended it. Nothing was changed.
  EMBANK_STATUS_LEASE_EXPIRED = 27,
  // A callback ended the call.
  EMBANK_STATUS_CANCELLED = 28,
  // A file can't be imported: it is damaged or doesn't fit the table. The batches before the one that failed are in
  // the table.
  EMBANK_STATUS_UNREADABLE_FILE = 29,
  // The bank's directory was moved, removed or replaced while the bank was open. Nothing is written.
  EMBANK_STATUS_DIRECTORY_MOVED = 30,
  // A key of a table whose keys are a vocabulary's ids is no id of it. Nothing was read or changed.
  EMBANK_STATUS_UNKNOWN_ID = 31,
  // A get would wait for leases of its own thread. Nothing is held. End those leases first; or, if another thread
  // ends them, call embank_lease_hand_over.
  EMBANK_STATUS_SELF_BLOCKED = 32,
  // A row to be put holds a value that is NaN or infinite, or too large for the table's dtype. No row has been
  // changed.
  EMBANK_STATUS_NON_FINITE_ROW = 33,
  // The step of some rows would make them infinite as the table stores them. Those rows are unchanged; all others took
  // their step.
  EMBANK_STATUS_ROW_OVERFLOW = 34,
  // The bank has no vocabulary of this name.
  EMBANK_STATUS_NO_SUCH_VOCABULARY = 35,
  // The vocabulary exists with other settings.
  EMBANK_STATUS_VOCABULARY_MISMATCH = 36,
  // A value has no id in the vocabulary, and its settings give it none.
  EMBANK_STATUS_UNKNOWN_VALUE = 37,
  // The vocabulary was dropped while this handle of it was around.
  EMBANK_STATUS_VOCABULARY_DROPPED = 38,
  // The vocabulary is frozen, so no value can be inserted.
  EMBANK_STATUS_VOCABULARY_FROZEN = 39,
  // The table's keys are ids of a vocabulary that was renumbered, replaced or dropped since.
  EMBANK_STATUS_OTHER_VOCABULARY = 40,
  // The disk has no room for what the call has to write. No row is lost: make room and call again.
  EMBANK_STATUS_DISK_FULL = 41,
} embank_status;

// How a table's values are stored. Rows go in and out as float, whatever they are stored as.
typedef enum embank_dtype {
  // IEEE 754 single precision.
  EMBANK_DTYPE_F32 = 0,
  // IEEE 754 half precision: 11 bits; magnitudes above 65,504 become infinite.
  EMBANK_DTYPE_F16 = 1,
  // The upper half of an F32: 8 bits, and its range.
  EMBANK_DTYPE_BF16 = 2,
  // Whole numbers from -127 to 127 times a scale of the row, an F32.
  EMBANK_DTYPE_INT8 = 3,
} embank_dtype;

// How updates are rounded to a dtype below F32. Initial values and puts always round to the nearest.
typedef enum embank_rounding {
  // Stochastically for INT8, else to the nearest.
  EMBANK_ROUNDING_BY_DTYPE = 0,
  // To the nearest, ties to even. What is below half a step is lost.
  EMBANK_ROUNDING_NEAREST = 1,
  // Up or down by chance, right on average; reproducible. 4 bytes a row.
  EMBANK_ROUNDING_STOCHASTIC = 2,
} embank_rounding;

// Which keys a get gives a row. Of the others it returns the initial values, and drops their gradients.
typedef enum embank_admission {
  // Every key, with its first get.
  EMBANK_ADMISSION_ALWAYS = 0,
  // A key with its admission_gets-th get, counted exactly.
  EMBANK_ADMISSION_AFTER_GETS = 1,
  // Each get of a key without a row gives it one with admission_probability.
  EMBANK_ADMISSION_PROBABILITY = 2,
} embank_admission;

// What applies gradients. docs/optimizers.md has the formulas.
typedef enum embank_optimizer_kind {
  // Nothing: rows are only put.
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

// How new rows are filled.
typedef enum embank_initializer_kind {
  // With zeros.
  EMBANK_INITIALIZER_KIND_ZEROS = 0,
  // With parameters[0].
  EMBANK_INITIALIZER_KIND_CONSTANT = 1,
  // Uniformly between parameters[0] and parameters[1].
  EMBANK_INITIALIZER_KIND_UNIFORM = 2,
  // From a normal distribution with mean parameters[0] and standard deviation parameters[1].
  EMBANK_INITIALIZER_KIND_NORMAL = 3,
  // As Normal, but between parameters[2] and parameters[3].
  EMBANK_INITIALIZER_KIND_TRUNCATED_NORMAL = 4,
  // torch.nn.init.xavier_uniform_, with gain parameters[0].
  EMBANK_INITIALIZER_KIND_XAVIER_UNIFORM = 5,
  // torch.nn.init.xavier_normal_, with gain parameters[0].
  EMBANK_INITIALIZER_KIND_XAVIER_NORMAL = 6,
} embank_initializer_kind;

// Whether rows tell when they were used last, and how often.
typedef enum embank_tracking {
  // They don't.
  EMBANK_TRACKING_NONE = 0,
  // By the system's clock, in minutes.
  EMBANK_TRACKING_MINUTES = 1,
  // By what embank_table_set_time was last given.
  EMBANK_TRACKING_SET_TIME = 2,
} embank_tracking;

// What a bank reads and writes its log with.
typedef enum embank_device {
  // io_uring where the kernel grants it, else threads.
  EMBANK_DEVICE_AUTO = 0,
  // io_uring or an error.
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

// The formats that a table can be written to and read from. docs/export.md tells what lies where in them.
typedef enum embank_file_format {
  // What the path's suffix says: .safetensors, .npy or .parquet.
  EMBANK_FILE_FORMAT_BY_SUFFIX = 0,
  // One file of tensors.
  EMBANK_FILE_FORMAT_SAFETENSORS = 1,
  // NumPy's own: several files, but for a dense table without state.
  EMBANK_FILE_FORMAT_NPY = 2,
  // Columns. A library that was built without it says so.
  EMBANK_FILE_FORMAT_PARQUET = 3,
} embank_file_format;

// What the values of a vocabulary are.
typedef enum embank_value_kind {
  // 64-bit numbers.
  EMBANK_VALUE_KIND_U64 = 0,
  // Byte strings, the empty one too.
  EMBANK_VALUE_KIND_BYTES = 1,
} embank_value_kind;

// What a vocabulary gives a value that has no id.
typedef enum embank_unknown {
  // The call fails with EMBANK_STATUS_UNKNOWN_VALUE.
  EMBANK_UNKNOWN_ERROR = 0,
  // The unknown_id of the settings.
  EMBANK_UNKNOWN_ID = 1,
} embank_unknown;

// What a call does about values that have no id.
typedef enum embank_unknown_values {
  // They get EMBANK_NO_ID.
  EMBANK_UNKNOWN_VALUES_MARK = 0,
  // They get what the vocabulary's settings say.
  EMBANK_UNKNOWN_VALUES_AS_SETTINGS = 1,
  // They are inserted: each gets the next id. In a frozen vocabulary they get what the settings say.
  EMBANK_UNKNOWN_VALUES_INSERT = 2,
} embank_unknown_values;

// An open bank: a directory with many tables under one memory budget. Free with embank_bank_close.
typedef struct embank_bank embank_bank;

// Byte strings that a call hands out. Free with embank_byte_strings_free.
typedef struct embank_byte_strings embank_byte_strings;

// Bytes that a call hands out. Free with embank_bytes_free.
typedef struct embank_bytes embank_bytes;

// The counts that a get took up in the staleness clocks of its rows. Applying, putting and releasing end it, whatever
// they return, except that a wrong argument leaves it as it was. Free with embank_lease_free, which releases it if it
// has not ended.
typedef struct embank_lease embank_lease;

// Names that a call hands out. Free with embank_names_free.
typedef struct embank_names embank_names;

// The rows of a table as the newest checkpoint held them: each once, in no particular order. Free with
// embank_scan_free.
typedef struct embank_scan embank_scan;

// A table of a bank: rows of f32 by 64-bit key. All handles of a table are one table. Free with embank_table_free.
typedef struct embank_table embank_table;

// A vocabulary of an open bank: values and their ids, which are dense and never change. Free with
// embank_vocabulary_free.
typedef struct embank_vocabulary embank_vocabulary;

// How to open a bank. Call embank_bank_options_init, then change what you like.
typedef struct embank_bank_options {
  // Set by embank_bank_options_init.
  size_t size;
  // Memory for everything that the bank keeps: rows, index, buffers and the lookahead queue, in bytes.
  // Default: 1 GiB, or a quarter of the memory limit of the process's control group, if that is less.
  uint64_t memory_budget_bytes;
  // How many of the newest checkpoints stay. Default: 2.
  uint64_t checkpoints_kept;
  // How long a get waits at a staleness bound before it fails, in milliseconds. Default: 60,000.
  uint64_t wait_timeout_ms;
  // How old a lease may become, in milliseconds. One that is older expires with the next get of its table, of
  // whatever rows: its counts are given back, and applying or putting it is EMBANK_STATUS_LEASE_EXPIRED. Releasing
  // and freeing it do nothing, and are no error. 0 means never. Default: 0.
  uint64_t lease_timeout_ms;
  // The most keys that looking ahead may have pending. 0 turns it off, negative means what 1/32 of the budget holds.
  // Default: -1.
  int64_t lookahead_queue_keys;
  // The most that the log may take on disk, in bytes. 0 means no quota. Default: 0.
  uint64_t disk_quota_bytes;
  // The most that compaction in the background reads and writes, in bytes a second. 0 means no limit. Default: 0.
  uint64_t compaction_throttle_bytes_per_s;
  // The log's length over its rows' beyond which compaction in the background sets to work, 1.1 to 10. Default: 1.4.
  double space_amplification_target;
  // One of embank_device. Default: EMBANK_DEVICE_AUTO.
  uint32_t device;
  // Whether a thread gives disk space back in the background, 0 or 1; else only embank_bank_compact does.
  // Default: 0.
  uint32_t background_compaction;
  // Whether a bank is made where there is none, 0 or 1. With 0, a mistyped path, or a file system that is not mounted,
  // is EMBANK_STATUS_INVALID_ARGUMENT. Default: 1.
  uint32_t create;
  // Must be 0.
  uint32_t reserved;
} embank_bank_options;

// An optimizer with its numbers; those that its kind does not have are zeros. Make one with embank_sgd and so on,
// which fill in the usual defaults, and change what you like. Kind, initial accumulator, whether there is
// momentum and whether Adagrad's rate decays are the table's for good; the rest may change.
typedef struct embank_optimizer {
  // One of embank_optimizer_kind.
  uint32_t kind;
  // 0 or 1: Nesterov momentum. SGD.
  uint32_t nesterov;
  // Not negative; FTRL's is above 0.
  double learning_rate;
  // All but FTRL.
  double weight_decay;
  // SGD.
  double momentum;
  // SGD, with momentum.
  double dampening;
  // Adagrad, not row-wise.
  double lr_decay;
  // Adam, AdamW.
  double beta1;
  // Adam, AdamW.
  double beta2;
  // Keeps a division finite. Adagrad, Adam, AdamW.
  double eps;
  // Where a new row's accumulators start. Adagrad, FTRL.
  double initial_accumulator;
  // FTRL.
  double beta;
  // FTRL.
  double l1;
  // FTRL.
  double l2;
  // Zeros: room for the numbers of other optimizers.
  double reserved[5];
} embank_optimizer;

// How new rows are filled, with its numbers. Make one with embank_uniform and so on; all zeros are one, too.
typedef struct embank_initializer {
  // One of embank_initializer_kind.
  uint32_t kind;
  // As the kind says; the others are zeros.
  float parameters[7];
  // Of the Xavier kinds; 0 means the table's dim. For torch, it is the dim.
  uint64_t fan_in;
  // Of the Xavier kinds; 0 means the table's dim. For torch, it is the number of rows.
  uint64_t fan_out;
} embank_initializer;

// The settings of a table. Call embank_table_settings_init, set the dim, then change what you like. dim, dtypes,
// rounding, initializer, seed, tracking, admission and what lies beside a row for the optimizer are the table's for
// good; a table that exists is only given out if they are the same. The others hold from the latest call on.
typedef struct embank_table_settings {
  // Set by embank_table_settings_init.
  size_t size;
  // Seed of the initial values. Default: 0.
  uint64_t seed;
  // A get waits while more than this many gets of its row are outstanding: 0 is bulk-synchronous, k
  // stale-synchronous, negative asynchronous, which never waits. Default: -1.
  int64_t staleness_bound;
  // Values per row. Default: 0, which has to be changed.
  uint32_t dim;
  // One of embank_dtype. Default: EMBANK_DTYPE_F32.
  uint32_t dtype;
  // One of embank_tracking; 8 bytes a row. Default: EMBANK_TRACKING_NONE.
  uint32_t tracking;
  // How the optimizer's vectors are stored: one of embank_dtype but INT8. Default: EMBANK_DTYPE_F32.
  uint32_t state_dtype;
  // The longest gradient of a row: one whose L2 norm is above it is scaled down to it. 0 means no limit.
  // Default: 0.
  double clip_row_norm;
  // What applies gradients. Default: nothing.
  struct embank_optimizer optimizer;
  // How new rows are filled. Default: uniformly between -0.05 and 0.05.
  struct embank_initializer initializer;
  // How updates are rounded: one of embank_rounding. Default: EMBANK_ROUNDING_BY_DTYPE.
  uint32_t rounding;
  // Which keys a get gives a row: one of embank_admission. Default: EMBANK_ADMISSION_ALWAYS.
  uint32_t admission;
  // Of EMBANK_ADMISSION_AFTER_GETS: 1 or more. Default: 0.
  uint32_t admission_gets;
  // Of EMBANK_ADMISSION_PROBABILITY: above 0, at most 1. Default: 0.
  float admission_probability;
} embank_table_settings;

// The settings of a vocabulary. Call embank_vocabulary_settings_init, then change what you like. They are the
// vocabulary's for good; one that exists is only given out if they are the same.
typedef struct embank_vocabulary_settings {
  // Set by embank_vocabulary_settings_init.
  size_t size;
  // The first value's id, at most 2^62; those below are yours, for padding and unknown values. Default: 0.
  uint64_t first_id;
  // Of EMBANK_UNKNOWN_ID: below first_id. Default: 0.
  uint64_t unknown_id;
  // One of embank_value_kind. Default: EMBANK_VALUE_KIND_U64.
  uint32_t kind;
  // One of embank_unknown. Default: EMBANK_UNKNOWN_ERROR.
  uint32_t unknown;
  // The longest byte string that it takes, 1 to 131,072. Default: 1,024.
  uint32_t value_bytes_max;
  // 0 or 1: it counts how often values come. Default: 0.
  uint32_t counts;
} embank_vocabulary_settings;

// Gets the keys of a batch of rows, lent until it returns. Anything but 0 ends the call.
typedef int32_t (*embank_on_keys)(void *context, const uint64_t *keys, size_t key_count);

// Gets told how far a call is, in rows, after each batch of them. Anything but 0 ends the call.
typedef int32_t (*embank_on_progress)(void *context, uint64_t rows_done, uint64_t rows_total);

// Which rows are to go: those for which every condition that is set holds. Call embank_eviction_init, then set one at
// least.
typedef struct embank_eviction {
  // Set by embank_eviction_init.
  size_t size;
  // Rows whose last use lies so far back or further: in minutes, or in the unit of embank_table_set_time, which is
  // to be called first, for the time is 0 after an open. For tables that track it. Negative means any age.
  // Default: -1.
  int64_t unused_for;
  // Rows with fewer uses than this. For tables that track it. Negative means any number. Default: -1.
  int64_t used_fewer_than;
  // Rows whose vector has an L2 norm below this. 0 means any norm. Default: 0.
  float norm_below;
  // 0 or 1: only counts, and hands out keys. Default: 0.
  uint32_t dry_run;
  // Gets the keys that went, or would. Default: NULL.
  embank_on_keys gone;
  // Gets told how far it is. Default: NULL.
  embank_on_progress progress;
  // What both get. Default: NULL.
  void *context;
} embank_eviction;

// What an eviction did, or would have.
typedef struct embank_evicted {
  // sizeof(embank_evicted), as it was passed.
  size_t size;
  // The checkpoint whose rows were gone through.
  uint64_t checkpoint;
  // How many those were.
  uint64_t examined;
  // Rows that went, or would.
  uint64_t rows;
  // Rows that would have gone but for leases on them.
  uint64_t leased;
} embank_evicted;

// What an export writes. Call embank_export_options_init, then change what you like.
typedef struct embank_export_options {
  // Set by embank_export_options_init.
  size_t size;
  // With dense: how many rows the matrix has; a key beyond is an error. 0 means largest key + 1. Default: 0.
  uint64_t dense_rows;
  // One of embank_file_format. Default: EMBANK_FILE_FORMAT_BY_SUFFIX.
  uint32_t format;
  // 0 or 1: also the optimizer's state, so that an import restores training exactly, and of a table with tracking
  // each row's uses and last use. Default: 0.
  uint32_t state;
  // 0 or 1: one matrix in order of the keys, without them; not for Parquet. Default: 0.
  uint32_t dense;
  // With dense, 0 or 1: keys without a row get their initial values; else they are an error. Default: 0.
  uint32_t fill_missing;
  // Gets told how far it is. Default: NULL.
  embank_on_progress progress;
  // What it gets. Default: NULL.
  void *context;
} embank_export_options;

// What an import takes of a file. Call embank_import_options_init, then change what you like.
typedef struct embank_import_options {
  // Set by embank_import_options_init.
  size_t size;
  // The tensor or column of the keys, for npy the file. NULL means `keys` or `key`; where there is neither, row i is
  // the row of key i if nothing else in the file may be keys, and else the file is refused. Default: NULL.
  const char *keys;
  // The tensor or column of the vectors, for npy the file. NULL means `rows` or `vector`, or the only matrix.
  // Default: NULL.
  const char *rows;
  // One of embank_file_format. Default: EMBANK_FILE_FORMAT_BY_SUFFIX.
  uint32_t format;
  // 0 or 1: the optimizer's state is taken too, and in a table with tracking each row's uses and last use, if the
  // file has them. Default: 1.
  uint32_t state;
  // 0 or 1: NaN and infinite values are taken; else they are an error. Default: 0.
  uint32_t non_finite;
  // 0 or 1: row i is the row of key first_key + i, whatever else is in the file; rows of a further file go on from
  // there. Default: 0.
  uint32_t by_position;
  // Gets told how far it is. Default: NULL.
  embank_on_progress progress;
  // What it gets. Default: NULL.
  void *context;
  // With by_position: the key of the first row. Default: 0.
  uint64_t first_key;
} embank_import_options;

// What an export wrote.
typedef struct embank_exported {
  // sizeof(embank_exported), as it was passed.
  size_t size;
  // The checkpoint whose rows they are.
  uint64_t checkpoint;
  // Rows that came from the table.
  uint64_t rows;
  // Rows of a dense file that have initial values.
  uint64_t filled_rows;
  // Bytes of all files.
  uint64_t bytes;
} embank_exported;

// What an import put.
typedef struct embank_imported {
  // sizeof(embank_imported), as it was passed.
  size_t size;
  // Rows of the file.
  uint64_t rows;
  // 1 if they came with the optimizer's state, else 0.
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
  // How long they waited together, in microseconds.
  uint64_t wait_us;
  // Gets that gave up waiting.
  uint64_t timeouts;
  // Leases that were dropped or expired and whose counts could not all be given back.
  uint64_t release_failures;
  // Leases that grew older than lease_timeout and were declared expired.
  uint64_t leases_expired;
  // Checkpoints taken.
  uint64_t checkpoints;
  // Gauge: duration of the last checkpoint, in microseconds.
  uint64_t last_checkpoint_us;
  // Keys asked for. Equal keys of one call count once.
  uint64_t lookahead_requested;
  // Keys that were in mutable memory already, or in no table, when they were asked for.
  uint64_t lookahead_resident;
  // Keys put in the queue.
  uint64_t lookahead_queued;
  // Keys that were pending already when they were asked for again.
  uint64_t lookahead_merged;
  // Keys turned away because the queue was full.
  uint64_t lookahead_dropped;
  // Rows brought from disk, or from the read-only region, into mutable memory.
  uint64_t lookahead_moved;
  // Rows that were moved or kept, and then used from memory.
  uint64_t lookahead_on_time;
  // Rows in memory that were copied to its mutable part because they were about to leave it unused. A row may be
  // kept more than once for one announcement.
  uint64_t lookahead_kept;
  // Keys whose turn came too late: another call had got the row, and may have waited for the disk.
  uint64_t lookahead_late;
  // Rows that were moved or kept, and left memory without a use.
  uint64_t lookahead_wasted;
  // Keys given up before their turn: by embank_bank_cancel_lookahead, or because
  // their table was dropped.
  uint64_t lookahead_cancelled;
  // Rows left on disk because reading failed, or because the disk quota left no room.
  uint64_t lookahead_failed;
  // Gauge: keys that wait for their turn or are being read.
  uint64_t lookahead_pending;
  // Gauge: the most keys that may be pending.
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
  // How long the thread that reads ahead was at work, in microseconds: on bursts, on prefetches, and on rows that it
  // keeps in memory.
  uint64_t lookahead_reading_us;
  // Gauge: the number of batches to look ahead that an AutoDepth has chosen last; 0 without one.
  uint64_t lookahead_depth;
  // Gauge: memory that the queue may take, in bytes; part of the bank's budget.
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
  // How long they waited together, in microseconds.
  uint64_t wait_us;
  // Gets that gave up waiting.
  uint64_t timeouts;
  // Leases that were dropped or expired and whose counts could not all be given back.
  uint64_t release_failures;
  // Leases that grew older than lease_timeout and were declared expired.
  uint64_t leases_expired;
  // Rows that Gets did not make, as their keys were not admitted: their gradients were dropped.
  uint64_t not_admitted_rows;
  // Steps of rows whose optimizer state is at the largest value that its dtype holds, and stays there.
  uint64_t saturated_rows;
} embank_table_stats;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What the last failing call on this thread met, as UTF-8 text that names the thing and the cure; "" if none failed.
// Valid until the next failing call on this thread, or the thread's end. Copy it where calls move between threads,
// as in languages with threads of their own.
const char *embank_last_error_message(void);

// The name of a status without its prefix, such as "LOCKED"; "UNKNOWN" for a number that this library doesn't know.
// Valid for ever.
const char *embank_status_name(int32_t status);

// The library's version, such as "0.1.0". Valid for ever.
const char *embank_version(void);

// Sets every option to its default. `size` is sizeof(embank_bank_options).
enum embank_status embank_bank_options_init(struct embank_bank_options *options, size_t size);

// torch.optim.SGD without momentum and weight decay.
struct embank_optimizer embank_sgd(double learning_rate);

// torch.optim.Adagrad: eps 1e-10, initial accumulator 0, no decay.
struct embank_optimizer embank_adagrad(double learning_rate);

// Adagrad with one accumulator a row, FBGEMM's EXACT_ROWWISE_ADAGRAD: eps 1e-8, initial accumulator 0.
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

// Sets every setting to its default, the dim to 0. `size` is sizeof(embank_table_settings).
enum embank_status embank_table_settings_init(struct embank_table_settings *settings, size_t size);

// Opens the bank in the directory `path`, or creates it there. An existing bank comes back as its newest completed
// checkpoint left it; what was written after that is gone. `options` may be NULL for defaults.
enum embank_status embank_bank_open(const char *path,
                                    const struct embank_bank_options *options,
                                    struct embank_bank **bank);

// Opens the bank in the directory `path` to read only, at the checkpoint of that number or, for 0, at the newest one,
// beside a process that writes it or none. Peek and scan; whatever would write is EMBANK_STATUS_READ_ONLY. The writer
// keeps the checkpoint as long as the bank is at it. Of `options`, which may be NULL, memory budget and device count.
enum embank_status embank_bank_open_read_only(const char *path,
                                              const struct embank_bank_options *options,
                                              uint64_t checkpoint,
                                              struct embank_bank **bank);

// Frees the handle. The bank closes when its tables, leases and scans are freed too; another can't open it for writing
// before that. Takes no checkpoint: changed_since_checkpoint of embank_bank_get_stats says how much would be lost, and
// embank_bank_checkpoint keeps it.
void embank_bank_close(struct embank_bank *bank);

// Opens the table `name`, or creates it. A new table is durable with the next checkpoint. A table whose keys are a
// vocabulary's ids is made by embank_bank_table_of_vocabulary; this function opens one that exists.
enum embank_status embank_bank_table(const struct embank_bank *bank,
                                     const char *name,
                                     const struct embank_table_settings *settings,
                                     struct embank_table **table);

// As embank_bank_table, for a table whose keys are the ids of the vocabulary of this name: the table takes no other
// keys, and can't be opened once the vocabulary is renumbered or replaced.
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

// Opens the vocabulary `name` as it is.
enum embank_status embank_bank_open_vocabulary(const struct embank_bank *bank,
                                               const char *name,
                                               struct embank_vocabulary **vocabulary);

// Drops the vocabulary `name`: its values are gone at once, for good with the next checkpoint. Tables that were made for
// it stay, and can't be opened. Handles of it are still to be freed.
enum embank_status embank_bank_drop_vocabulary(const struct embank_bank *bank,
                                               const char *name);

// Lists the names of the bank's vocabularies, in order.
enum embank_status embank_bank_vocabularies(const struct embank_bank *bank,
                                            struct embank_names **names);

// Opens the table `name` as it is.
enum embank_status embank_bank_open_table(const struct embank_bank *bank,
                                          const char *name,
                                          struct embank_table **table);

// Drops the table `name`: its rows are gone at once, for good with the next checkpoint. Handles and leases of it are
// still to be freed. The name may be used again.
enum embank_status embank_bank_drop_table(const struct embank_bank *bank,
                                          const char *name);

// Lists the names of the bank's tables, in order.
enum embank_status embank_bank_tables(const struct embank_bank *bank, struct embank_names **names);

// Makes all tables as they are, and the caller's own bytes, durable together. When the call returns, everything is on
// stable storage; a crash at any later moment recovers at least this checkpoint. `number` may be NULL.
enum embank_status embank_bank_checkpoint(const struct embank_bank *bank,
                                          const void *blob,
                                          size_t blob_size,
                                          uint64_t *number);

// The checkpoint that opening the bank recovered, or that a bank which is open to read only is at, with its blob.
// Without one, the number is 0 and the blob NULL. Either place may be NULL.
enum embank_status embank_bank_recovered(const struct embank_bank *bank,
                                         uint64_t *number,
                                         struct embank_bytes **blob);

// Moves a bank that is open to read only on to its newest checkpoint. `number`, of the one that it is at then, may be
// NULL.
enum embank_status embank_bank_refresh(const struct embank_bank *bank,
                                       uint64_t *number);

// Gives disk space back now, as far as no kept checkpoint holds it. Other calls go on meanwhile.
enum embank_status embank_bank_compact(const struct embank_bank *bank);

// Forgets what lookahead has queued and not begun to read. `cancelled`, how many keys that were, may be NULL.
enum embank_status embank_bank_cancel_lookahead(const struct embank_bank *bank,
                                                size_t *cancelled);

// Waits until nothing is pending in the lookahead queue; `idle` is 1 then, and 0 if `timeout_ms` passed first. For
// tests and measurements: training need not wait.
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

// The name of the vocabulary whose ids are the table's keys; NULL if they are no vocabulary's. Free with
// embank_bytes_free.
enum embank_status embank_table_vocabulary(const struct embank_table *table,
                                           struct embank_bytes **name);

// Gets rows for training: one per key, duplicates included. Missing rows are inserted with their initial values. The
// staleness clock of each distinct key goes up by one until the lease ends; if a clock is above the table's bound, the
// call waits, at most the bank's wait timeout.
enum embank_status embank_table_get(const struct embank_table *table,
                                    const uint64_t *keys,
                                    size_t key_count,
                                    float *rows,
                                    size_t rows_len,
                                    struct embank_lease **lease);

// As embank_table_get, but waits at most `timeout_ms` milliseconds in place of the bank's wait timeout. With 0 it fails
// at once with EMBANK_STATUS_STALENESS_TIMEOUT if a clock is above the bound.
enum embank_status embank_table_get_within(const struct embank_table *table,
                                           const uint64_t *keys,
                                           size_t key_count,
                                           float *rows,
                                           size_t rows_len,
                                           uint64_t timeout_ms,
                                           struct embank_lease **lease);

// Gets one row per distinct key for training, in order of first appearance. `rows` may be longer than that:
// key_count * dim values always do. How many distinct keys there are goes to `distinct_count`, which may be NULL;
// which they are is told by embank_lease_distinct. Otherwise as embank_table_get.
enum embank_status embank_table_get_distinct(const struct embank_table *table,
                                             const uint64_t *keys,
                                             size_t key_count,
                                             float *rows,
                                             size_t rows_len,
                                             size_t *distinct_count,
                                             struct embank_lease **lease);

// Reads rows for evaluation, one per key. Touches no clock, waits for none, and writes nothing. `missing` is one of
// embank_missing. `present`, key_count bytes, gets 1 for each key that has a row and 0 for the others; it may be NULL.
enum embank_status embank_table_peek(const struct embank_table *table,
                                     const uint64_t *keys,
                                     size_t key_count,
                                     float *rows,
                                     size_t rows_len,
                                     uint32_t missing,
                                     uint8_t *present);

// What rows start with, whether they are there or not: a pure function of the table's seed and name, key and column.
enum embank_status embank_table_initial(const struct embank_table *table,
                                        const uint64_t *keys,
                                        size_t key_count,
                                        float *rows,
                                        size_t rows_len);

// Replaces or inserts rows without a lease; of equal keys the last one wins. Optimizer state stays. Touches no clock.
enum embank_status embank_table_put(const struct embank_table *table,
                                    const uint64_t *keys,
                                    size_t key_count,
                                    const float *rows,
                                    size_t rows_len);

// Takes a step of the table's optimizer without a lease; gradients of equal keys are summed first. Missing rows start
// from their initial values. Touches no clock.
enum embank_status embank_table_apply_gradients(const struct embank_table *table,
                                                const uint64_t *keys,
                                                size_t key_count,
                                                const float *gradients,
                                                size_t gradients_len);

// Deletes rows. `deleted`, how many there were, may be NULL. Leases on them lose their counts and their gradients for
// them, also where a row is made anew.
enum embank_status embank_table_delete(const struct embank_table *table,
                                       const uint64_t *keys,
                                       size_t key_count,
                                       uint64_t *deleted);

// Says which rows there are: `present`, key_count bytes, gets 1 or 0 for each key. Touches no clock.
enum embank_status embank_table_contains(const struct embank_table *table,
                                         const uint64_t *keys,
                                         size_t key_count,
                                         uint8_t *present);

// Has the rows of `keys` that are on disk brought into memory soon. Never waits for the disk: what does not fit the
// queue is dropped, and a worker does the rest. `accepted`, how many keys are on their way, may be NULL.
enum embank_status embank_table_lookahead(const struct embank_table *table,
                                          const uint64_t *keys,
                                          size_t key_count,
                                          size_t *accepted);

// The staleness clock of a row: gets whose update has not come yet. -1 if the row is missing.
enum embank_status embank_table_outstanding(const struct embank_table *table,
                                            uint64_t key,
                                            int64_t *outstanding);

// The staleness bound; -1 is none.
enum embank_status embank_table_staleness_bound(const struct embank_table *table, int64_t *bound);

// Sets the staleness bound of all handles of the table; negative is none. Gets that wait look at the new one. Not
// durable.
enum embank_status embank_table_set_staleness_bound(const struct embank_table *table,
                                                    int64_t bound);

// Sets the learning rate of all handles of the table, for batches applied from now on. Not durable.
enum embank_status embank_table_set_learning_rate(const struct embank_table *table,
                                                  double learning_rate);

// Sets the time that rows used from now on tell: an epoch, thousands of steps. The table's tracking is
// EMBANK_TRACKING_SET_TIME.
enum embank_status embank_table_set_time(const struct embank_table *table,
                                         uint32_t time);

// Sets the numbers of the optimizer, for all handles of the table and batches applied from now on. Its kind, initial
// accumulator, whether there is momentum and whether Adagrad's rate decays must be the table's. Not durable.
enum embank_status embank_table_set_optimizer(const struct embank_table *table,
                                              struct embank_optimizer optimizer);

// Goes through the table as the newest checkpoint holds it, while training goes on. Disk space is not given back until
// the scan is freed.
enum embank_status embank_table_scan(const struct embank_table *table,
                                     struct embank_scan **scan);

// Fills the settings with their defaults. `size` is sizeof(embank_vocabulary_settings).
enum embank_status embank_vocabulary_settings_init(struct embank_vocabulary_settings *settings,
                                                   size_t size);

// Frees the handle.
void embank_vocabulary_free(struct embank_vocabulary *vocabulary);

// The vocabulary's settings. `size` is sizeof(embank_vocabulary_settings).
enum embank_status embank_vocabulary_get_settings(const struct embank_vocabulary *vocabulary,
                                                  struct embank_vocabulary_settings *settings,
                                                  size_t size);

// The number of values, and the id that the next new one gets. Either place may be NULL.
enum embank_status embank_vocabulary_len(const struct embank_vocabulary *vocabulary,
                                         uint64_t *len,
                                         uint64_t *next_id);

// 1: no value is inserted from now on; 0: it grows again.
enum embank_status embank_vocabulary_set_frozen(const struct embank_vocabulary *vocabulary,
                                                uint32_t frozen);

// The ids of `count` numbers, in a vocabulary of EMBANK_VALUE_KIND_U64. `unknown` is one of embank_unknown_values.
enum embank_status embank_vocabulary_ids_of_numbers(const struct embank_vocabulary *vocabulary,
                                                    const uint64_t *values,
                                                    size_t count,
                                                    uint32_t unknown,
                                                    uint64_t *ids);

// The ids of `count` byte strings, in a vocabulary of EMBANK_VALUE_KIND_BYTES. They lie one after the other in `bytes`:
// string i from offsets[i] to offsets[i + 1], so there are count + 1 offsets, as in Arrow's large strings. `unknown` is
// one of embank_unknown_values.
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

// How many there are. 0 for NULL.
size_t embank_byte_strings_count(const struct embank_byte_strings *strings);

// The byte string at `place`, from 0, without a NUL behind it; its length goes to `size`, which may be NULL. Valid until
// the byte strings are freed. NULL where there is none.
const char *embank_byte_strings_at(const struct embank_byte_strings *strings,
                                   size_t place,
                                   size_t *size);

// Frees the byte strings.
void embank_byte_strings_free(struct embank_byte_strings *strings);

// Applies one gradient per key of the batch with the table's optimizer; those of equal keys are summed first. The next
// checkpoint makes it durable.
enum embank_status embank_lease_apply(const struct embank_lease *lease,
                                      const float *gradients,
                                      size_t gradients_len);

// Applies one gradient per distinct key, in the order of embank_lease_distinct.
enum embank_status embank_lease_apply_distinct(const struct embank_lease *lease,
                                               const float *gradients,
                                               size_t gradients_len);

// Replaces the rows, one per key of the batch; of equal keys the last one wins. Optimizer state stays.
enum embank_status embank_lease_put(const struct embank_lease *lease,
                                    const float *rows,
                                    size_t rows_len);

// Replaces the rows, one per distinct key, in the order of embank_lease_distinct.
enum embank_status embank_lease_put_distinct(const struct embank_lease *lease,
                                             const float *rows,
                                             size_t rows_len);

// Gives the counts back without an update, and says if that failed. Of a lease that has ended, there are none left.
enum embank_status embank_lease_release(const struct embank_lease *lease);

// Says that another thread than the one that took it ends the lease. A get of this thread that its count blocks then
// waits, where it would fail with EMBANK_STATUS_SELF_BLOCKED otherwise. Call it before the other thread gets the lease;
// needed only until some lease of the bank has been ended by another thread than the one that took it.
enum embank_status embank_lease_hand_over(const struct embank_lease *lease);

// The distinct keys of the batch in order of first appearance, and each key's place among them: place[i] is that of
// keys[i]. `count` is how many there are. `keys` and `places` may be NULL; else the first holds at least that many,
// and the second as many as the batch has keys.
enum embank_status embank_lease_distinct(const struct embank_lease *lease,
                                         uint64_t *keys,
                                         size_t keys_len,
                                         uint32_t *places,
                                         size_t places_len,
                                         size_t *count);

// Releases the lease, if it has not ended, and frees the handle.
void embank_lease_free(struct embank_lease *lease);

// Fills `keys` and `rows`, which holds capacity * dim values, with the next rows. `count` is how many those are: fewer
// than `capacity` at the end only, 0 after the last.
enum embank_status embank_scan_next(const struct embank_scan *scan,
                                    uint64_t *keys,
                                    size_t capacity,
                                    float *rows,
                                    size_t rows_len,
                                    size_t *count);

// The number of the checkpoint, how many rows it has in all, and how many are still to come. Any place may be NULL.
enum embank_status embank_scan_progress(const struct embank_scan *scan,
                                        uint64_t *checkpoint,
                                        uint64_t *rows,
                                        uint64_t *remaining);

// Ends the scan and frees the handle.
void embank_scan_free(struct embank_scan *scan);

// Sets every field to its default: no condition. `size` is sizeof(embank_eviction).
enum embank_status embank_eviction_init(struct embank_eviction *eviction, size_t size);

// Deletes rows by age, frequency or norm, in memory and on disk, while training goes on: of those that the newest
// checkpoint holds, the ones for which every condition holds now. Rows that were made after it, and rows with
// outstanding leases, stay. Durable with the next checkpoint. After EMBANK_STATUS_CANCELLED and other failures, what
// went is gone. `evicted` may be NULL; `evicted_size` is sizeof(embank_evicted).
enum embank_status embank_table_evict(const struct embank_table *table,
                                      const struct embank_eviction *eviction,
                                      struct embank_evicted *evicted,
                                      size_t evicted_size);

// Sets every option to its default. `size` is sizeof(embank_export_options).
enum embank_status embank_export_options_init(struct embank_export_options *options, size_t size);

// Sets every option to its default. `size` is sizeof(embank_import_options).
enum embank_status embank_import_options_init(struct embank_import_options *options, size_t size);

// Writes the table, as the newest checkpoint holds it, to a file, in constant memory, while training goes on. When the
// call returns, the file is complete and on stable storage, in place of an older one; after a failure there is nothing
// of it. `options` may be NULL for defaults, and so may `exported`; `exported_size` is sizeof(embank_exported).
enum embank_status embank_table_export(const struct embank_table *table,
                                       const char *path,
                                       const struct embank_export_options *options,
                                       struct embank_exported *exported,
                                       size_t exported_size);

// Puts the rows of a file into the table, in constant memory. An export wrote it, or it is a matrix that another
// program made. A row that is there is replaced. Durable with the next checkpoint; after a failure the batches before
// it are in the table. `options` may be NULL for defaults, and so may `imported`; `imported_size` is
// sizeof(embank_imported).
enum embank_status embank_table_import(const struct embank_table *table,
                                       const char *path,
                                       const struct embank_import_options *options,
                                       struct embank_imported *imported,
                                       size_t imported_size);

// As embank_table_import, of `path_count` files or directories, one after another. All of them are looked at before the
// first row is put.
enum embank_status embank_table_import_files(const struct embank_table *table,
                                             const char *const *paths,
                                             size_t path_count,
                                             const struct embank_import_options *options,
                                             struct embank_imported *imported,
                                             size_t imported_size);

// The settings of the table that a file was exported from, for embank_bank_table. `found` is 1 then, and 0 where the
// file doesn't tell them, which leaves `settings` as they are. `format` is one of embank_file_format. `settings` may
// be NULL; `size` is sizeof(embank_table_settings).
enum embank_status embank_exported_settings(const char *path,
                                            uint32_t format,
                                            struct embank_table_settings *settings,
                                            size_t size,
                                            uint8_t *found);

// Lists the kept checkpoints of the bank in `path`, oldest first, beside whoever has it open. `count` is how many
// there are; as many of their numbers as `capacity` allows go to `numbers`.
enum embank_status embank_list_checkpoints(const char *path,
                                           uint64_t *numbers,
                                           size_t capacity,
                                           size_t *count);

// Takes the bank in `path`, which nobody has open for writing, back to an older checkpoint for good; the newer ones
// are gone.
enum embank_status embank_roll_back(const char *path,
                                    uint64_t checkpoint);

// Copies a checkpoint or, for 0, the newest one of the bank in `path` to the directory `to`, which is a bank of its
// own then. Works beside whoever has the bank open.
enum embank_status embank_copy_checkpoint(const char *path,
                                          uint64_t checkpoint,
                                          const char *to);

// Writes what lies between the checkpoints `from` and `to` (0 means the newest) of the bank in `path` to a new file,
// for embank_apply_delta. Works beside whoever has the bank open.
enum embank_status embank_export_delta(const char *path,
                                       uint64_t from,
                                       uint64_t to,
                                       const char *file);

// Takes the bank in `path`, a copy that nobody has open for writing, to the checkpoint that the delta in `file`
// leads to, and keeps the newest `checkpoints_kept`. EMBANK_STATUS_DELTA_MISMATCH if it does not follow the bank's
// newest one.
enum embank_status embank_apply_delta(const char *path,
                                      const char *file,
                                      size_t checkpoints_kept);

// The bank's counters. `size` is sizeof(embank_bank_stats).
enum embank_status embank_bank_get_stats(const struct embank_bank *bank,
                                         struct embank_bank_stats *stats,
                                         size_t size);

// The table's counters. `size` is sizeof(embank_table_stats).
enum embank_status embank_table_get_stats(const struct embank_table *table,
                                          struct embank_table_stats *stats,
                                          size_t size);

// All numbers of the bank as text that Prometheus scrapes.
enum embank_status embank_bank_prometheus(const struct embank_bank *bank,
                                          struct embank_bytes **text);

// The bytes, with a NUL behind them; valid until they are freed. NULL for NULL.
const void *embank_bytes_data(const struct embank_bytes *bytes);

// How many bytes there are, without the NUL. 0 for NULL.
size_t embank_bytes_size(const struct embank_bytes *bytes);

// Frees the bytes.
void embank_bytes_free(struct embank_bytes *bytes);

// How many names there are. 0 for NULL.
size_t embank_names_count(const struct embank_names *names);

// The name at `place`, from 0, as UTF-8; valid until the names are freed. NULL where there is none.
const char *embank_names_at(const struct embank_names *names, size_t place);

// Frees the names.
void embank_names_free(struct embank_names *names);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* EMBANK_H */
