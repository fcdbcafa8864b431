/* Tests every function of embank.h, and that each error has its status. The Rust test
 * bindings/c/tests/programs.rs builds this C11 program with the static library. It runs the program
 * with two arguments: an empty folder, and a bank with a table that another program made. A failed
 * check prints its line and ends the test. */

#define _POSIX_C_SOURCE 200809L

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "embank.h"

#define CHECK(condition)                                                                                      \
    do {                                                                                                      \
        if (!(condition)) {                                                                                   \
            fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition,                    \
                    embank_last_error_message());                                                             \
            exit(1);                                                                                          \
        }                                                                                                     \
    } while (0)

#define GOOD(call) CHECK((call) == EMBANK_STATUS_OK)

/* Checks the status, and that the message has `word` in it. */
#define BAD(status, word, call)                                                                               \
    do {                                                                                                      \
        CHECK((call) == (status));                                                                            \
        CHECK(strstr(embank_last_error_message(), word) != NULL);                                             \
    } while (0)

static char folder[512];

/* Returns a path in the test's folder. The text is valid until the fourth call after this one. */
static const char *in_folder(const char *name) {
    static char paths[4][1024];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static embank_bank *open_bank(const char *name) {
    embank_bank_options options;
    embank_bank *bank;
    GOOD(embank_bank_options_init(&options, sizeof options));
    options.memory_budget_bytes = 4 << 20;
    options.wait_timeout_ms = 20;
    GOOD(embank_bank_open(in_folder(name), &options, &bank));
    return bank;
}

static embank_table_settings settings_of(uint32_t dim) {
    embank_table_settings settings;
    GOOD(embank_table_settings_init(&settings, sizeof settings));
    settings.dim = dim;
    settings.optimizer = embank_sgd(0.5);
    settings.initializer = embank_constant(1.0f);
    return settings;
}

static embank_table *table_of(embank_bank *bank, const char *name) {
    embank_table_settings settings = settings_of(2);
    embank_table *table;
    GOOD(embank_bank_table(bank, name, &settings, &table));
    return table;
}

static void rows_and_leases(void) {
    embank_bank *bank = open_bank("rows");
    embank_table *table = table_of(bank, "user");
    const uint64_t keys[3] = {7, UINT64_MAX, 7};
    float rows[6] = {0};
    const float ones[6] = {1, 1, 1, 1, 1, 1};
    embank_lease *lease;
    int64_t outstanding;

    CHECK(strcmp(embank_table_name(table), "user") == 0 && embank_table_dim(table) == 2);
    GOOD(embank_table_outstanding(table, 7, &outstanding));
    CHECK(outstanding == -1);

    /* The gradients of equal keys are summed: key 7 takes one step of 2. */
    GOOD(embank_table_get(table, keys, 3, rows, 6, &lease));
    for (int i = 0; i < 6; i++) CHECK(rows[i] == 1.0f);
    GOOD(embank_table_outstanding(table, 7, &outstanding));
    CHECK(outstanding == 1);
    GOOD(embank_lease_apply(lease, ones, 6));
    GOOD(embank_table_outstanding(table, 7, &outstanding));
    CHECK(outstanding == 0);
    BAD(EMBANK_STATUS_LEASE_ENDED, "already", embank_lease_apply(lease, ones, 6));
    BAD(EMBANK_STATUS_LEASE_ENDED, "already", embank_lease_put(lease, ones, 6));
    GOOD(embank_lease_release(lease));
    embank_lease_free(lease);
    GOOD(embank_table_peek(table, keys, 3, rows, 6, EMBANK_MISSING_ERROR, NULL));
    CHECK(rows[0] == 0.0f && rows[2] == 0.5f && rows[4] == 0.0f);

    /* One row per distinct key, and the place of each key's row. */
    size_t count = 0;
    uint64_t distinct[2];
    uint32_t places[3];
    embank_request request;
    GOOD(embank_request_init(&request, sizeof request));
    request.per = EMBANK_ROW_PER_DISTINCT;
    GOOD(embank_table_get_rows(table, keys, 3, &request, rows, 6, &count, &lease));
    CHECK(count == 2 && rows[0] == 0.0f && rows[2] == 0.5f);
    GOOD(embank_lease_distinct(lease, distinct, 2, places, 3, &count));
    CHECK(count == 2 && distinct[0] == 7 && distinct[1] == UINT64_MAX);
    CHECK(places[0] == 0 && places[1] == 1 && places[2] == 0);
    GOOD(embank_lease_distinct(lease, NULL, 0, NULL, 0, &count));
    BAD(EMBANK_STATUS_SHAPE_MISMATCH, "2", embank_lease_distinct(lease, distinct, 1, NULL, 0, &count));
    /* A wrong length leaves the lease as it was. */
    BAD(EMBANK_STATUS_SHAPE_MISMATCH, "gradients", embank_lease_apply(lease, ones, 6));
    GOOD(embank_lease_apply(lease, ones, 4));
    embank_lease_free(lease);

    GOOD(embank_table_get(table, keys, 3, rows, 6, &lease));
    const float last_wins[6] = {3, 3, 4, 4, 5, 5};
    GOOD(embank_lease_put(lease, last_wins, 6));
    embank_lease_free(lease);
    GOOD(embank_table_get_rows(table, keys, 3, &request, rows, 4, NULL, &lease));
    CHECK(rows[0] == 5.0f && rows[2] == 4.0f);
    GOOD(embank_lease_put(lease, ones, 4));
    embank_lease_free(lease);

    /* Freeing a lease gives its counts back. */
    GOOD(embank_table_get(table, keys, 1, rows, 2, &lease));
    embank_lease_free(lease);
    GOOD(embank_table_outstanding(table, 7, &outstanding));
    CHECK(outstanding == 0);

    /* Calls that need no lease. */
    const float row[2] = {8, 9};
    const uint64_t other = 3;
    uint8_t present[3];
    uint64_t deleted;
    float initial[2];
    GOOD(embank_table_put_blind(table, &other, 1, row, 2));
    GOOD(embank_table_put(table, &other, 1, row, 2));
    GOOD(embank_table_apply_gradients(table, &other, 1, ones, 2));
    GOOD(embank_table_peek(table, &other, 1, rows, 2, EMBANK_MISSING_SKIP, present));
    CHECK(rows[0] == 7.5f && rows[1] == 8.5f && present[0] == 1);
    GOOD(embank_table_delete(table, &other, 1, &deleted));
    CHECK(deleted == 1);
    GOOD(embank_table_peek(table, &other, 1, rows, 2, EMBANK_MISSING_SKIP, present));
    CHECK(rows[0] == 7.5f && present[0] == 0);
    GOOD(embank_table_peek(table, &other, 1, rows, 2, EMBANK_MISSING_INITIAL, NULL));
    GOOD(embank_table_initial(table, &other, 1, initial, 2));
    CHECK(rows[0] == 1.0f && initial[0] == 1.0f);
    const uint64_t both[2] = {3, 7};
    GOOD(embank_table_contains(table, both, 2, present));
    CHECK(present[0] == 0 && present[1] == 1);
    /* An empty batch is allowed. */
    GOOD(embank_table_get(table, NULL, 0, NULL, 0, &lease));
    GOOD(embank_lease_apply(lease, NULL, 0));
    embank_lease_free(lease);

    /* Settings that may change while the table is open. */
    embank_table_settings now;
    int64_t bound;
    GOOD(embank_table_set_learning_rate(table, 0.25));
    GOOD(embank_table_set_staleness_bound(table, 4));
    GOOD(embank_table_staleness_bound(table, &bound));
    GOOD(embank_table_get_settings(table, &now, sizeof now));
    CHECK(bound == 4 && now.staleness_bound == 4 && now.dim == 2 && now.size == sizeof now);
    CHECK(now.optimizer.kind == EMBANK_OPTIMIZER_KIND_SGD && now.optimizer.learning_rate == 0.25);
    now.optimizer.learning_rate = 0.125;
    GOOD(embank_table_set_optimizer(table, now.optimizer));
    BAD(EMBANK_STATUS_TABLE_MISMATCH, "Adam", embank_table_set_optimizer(table, embank_adam(0.1)));
    GOOD(embank_table_get_settings(table, &now, sizeof now));
    CHECK(now.optimizer.learning_rate == 0.125);

    embank_table_stats table_stats;
    embank_bank_stats bank_stats;
    embank_bytes *text;
    GOOD(embank_table_get_stats(table, &table_stats, sizeof table_stats));
    CHECK(table_stats.gets == 6 && table_stats.deleted_rows == 1);
    GOOD(embank_bank_get_stats(bank, &bank_stats, sizeof bank_stats));
    CHECK(bank_stats.memory_budget_bytes == 4 << 20 && bank_stats.live_rows == 2);
    CHECK(bank_stats.newest_checkpoint == 0 && bank_stats.changed_since_checkpoint > 0);
    GOOD(embank_bank_checkpoint(bank, NULL, 0, NULL));
    GOOD(embank_bank_get_stats(bank, &bank_stats, sizeof bank_stats));
    CHECK(bank_stats.newest_checkpoint == 1 && bank_stats.changed_since_checkpoint == 0);
    GOOD(embank_bank_prometheus(bank, &text));
    CHECK(strlen(embank_bytes_data(text)) == embank_bytes_size(text));
    CHECK(strstr(embank_bytes_data(text), "embank_") != NULL);
    embank_bytes_free(text);
    embank_bank *second = open_bank("second");
    const embank_bank *banks[2] = {bank, second};
    const char *bank_names[2] = {"first", "second"};
    GOOD(embank_banks_prometheus(banks, bank_names, 2, &text));
    CHECK(strstr(embank_bytes_data(text), "embank_keys_total{bank=\"first\",operation=\"get\"}") != NULL);
    CHECK(strstr(embank_bytes_data(text), "embank_keys_total{bank=\"second\",operation=\"get\"}") != NULL);
    embank_bytes_free(text);
    GOOD(embank_banks_prometheus(NULL, NULL, 0, &text));
    CHECK(strcmp(embank_bytes_data(text), "# EOF\n") == 0);
    embank_bytes_free(text);
    bank_names[1] = "first";
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "\"first\"", embank_banks_prometheus(banks, bank_names, 2, &text));
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "names", embank_banks_prometheus(banks, NULL, 2, &text));
    bank_names[1] = NULL;
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "name", embank_banks_prometheus(banks, bank_names, 2, &text));
    banks[0] = NULL;
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "bank", embank_banks_prometheus(banks, bank_names, 2, &text));
    CHECK(text == NULL);
    embank_bank_close(second);

    embank_table_free(table);
    embank_bank_close(bank);
}

/* Adds the number at `context` to the row. Key 2 gets a NaN, and key 3 ends the call. */
static int32_t add_to_row(void *context, uint64_t key, float *row, size_t dim, float *state, size_t state_len) {
    (void)state;
    CHECK(dim == 2 && state_len == 0);
    for (size_t i = 0; i < dim; i++) row[i] += *(const float *)context;
    if (key == 2) row[1] = NAN;
    return key == 3;
}

/* Counts its calls. Several threads call it at the same time. */
static int32_t count_calls(void *context, uint64_t key, float *row, size_t dim, float *state, size_t state_len) {
    atomic_fetch_add((atomic_int *)context, 1);
    CHECK(dim == 2 && state_len == 4);
    CHECK(state[3] == 0.0f);
    row[0] = (float)key;
    state[3] = 5.0f;
    return 0;
}

/* Checks the result of count_calls. */
static int32_t check_state(void *context, uint64_t key, float *row, size_t dim, float *state, size_t state_len) {
    (void)context;
    CHECK(row[0] == (float)key && row[dim - 1] == 1.0f && state_len == 4 && state[3] == 5.0f);
    return 0;
}

static void read_modify_write(void) {
    enum { KEYS = 8192 };
    static uint64_t many[KEYS];
    embank_bank *bank = open_bank("read_modify_write");
    embank_table *table = table_of(bank, "user");
    const uint64_t keys[3] = {1, 4, 1};
    float rows[4], one = 1;
    uint8_t present;

    /* A row that is missing has its initial values first, and a repeated key is changed once. */
    GOOD(embank_table_update(table, keys, 3, add_to_row, &one));
    GOOD(embank_table_update(table, keys, 1, add_to_row, &one));
    GOOD(embank_table_peek(table, keys, 2, rows, 4, EMBANK_MISSING_ERROR, NULL));
    CHECK(rows[0] == 3.0f && rows[1] == 3.0f && rows[2] == 2.0f && rows[3] == 2.0f);
    GOOD(embank_table_update(table, NULL, 0, add_to_row, &one));

    /* A row that the dtype can't hold stays as it was. */
    const uint64_t refused[2] = {2, 4};
    BAD(EMBANK_STATUS_UPDATE_REFUSED, "key 2: ", embank_table_update(table, refused, 2, add_to_row, &one));
    GOOD(embank_table_peek(table, refused, 2, rows, 4, EMBANK_MISSING_ERROR, NULL));
    CHECK(rows[0] == 1.0f && rows[1] == 1.0f && rows[2] == 3.0f && rows[3] == 3.0f);

    /* The callback ends the call, and makes no row. */
    const uint64_t ends[2] = {3, 5};
    const float before[2] = {7, 8};
    for (int round = 0; round < 2; round++) {
        BAD(EMBANK_STATUS_CANCELLED, "ended", embank_table_update(table, ends, 2, add_to_row, &one));
        GOOD(embank_table_contains(table, ends, 1, &present));
        CHECK(present == round);
        GOOD(embank_table_contains(table, ends + 1, 1, &present));
        CHECK(present == 0);
        if (round == 0) GOOD(embank_table_put(table, ends, 1, before, 2));
    }
    GOOD(embank_table_peek(table, ends, 1, rows, 2, EMBANK_MISSING_ERROR, NULL));
    CHECK(rows[0] == 7.0f && rows[1] == 8.0f);

    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "`change` is NULL", embank_table_update(table, keys, 3, NULL, &one));
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "table is NULL", embank_table_update(NULL, keys, 3, add_to_row, &one));
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "keys is NULL", embank_table_update(table, NULL, 3, add_to_row, &one));

    /* A large batch is shared by the threads of the bank. */
    embank_table_settings settings = settings_of(2);
    embank_table *adam;
    atomic_int calls = 0;
    settings.optimizer = embank_adam(0.1);
    GOOD(embank_bank_table(bank, "adam", &settings, &adam));
    for (int i = 0; i < KEYS; i++) many[i] = (uint64_t)i;
    GOOD(embank_table_update(adam, many, KEYS, count_calls, &calls));
    CHECK(calls >= KEYS); /* A row whose record moves gets several calls. */
    GOOD(embank_table_update(adam, many, KEYS, check_state, NULL));
    embank_table_free(adam);
    embank_table_free(table);
    embank_bank_close(bank);
}

static void bags(void) {
    embank_bank_options options;
    embank_bank *bank;
    GOOD(embank_bank_options_init(&options, sizeof options));
    CHECK(options.threads == 0);
    options.memory_budget_bytes = 4 << 20;
    options.threads = 2;
    GOOD(embank_bank_open(in_folder("bags"), &options, &bank));
    embank_table *table = table_of(bank, "genre");
    const uint64_t keys[3] = {5, 6, 5};
    const uint64_t offsets[4] = {0, 2, 2, 3};
    const float weights[3] = {1, 2, 3};
    embank_bags of = {offsets, 4, NULL, EMBANK_POOLING_SUM, 0};
    float pooled[6];
    embank_lease *lease;

    embank_request request;
    size_t count = 0;
    GOOD(embank_request_init(&request, sizeof request));
    request.per = EMBANK_ROW_PER_BAG;
    request.bags = &of;
    GOOD(embank_table_get_rows(table, keys, 3, &request, pooled, 6, &count, &lease));
    CHECK(count == 3);
    CHECK(pooled[0] == 2 && pooled[1] == 2 && pooled[2] == 0 && pooled[4] == 1);
    const float gradients[6] = {1, 1, 9, 9, 2, 2};
    BAD(EMBANK_STATUS_SHAPE_MISMATCH, "gradients", embank_lease_apply(lease, gradients, 4));
    GOOD(embank_lease_apply(lease, gradients, 6));
    BAD(EMBANK_STATUS_LEASE_ENDED, "already", embank_lease_apply(lease, gradients, 6));
    embank_lease_free(lease);
    GOOD(embank_table_get_rows(table, keys, 3, &request, pooled, 6, NULL, &lease));
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "a pooled row can't be put", embank_lease_put(lease, gradients, 6));
    embank_lease_free(lease);
    request.per = EMBANK_ROW_PER_KEY;
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "EMBANK_ROW_PER_BAG only", embank_table_get_rows(table, keys, 3, &request, pooled, 6, NULL, &lease));
    request.per = 3;
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "embank_row_per 3", embank_table_get_rows(table, keys, 3, &request, pooled, 6, NULL, &lease));
    request.per = EMBANK_ROW_PER_BAG;
    request.reserved = 1;
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "reserved", embank_table_get_rows(table, keys, 3, &request, pooled, 6, NULL, &lease));
    request.reserved = 0;
    float rows[4];
    GOOD(embank_table_peek(table, keys, 2, rows, 4, EMBANK_MISSING_ERROR, NULL));
    CHECK(rows[0] == -0.5f && rows[1] == -0.5f && rows[2] == 0.5f && rows[3] == 0.5f);

    of.weights = weights;
    GOOD(embank_table_peek_bags(table, keys, 3, &of, pooled, 6));
    CHECK(pooled[0] == 0.5f && pooled[2] == 0 && pooled[4] == -1.5f);
    of.pooling = EMBANK_POOLING_MEAN;
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "weights go with", embank_table_peek_bags(table, keys, 3, &of, pooled, 6));
    of.weights = NULL;
    GOOD(embank_table_peek_bags(table, keys, 3, &of, pooled, 6));
    CHECK(pooled[0] == 0 && pooled[4] == -0.5f);
    of.pooling = 7;
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "embank_pooling 7", embank_table_peek_bags(table, keys, 3, &of, pooled, 6));
    of.pooling = EMBANK_POOLING_SUM;
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "bags is NULL", embank_table_peek_bags(table, keys, 3, NULL, pooled, 6));
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "overlap", embank_table_peek_bags(table, keys, 3, &of, (float *)keys, 6));
    /* Wrong offsets: falling ones, one that wraps around, a padded batch, and no offset at all. */
    const uint64_t wrong[3][4] = {{0, 3, 2, 3}, {0, UINT64_MAX, 2, 3}, {0, 1, 1, 2}};
    for (int i = 0; i < 4; i++) {
        of.offsets = i < 3 ? wrong[i] : NULL;
        of.offset_count = i < 3 ? 4 : 0;
        BAD(EMBANK_STATUS_INVALID_ARGUMENT, "offsets must begin with 0, never fall", embank_table_peek_bags(table, keys, 3, &of, pooled, 6));
        BAD(EMBANK_STATUS_INVALID_ARGUMENT, "offsets must begin with 0, never fall", embank_table_get_rows(table, keys, 3, &request, pooled, 6, NULL, &lease));
        CHECK(lease == NULL);
    }
    of.offsets = offsets;
    of.offset_count = 4;
    of.reserved = 1;
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "reserved", embank_table_peek_bags(table, keys, 3, &of, pooled, 6));
    embank_table_free(table);
    embank_bank_close(bank);
}

/* A request whose get waits a minute for a lease: longer than any thread of this test needs. */
static embank_request patient_request(void) {
    embank_request request;
    GOOD(embank_request_init(&request, sizeof request));
    request.timeout_ms = 60000;
    return request;
}

/* Asks for the row of one key. */
static embank_pending *ahead_of(embank_table *table, uint64_t key, embank_ahead_queue *queue) {
    embank_request request = patient_request();
    embank_pending *pending;
    GOOD(embank_table_get_ahead(table, &key, 1, &request, queue, &pending));
    return pending;
}

/* Waits for a get of one row of 2 values, and frees it. */
static embank_lease *lease_of(embank_pending *pending) {
    float row[2];
    embank_lease *lease;
    GOOD(embank_pending_wait(pending, row, 2, NULL, &lease));
    embank_pending_free(pending);
    return lease;
}

/* Waits for a get, and checks its rows against embank_table_get_rows. */
static void equals_a_get(embank_table *table, const embank_request *request, embank_ahead_queue *queue) {
    const uint64_t keys[3] = {5, 6, 5};
    uint64_t keys_ahead[3] = {5, 6, 5};
    float rows[6] = {0}, rows_ahead[6] = {0};
    size_t count = 0, count_ahead = 0;
    embank_lease *lease;
    embank_pending *pending;
    GOOD(embank_table_get_rows(table, keys, 3, request, rows, 6, &count, &lease));
    embank_lease_free(lease);
    GOOD(embank_table_get_ahead(table, keys_ahead, 3, request, queue, &pending));
    memset(keys_ahead, 0, sizeof keys_ahead);
    GOOD(embank_pending_wait(pending, rows_ahead, 6, &count_ahead, &lease));
    CHECK(count_ahead == count && memcmp(rows_ahead, rows, sizeof rows) == 0);
    /* As many gradients as rows. */
    GOOD(embank_lease_apply(lease, rows, count * 2));
    embank_lease_free(lease);
    embank_pending_free(pending);
}

static void gets_ahead(void) {
    embank_bank *bank = open_bank("ahead");
    embank_table_settings settings = settings_of(2);
    settings.staleness_bound = 1;
    embank_table *table, *strict;
    embank_ahead_queue *queue;
    embank_pending *pending, *later;
    embank_lease *lease, *held, *none;
    float row[4];
    uint8_t ready = 0;
    int64_t outstanding;
    GOOD(embank_bank_table(bank, "user", &settings, &table));
    settings.staleness_bound = 0;
    GOOD(embank_bank_table(bank, "strict", &settings, &strict));
    GOOD(embank_bank_ahead_queue(bank, &queue));

    /* One row per key, per distinct key and per bag. */
    const float first[4] = {1, 2, 3, 4};
    const uint64_t bagged[2] = {5, 6}, offsets[4] = {0, 2, 2, 3}, falling[4] = {0, 3, 2, 3};
    embank_bags of = {offsets, 4, NULL, EMBANK_POOLING_SUM, 0};
    embank_request request = patient_request();
    GOOD(embank_table_put(table, bagged, 2, first, 4));
    equals_a_get(table, NULL, queue);
    request.per = EMBANK_ROW_PER_DISTINCT;
    equals_a_get(table, &request, queue);
    request.per = EMBANK_ROW_PER_BAG;
    request.bags = &of;
    equals_a_get(table, &request, queue);
    of.offsets = falling;
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "offsets must begin with 0, never fall", embank_table_get_ahead(table, bagged, 2, &request, queue, &pending));
    CHECK(pending == NULL);

    /* Training with bound 1: each batch is asked for before the gradients of the batch before it.
     * Keys 1, 2 and 3 are each in two batches. */
    const uint64_t batches[3][2] = {{1, 2}, {2, 3}, {3, 1}};
    const float halves[4] = {0.5f, 0.5f, 0.5f, 0.5f};
    GOOD(embank_table_get_ahead(table, batches[0], 2, NULL, queue, &pending));
    for (int i = 0; i < 3; i++) {
        GOOD(embank_pending_wait(pending, row, 4, NULL, &lease));
        embank_pending_free(pending);
        if (i < 2) {
            GOOD(embank_table_get_ahead(table, batches[i + 1], 2, NULL, queue, &pending));
        }
        GOOD(embank_lease_apply(lease, halves, 4));
        embank_lease_free(lease);
    }
    CHECK(row[0] == 0.75f && row[2] == 0.75f); /* with the updates of earlier batches */
    GOOD(embank_table_peek(table, batches[0], 2, row, 4, EMBANK_MISSING_ERROR, NULL));
    CHECK(row[0] == 0.5f && row[2] == 0.5f);

    /* A get that waits for a lease keeps the later gets of its queue waiting. */
    const uint64_t one = 1;
    GOOD(embank_table_get(strict, &one, 1, row, 2, &held));
    pending = ahead_of(strict, 1, queue);
    later = ahead_of(table, 7, queue);
    GOOD(embank_pending_is_ready(pending, &ready));
    CHECK(ready == 0);
    GOOD(embank_pending_is_ready(later, &ready));
    CHECK(ready == 0);
    GOOD(embank_lease_apply(held, halves, 2));
    embank_lease_free(held);
    lease = lease_of(later);
    GOOD(embank_pending_is_ready(pending, &ready));
    CHECK(ready == 1);
    /* A wrong argument leaves the get as it was. */
    BAD(EMBANK_STATUS_SHAPE_MISMATCH, "rows", embank_pending_wait(pending, row, 4, NULL, &none));
    BAD(EMBANK_STATUS_SHAPE_MISMATCH, "rows", embank_pending_wait(pending, row, 1, NULL, &none));
    CHECK(none == NULL);
    GOOD(embank_pending_wait(pending, row, 2, NULL, &held));
    CHECK(row[0] == 0.75f);
    BAD(EMBANK_STATUS_AHEAD_ENDED, "already", embank_pending_wait(pending, row, 2, NULL, &none));
    CHECK(none == NULL);
    BAD(EMBANK_STATUS_AHEAD_ENDED, "already", embank_pending_is_ready(pending, &ready));
    embank_pending_free(pending);
    embank_lease_free(lease);

    /* The errors of a get, which end it. `held` is still on the row. */
    pending = ahead_of(strict, 1, queue);
    BAD(EMBANK_STATUS_SELF_BLOCKED, "own thread", embank_pending_wait(pending, row, 2, NULL, &none));
    CHECK(none == NULL);
    BAD(EMBANK_STATUS_AHEAD_ENDED, "already", embank_pending_wait(pending, row, 2, NULL, &none));
    embank_pending_free(pending);
    GOOD(embank_lease_hand_over(held));
    request = patient_request();
    request.timeout_ms = 0;
    GOOD(embank_table_get_ahead(strict, &one, 1, &request, queue, &pending));
    BAD(EMBANK_STATUS_STALENESS_TIMEOUT, "wait_timeout_ms", embank_pending_wait(pending, row, 2, NULL, &none));
    embank_pending_free(pending);

    /* Freeing a get cancels it if it waits, and releases its lease if it has ended. */
    pending = ahead_of(strict, 1, queue);
    embank_pending *made = ahead_of(table, 8, queue);
    later = ahead_of(table, 9, queue);
    embank_pending_free(pending);
    lease = lease_of(later);
    GOOD(embank_table_outstanding(table, 8, &outstanding));
    CHECK(outstanding == 1);
    embank_pending_free(made);
    GOOD(embank_table_outstanding(table, 8, &outstanding));
    CHECK(outstanding == 0);
    GOOD(embank_table_outstanding(strict, 1, &outstanding));
    CHECK(outstanding == 1);
    embank_lease_free(lease);

    /* A queue that is freed fails the gets that it has not made, and no others. */
    made = ahead_of(table, 8, queue);
    lease = lease_of(ahead_of(table, 9, queue));
    pending = ahead_of(strict, 1, queue);
    later = ahead_of(table, 10, queue);
    embank_ahead_queue_free(queue);
    const char *cure = "embank_bank_ahead_queue";
    GOOD(embank_pending_is_ready(pending, &ready));
    CHECK(ready == 1);
    BAD(EMBANK_STATUS_AHEAD_ENDED, cure, embank_pending_wait(pending, row, 2, NULL, &none));
    BAD(EMBANK_STATUS_AHEAD_ENDED, cure, embank_pending_wait(later, row, 2, NULL, &none));
    CHECK(none == NULL);
    embank_pending_free(pending);
    embank_pending_free(later);
    embank_lease_free(lease_of(made));
    embank_lease_free(lease);

    /* Handles may be freed in any order. Each keeps the bank open. */
    GOOD(embank_bank_ahead_queue(bank, &queue));
    made = ahead_of(table, 8, queue);
    later = ahead_of(table, 9, queue);
    pending = ahead_of(strict, 1, queue);
    embank_bank_close(bank);
    embank_table_free(table);
    embank_table_free(strict);
    lease = lease_of(later);
    embank_pending_free(pending);
    embank_lease_free(held);
    embank_lease_free(lease);
    embank_ahead_queue_free(queue);
    embank_bank *again;
    BAD(EMBANK_STATUS_LOCKED, "in this process", embank_bank_open(in_folder("ahead"), NULL, &again));
    embank_pending_free(made); /* this closes the bank */
    bank = open_bank("ahead");
    GOOD(embank_bank_ahead_queue(bank, &queue));
    embank_bank_close(bank);
    BAD(EMBANK_STATUS_LOCKED, "in this process", embank_bank_open(in_folder("ahead"), NULL, &again));
    embank_ahead_queue_free(queue); /* this closes the bank */
    embank_bank_close(open_bank("ahead"));
}

static void checkpoints(void) {
    embank_bank *bank = open_bank("checkpoints");
    embank_table *table = table_of(bank, "user");
    const uint64_t keys[3] = {1, 2, 3};
    float rows[6] = {1, 1, 2, 2, 3, 3};
    uint64_t number, numbers[8];
    size_t count;
    embank_bytes *blob;

    GOOD(embank_bank_recovered(bank, &number, &blob));
    CHECK(number == 0 && blob == NULL);
    GOOD(embank_table_put(table, keys, 3, rows, 6));
    GOOD(embank_bank_checkpoint(bank, "step 1", 6, &number));
    CHECK(number == 1);

    /* A reader beside the writer stays at its checkpoint until embank_bank_refresh. */
    embank_bank *reader;
    embank_table *read_only;
    GOOD(embank_bank_open_read_only(in_folder("checkpoints"), NULL, 0, &reader));
    GOOD(embank_bank_open_table(reader, "user", &read_only));
    rows[0] = 9;
    GOOD(embank_table_put(table, keys, 1, rows, 2));
    GOOD(embank_bank_checkpoint(bank, NULL, 0, NULL));
    GOOD(embank_table_peek(read_only, keys, 1, rows, 2, EMBANK_MISSING_ERROR, NULL));
    CHECK(rows[0] == 1);
    GOOD(embank_bank_refresh(reader, &number));
    CHECK(number == 2);
    GOOD(embank_table_peek(read_only, keys, 1, rows, 2, EMBANK_MISSING_ERROR, NULL));
    CHECK(rows[0] == 9);
    GOOD(embank_bank_recovered(reader, &number, NULL));
    CHECK(number == 2);

    /* A scan, two rows at a time. */
    embank_scan *scan;
    uint64_t all, remaining;
    GOOD(embank_table_scan(table, &scan));
    uint64_t seen = 0;
    do {
        GOOD(embank_scan_next(scan, numbers, 2, rows, 4, &count));
        for (size_t i = 0; i < count; i++) seen += numbers[i];
    } while (count > 0);
    CHECK(seen == 6);
    GOOD(embank_scan_progress(scan, &number, &all, &remaining));
    CHECK(number == 2 && all == 3 && remaining == 0);
    BAD(EMBANK_STATUS_SHAPE_MISMATCH, "rows", embank_scan_next(scan, numbers, 2, rows, 3, &count));
    embank_scan_free(scan);

    /* Copies and deltas. */
    GOOD(embank_copy_checkpoint(in_folder("checkpoints"), 1, in_folder("copy")));
    GOOD(embank_export_delta(in_folder("checkpoints"), 1, 0, in_folder("delta")));
    GOOD(embank_apply_delta(in_folder("copy"), in_folder("delta"), 2));
    BAD(EMBANK_STATUS_DELTA_MISMATCH, "delta", embank_apply_delta(in_folder("copy"), in_folder("delta"), 2));

    /* embank_roll_back fails while the bank is open. */
    BAD(EMBANK_STATUS_LOCKED, "is open for writing in this process", embank_roll_back(in_folder("checkpoints"), 1));
    embank_bank_close(bank);
    embank_table_free(table); /* this closes the bank */
    BAD(EMBANK_STATUS_BEING_READ, "read", embank_roll_back(in_folder("checkpoints"), 1));
    embank_table_free(read_only);
    embank_bank_close(reader);
    GOOD(embank_list_checkpoints(in_folder("checkpoints"), numbers, 1, &count));
    CHECK(count == 2 && numbers[0] == 1);
    GOOD(embank_roll_back(in_folder("checkpoints"), 1));
    GOOD(embank_list_checkpoints(in_folder("checkpoints"), NULL, 0, &count));
    CHECK(count == 1);

    bank = open_bank("checkpoints");
    GOOD(embank_bank_recovered(bank, &number, &blob));
    CHECK(number == 1 && embank_bytes_size(blob) == 6 && memcmp(embank_bytes_data(blob), "step 1", 7) == 0);
    embank_bytes_free(blob);
    embank_bank_close(bank);
}

static void tables_and_lookahead(void) {
    embank_bank *bank = open_bank("tables");
    embank_table *user = table_of(bank, "user"), *item = table_of(bank, "item"), *again;
    embank_table_settings settings = settings_of(2);
    embank_names *names;
    GOOD(embank_bank_tables(bank, &names));
    CHECK(embank_names_count(names) == 2);
    CHECK(strcmp(embank_names_at(names, 0), "item") == 0 && strcmp(embank_names_at(names, 1), "user") == 0);
    CHECK(embank_names_at(names, 2) == NULL);
    embank_names_free(names);

    /* Two handles of one table. */
    const uint64_t key = 5;
    const float row[2] = {1, 2};
    float rows[2];
    GOOD(embank_bank_table(bank, "user", &settings, &again));
    GOOD(embank_table_put(again, &key, 1, row, 2));
    GOOD(embank_table_peek(user, &key, 1, rows, 2, EMBANK_MISSING_ERROR, NULL));
    settings.dim = 3;
    embank_table_free(again);
    BAD(EMBANK_STATUS_TABLE_MISMATCH, "dim", embank_bank_table(bank, "user", &settings, &again));
    CHECK(again == NULL);

    embank_lease *lease;
    GOOD(embank_table_get(item, &key, 1, rows, 2, &lease));
    GOOD(embank_bank_drop_table(bank, "item"));
    BAD(EMBANK_STATUS_TABLE_DROPPED, "item", embank_table_put(item, &key, 1, row, 2));
    BAD(EMBANK_STATUS_TABLE_DROPPED, "item", embank_lease_apply(lease, row, 2));
    BAD(EMBANK_STATUS_NO_SUCH_TABLE, "item", embank_bank_open_table(bank, "item", &again));
    embank_lease_free(lease);
    embank_table_free(item);

    /* Puts more rows than memory holds. Lookahead brings the first rows back before their use. */
    enum { ROWS = 200000, BATCH = 1000 };
    static uint64_t keys[BATCH];
    static float values[BATCH * 2];
    for (uint64_t start = 0; start < ROWS; start += BATCH) {
        for (uint64_t i = 0; i < BATCH; i++) keys[i] = start + i;
        GOOD(embank_table_put(user, keys, BATCH, values, BATCH * 2));
    }
    for (uint64_t i = 0; i < BATCH; i++) keys[i] = i;
    size_t accepted, cancelled;
    uint8_t idle = 0;
    embank_bank_stats stats;
    GOOD(embank_table_lookahead(user, keys, BATCH, &accepted));
    CHECK(accepted > 0);
    GOOD(embank_bank_wait_lookahead(bank, 60000, &idle));
    CHECK(idle == 1);
    GOOD(embank_bank_get_stats(bank, &stats, sizeof stats));
    CHECK(stats.lookahead_moved > 0 && stats.lookahead_pending == 0);
    GOOD(embank_bank_cancel_lookahead(bank, &cancelled));
    CHECK(cancelled == 0);
    GOOD(embank_bank_compact(bank));
    embank_table_free(user);
    embank_bank_close(bank);
}

/* What the callbacks of this test got, and what they return. */
struct told {
    uint64_t keys[8], rows_done, rows_total;
    size_t key_count;
    int calls, answer;
};

static int32_t note_progress(void *context, uint64_t rows_done, uint64_t rows_total) {
    struct told *told = context;
    told->calls++;
    told->rows_done = rows_done;
    told->rows_total = rows_total;
    return told->answer;
}

static int32_t note_keys(void *context, const uint64_t *keys, size_t key_count) {
    struct told *told = context;
    for (size_t i = 0; i < key_count; i++) told->keys[told->key_count++ % 8] = keys[i];
    return told->answer;
}

static void evictions(void) {
    const embank_status invalid = EMBANK_STATUS_INVALID_ARGUMENT;
    embank_bank *bank = open_bank("evictions");
    embank_table_settings settings = settings_of(1);
    embank_table *table, *plain = table_of(bank, "plain");
    const uint64_t keys[3] = {5, 6, 7};
    const float rows[3] = {1, 2, 3};
    uint8_t present[3];
    struct told told = {0};
    embank_eviction eviction;
    embank_evicted evicted;
    settings.tracking = EMBANK_TRACKING_SET_TIME;
    GOOD(embank_bank_table(bank, "user", &settings, &table));
    GOOD(embank_table_set_time(table, 3));
    GOOD(embank_table_put(table, keys, 3, rows, 3));
    GOOD(embank_table_set_time(table, 9));
    GOOD(embank_table_put(table, keys + 1, 1, rows + 1, 1));

    memset(&eviction, 0, sizeof eviction);
    BAD(invalid, "embank_eviction_init", embank_table_evict(table, &eviction, NULL, 0));
    GOOD(embank_eviction_init(&eviction, sizeof eviction));
    BAD(invalid, "condition", embank_table_evict(table, &eviction, NULL, 0));
    eviction.unused_for = 6;
    BAD(invalid, "checkpoint", embank_table_evict(table, &eviction, NULL, 0));
    GOOD(embank_bank_checkpoint(bank, NULL, 0, NULL));
    BAD(invalid, "eviction is NULL", embank_table_evict(table, NULL, NULL, 0));
    BAD(invalid, "does not track", embank_table_evict(plain, &eviction, NULL, 0));
    BAD(invalid, "3 bytes", embank_table_evict(table, &eviction, &evicted, 3));
    eviction.unused_for = INT64_MAX;
    BAD(invalid, "unused_for", embank_table_evict(table, &eviction, NULL, 0));
    eviction.unused_for = 6;
    eviction.norm_below = NAN;
    BAD(invalid, "norm_below", embank_table_evict(table, &eviction, NULL, 0));
    eviction.norm_below = 0;

    eviction.gone = note_keys;
    eviction.progress = note_progress;
    eviction.context = &told;
    eviction.dry_run = 1;
    GOOD(embank_table_evict(table, &eviction, &evicted, sizeof evicted));
    CHECK(evicted.size == sizeof evicted && evicted.checkpoint == 1);
    CHECK(evicted.examined == 3 && evicted.rows == 2 && evicted.leased == 0);
    CHECK(told.key_count == 2 && told.keys[0] + told.keys[1] == 12);
    CHECK(told.calls == 1 && told.rows_done == 3 && told.rows_total == 3);
    GOOD(embank_table_contains(table, keys, 3, present));
    CHECK(present[0] == 1 && present[1] == 1 && present[2] == 1);

    /* Each callback ends the eviction: first the one for keys, then the one for progress. */
    told.answer = -1;
    evicted.rows = 77;
    BAD(EMBANK_STATUS_CANCELLED, "ended", embank_table_evict(table, &eviction, &evicted, sizeof evicted));
    CHECK(told.calls == 1 && evicted.rows == 77);
    eviction.gone = NULL;
    BAD(EMBANK_STATUS_CANCELLED, "ended", embank_table_evict(table, &eviction, NULL, 0));
    CHECK(told.calls == 2);

    /* Rows with leases are not evicted. */
    float row;
    embank_lease *lease;
    GOOD(embank_table_get(table, keys, 1, &row, 1, &lease));
    eviction.progress = NULL;
    eviction.dry_run = 0;
    GOOD(embank_table_evict(table, &eviction, &evicted, sizeof evicted));
    CHECK(evicted.rows == 1 && evicted.leased == 1);
    embank_lease_free(lease);
    eviction.unused_for = -1;
    eviction.used_fewer_than = 2;
    eviction.norm_below = 1.5f;
    GOOD(embank_table_evict(table, &eviction, NULL, 0));
    GOOD(embank_table_contains(table, keys, 3, present));
    CHECK(present[0] == 0 && present[1] == 1 && present[2] == 0);
    embank_table_free(plain);
    embank_table_free(table);
    embank_bank_close(bank);
}

/* Exports the table and imports it into `into`, which then has the rows of keys 0 and 2. */
static void goes_out_and_in(const embank_table *table, const char *name, embank_table *into) {
    const uint64_t keys[2] = {0, 2}, one = 1;
    float before[4], after[4];
    uint8_t present;
    struct told told = {0};
    embank_export_options out;
    embank_import_options in;
    embank_exported exported;
    embank_imported imported;
    GOOD(embank_export_options_init(&out, sizeof out));
    out.state = 1;
    out.progress = note_progress;
    out.context = &told;
    GOOD(embank_table_export(table, in_folder(name), &out, &exported, sizeof exported));
    CHECK(exported.size == sizeof exported && exported.checkpoint == 1);
    CHECK(exported.rows == 2 && exported.filled_rows == 0 && exported.bytes > 0);
    CHECK(told.calls == 1 && told.rows_done == 2 && told.rows_total == 2);

    GOOD(embank_import_options_init(&in, sizeof in));
    in.progress = note_progress;
    in.context = &told;
    GOOD(embank_table_import(into, in_folder(name), &in, &imported, sizeof imported));
    CHECK(imported.size == sizeof imported && imported.rows == 2 && imported.with_state == 1);
    CHECK(told.calls == 2 && told.rows_done == 2);
    GOOD(embank_table_peek(table, keys, 2, before, 4, EMBANK_MISSING_ERROR, NULL));
    GOOD(embank_table_peek(into, keys, 2, after, 4, EMBANK_MISSING_ERROR, NULL));
    CHECK(memcmp(before, after, sizeof before) == 0);
    GOOD(embank_table_contains(into, &one, 1, &present));
    CHECK(present == 0);

    told.answer = 1;
    BAD(EMBANK_STATUS_CANCELLED, "ended", embank_table_export(table, in_folder(name), &out, NULL, 0));
    BAD(EMBANK_STATUS_CANCELLED, "ended", embank_table_import(into, in_folder(name), &in, NULL, 0));
}

static void files(void) {
    const embank_status invalid = EMBANK_STATUS_INVALID_ARGUMENT;
    embank_bank *bank = open_bank("files");
    embank_table_settings settings = settings_of(2), told;
    embank_table *table, *into;
    const uint64_t keys[3] = {0, 2, 1};
    const float gradients[4] = {1, 2, 3, 4};
    float row[2];
    uint8_t found = 7;
    embank_export_options out;
    embank_import_options in;
    embank_exported exported;
    embank_imported imported;
    settings.optimizer = embank_adagrad(0.5);
    settings.seed = 7;
    GOOD(embank_bank_table(bank, "user", &settings, &table));
    GOOD(embank_table_apply_gradients(table, keys, 2, gradients, 4));
    BAD(invalid, "checkpoint", embank_table_export(table, in_folder("early.npy"), NULL, NULL, 0));
    GOOD(embank_bank_checkpoint(bank, NULL, 0, NULL));

    /* Each format exports and imports the table. */
    const char *names[3] = {"user.safetensors", "user.npy", "user.parquet"};
    for (int i = 0; i < (WITH_PARQUET ? 3 : 2); i++) {
        GOOD(embank_bank_table(bank, names[i], &settings, &into));
        goes_out_and_in(table, names[i], into);
        GOOD(embank_exported_settings(in_folder(names[i]), EMBANK_FILE_FORMAT_BY_SUFFIX, &told, sizeof told, &found));
        CHECK(found == 1 && memcmp(&told, &settings, sizeof told) == 0);
        embank_table_free(into);
    }
    if (!WITH_PARQUET) {
        BAD(invalid, "without Parquet", embank_table_export(table, in_folder(names[2]), NULL, NULL, 0));
    }

    /* A dense matrix, which has no settings. Row i is the row of key i; a key without a row has its
     * initial values. */
    GOOD(embank_export_options_init(&out, sizeof out));
    out.format = EMBANK_FILE_FORMAT_NPY;
    out.dense = 1;
    BAD(invalid, "missing", embank_table_export(table, in_folder("dense"), &out, NULL, 0));
    out.fill_missing = 1;
    out.dense_rows = 5;
    GOOD(embank_table_export(table, in_folder("dense"), &out, &exported, sizeof exported));
    CHECK(exported.rows == 2 && exported.filled_rows == 3);
    GOOD(embank_exported_settings(in_folder("dense"), EMBANK_FILE_FORMAT_NPY, &told, sizeof told, &found));
    CHECK(found == 0);
    GOOD(embank_bank_table(bank, "dense", &settings, &into));
    GOOD(embank_import_options_init(&in, sizeof in));
    in.format = EMBANK_FILE_FORMAT_NPY;
    GOOD(embank_table_import(into, in_folder("dense"), &in, &imported, sizeof imported));
    CHECK(imported.rows == 5 && imported.with_state == 0);
    GOOD(embank_table_peek(into, keys + 2, 1, row, 2, EMBANK_MISSING_ERROR, NULL));
    CHECK(row[0] == 1.0f && row[1] == 1.0f);

    /* Several files, by position. */
    const char *parts[2];
    parts[0] = parts[1] = in_folder("dense");
    uint64_t places[2] = {1000, 1009};
    float both[4];
    BAD(EMBANK_STATUS_UNREADABLE_FILE, "first_key",
        embank_table_import_files(into, parts, 2, &in, &imported, sizeof imported));
    in.first_key = 1000;
    BAD(invalid, "by_position", embank_table_import_files(into, parts, 2, &in, NULL, 0));
    in.by_position = 1;
    GOOD(embank_table_import_files(into, parts, 2, &in, &imported, sizeof imported));
    CHECK(imported.rows == 10);
    GOOD(embank_table_peek(into, places, 2, both, 4, EMBANK_MISSING_ERROR, NULL));
    BAD(invalid, "paths is NULL", embank_table_import_files(into, NULL, 2, &in, NULL, 0));
    BAD(invalid, "empty", embank_table_import_files(into, parts, 0, &in, NULL, 0));
    BAD(invalid, "path is NULL",
        (parts[1] = NULL, embank_table_import_files(into, parts, 2, &in, NULL, 0)));

    /* Imports with names of tensors, and with options that are errors. */
    GOOD(embank_import_options_init(&in, sizeof in));
    in.keys = "keys";
    in.rows = "rows";
    in.state = 0;
    GOOD(embank_table_import(into, in_folder("user.safetensors"), &in, NULL, 0));
    in.rows = "nothing";
    BAD(EMBANK_STATUS_UNREADABLE_FILE, "nothing",
        embank_table_import(into, in_folder("user.safetensors"), &in, NULL, 0));
    in.rows = "\xff";
    BAD(invalid, "UTF-8", embank_table_import(into, in_folder("user.safetensors"), &in, NULL, 0));
    BAD(EMBANK_STATUS_IO, "none.safetensors",
        embank_table_import(into, in_folder("none.safetensors"), NULL, NULL, 0));
    BAD(invalid, "suffix", embank_table_export(table, in_folder("user.csv"), NULL, NULL, 0));
    BAD(invalid, "path is NULL", embank_table_export(table, NULL, NULL, NULL, 0));
    BAD(invalid, "3 bytes", embank_table_export(table, in_folder("no.npy"), NULL, &exported, 3));
    BAD(invalid, "3 bytes", embank_table_import(into, in_folder("user.npy"), NULL, &imported, 3));
    BAD(invalid, "answer", embank_exported_settings(in_folder("user.npy"), 0, &told, sizeof told, NULL));
    out.format = 77;
    BAD(invalid, "embank_file_format 77", embank_table_export(table, in_folder("no"), &out, NULL, 0));
    out.format = EMBANK_FILE_FORMAT_NPY;
    out.dense = 0;
    BAD(invalid, "dense_rows", embank_table_export(table, in_folder("no"), &out, NULL, 0));
    embank_table_free(into);
    embank_table_free(table);
    embank_bank_close(bank);
}

static void bad_arguments(void) {
    embank_bank *bank = open_bank("arguments"), *other = (embank_bank *)1;
    embank_table *table = table_of(bank, "user"), *none;
    const uint64_t keys[2] = {1, 2}, others[2] = {3, 4};
    uint64_t buffer[8] = {0};
    float rows[4] = {0};
    embank_lease *lease;
    embank_ahead_queue *queue;
    embank_pending *pending;
    uint8_t ready;
    const embank_status invalid = EMBANK_STATUS_INVALID_ARGUMENT;

    BAD(invalid, "path is NULL", embank_bank_open(NULL, NULL, &other));
    CHECK(other == NULL);
    BAD(invalid, "empty", embank_bank_open("", NULL, &other));
    BAD(invalid, "place for the bank", embank_bank_open(in_folder("x"), NULL, NULL));
    BAD(invalid, "bank is NULL", embank_bank_checkpoint(NULL, NULL, 0, NULL));
    BAD(invalid, "table is NULL", embank_table_put(NULL, keys, 2, rows, 4));
    BAD(invalid, "lease is NULL", embank_lease_release(NULL));
    BAD(invalid, "queue is NULL", embank_table_get_ahead(table, keys, 2, NULL, NULL, &pending));
    BAD(invalid, "pending get is NULL", embank_pending_is_ready(NULL, &ready));
    BAD(invalid, "pending get is NULL", embank_pending_wait(NULL, rows, 4, NULL, &lease));
    BAD(invalid, "place for the queue", embank_bank_ahead_queue(bank, NULL));
    GOOD(embank_bank_ahead_queue(bank, &queue));
    BAD(invalid, "table is NULL", embank_table_get_ahead(NULL, keys, 2, NULL, queue, &pending));
    BAD(invalid, "keys is NULL", embank_table_get_ahead(table, NULL, 2, NULL, queue, &pending));
    BAD(invalid, "place for the pending get", embank_table_get_ahead(table, keys, 2, NULL, queue, NULL));
    GOOD(embank_table_get_ahead(table, others, 2, NULL, queue, &pending));
    BAD(invalid, "place for the answer", embank_pending_is_ready(pending, NULL));
    BAD(invalid, "rows is NULL", embank_pending_wait(pending, NULL, 4, NULL, &lease));
    BAD(invalid, "place for the lease", embank_pending_wait(pending, rows, 4, NULL, NULL));
    GOOD(embank_pending_wait(pending, rows, 4, NULL, &lease));
    embank_lease_free(lease);
    embank_pending_free(pending);
    embank_ahead_queue_free(queue);
    BAD(invalid, "scan is NULL", embank_scan_progress(NULL, NULL, NULL, NULL));
    BAD(invalid, "keys is NULL", embank_table_put(table, NULL, 2, rows, 4));
    BAD(invalid, "rows is NULL", embank_table_put(table, keys, 2, NULL, 4));
    BAD(invalid, "place for the lease", embank_table_get(table, keys, 2, rows, 4, NULL));
    BAD(invalid, "multiple of 8",
        embank_table_put(table, (const uint64_t *)(const void *)((const char *)keys + 4), 1, rows, 2));
    BAD(invalid, "length", embank_table_put(table, keys, SIZE_MAX / 8, rows, 4));
    BAD(invalid, "length", embank_table_put(table, keys, SIZE_MAX, rows, 4));
    BAD(invalid, "overlap", embank_table_get(table, buffer, 2, (float *)(void *)(buffer + 1), 4, &lease));
    CHECK(lease == NULL);
    BAD(invalid, "overlap", embank_table_contains(table, buffer, 2, (uint8_t *)buffer));
    BAD(invalid, "embank_missing 7", embank_table_peek(table, keys, 2, rows, 4, 7, NULL));
    BAD(invalid, "UTF-8", embank_bank_drop_table(bank, "\xff"));
    BAD(invalid, "learning rate", embank_table_set_learning_rate(table, -1.0));
    BAD(invalid, "staleness bound", embank_table_set_staleness_bound(table, INT64_MAX));
    BAD(invalid, "not a bank", embank_roll_back(in_folder("nothing here"), 1));
    BAD(EMBANK_STATUS_SHAPE_MISMATCH, "4", embank_table_get(table, keys, 2, rows, 3, &lease));
    embank_request request;
    GOOD(embank_request_init(&request, sizeof request));
    request.per = EMBANK_ROW_PER_DISTINCT;
    BAD(EMBANK_STATUS_SHAPE_MISMATCH, "4", embank_table_get_rows(table, keys, 2, &request, rows, 3, NULL, &lease));
    request.earlier = buffer;
    request.earlier_count = 2;
    BAD(invalid, "overlap", embank_table_get_rows(table, keys, 2, &request, (float *)(void *)buffer, 4, NULL, &lease));
    request.size = 1;
    BAD(invalid, "embank_request_init", embank_table_get_rows(table, keys, 2, &request, rows, 4, NULL, &lease));
    BAD(EMBANK_STATUS_MISSING_ROW, "key 1", embank_table_peek(table, keys, 2, rows, 4, EMBANK_MISSING_ERROR, NULL));

    /* Wrong structs: an uninitialised one, one with an invalid size, one with fields of a newer
     * header. */
    embank_bank_options options;
    embank_table_settings settings = settings_of(2);
    struct { embank_bank_options known; uint64_t newer; } newer;
    memset(&options, 0, sizeof options);
    BAD(invalid, "embank_bank_options_init", embank_bank_open(in_folder("x"), &options, &other));
    BAD(invalid, "NULL", embank_bank_options_init(NULL, sizeof options));
    BAD(invalid, "embank_bank_options_init", embank_bank_options_init(&options, 3));
    GOOD(embank_bank_options_init(&newer.known, sizeof newer));
    newer.newer = 1;
    BAD(invalid, "does not know", embank_bank_open(in_folder("x"), &newer.known, &other));
    GOOD(embank_bank_options_init(&options, sizeof options));
    options.device = 77;
    BAD(invalid, "embank_device 77", embank_bank_open(in_folder("x"), &options, &other));
    options.device = EMBANK_DEVICE_THREADS;
    options.background_compaction = 2;
    BAD(invalid, "background_compaction", embank_bank_open(in_folder("x"), &options, &other));
    options.background_compaction = 0;
    options.cold_tier = 3;
    BAD(invalid, "embank_cold_tier 3", embank_bank_open(in_folder("x"), &options, &other));
    options.cold_tier = EMBANK_COLD_TIER_AUTO;
    options.reserved = 1;
    BAD(invalid, "reserved", embank_bank_open(in_folder("x"), &options, &other));
    options.reserved = 0;
    options.cold_tier = EMBANK_COLD_TIER_NEVER;
    options.create = 0;
    BAD(invalid, "no such directory", embank_bank_open(in_folder("typo"), &options, &other));
    options.create = 2;
    BAD(invalid, "create", embank_bank_open(in_folder("x"), &options, &other));
    BAD(invalid, "settings is NULL", embank_bank_table(bank, "new", NULL, &none));
    settings.dim = 0;
    BAD(invalid, "dim", embank_bank_table(bank, "new", &settings, &none));
    settings = settings_of(2);
    settings.optimizer.kind = 77;
    BAD(invalid, "embank_optimizer_kind 77", embank_bank_table(bank, "new", &settings, &none));
    CHECK(none == NULL);

    /* Freeing NULL does nothing, and NULL counts as empty. */
    embank_lease_free(NULL);
    embank_pending_free(NULL);
    embank_ahead_queue_free(NULL);
    embank_scan_free(NULL);
    embank_bytes_free(NULL);
    embank_names_free(NULL);
    CHECK(embank_bytes_data(NULL) == NULL && embank_bytes_size(NULL) == 0);
    CHECK(embank_names_count(NULL) == 0 && embank_table_name(NULL) == NULL && embank_table_dim(NULL) == 0);

    embank_table_free(table);
    embank_bank_close(bank);
    embank_bank_close(NULL);
    embank_table_free(NULL);
}

/* After every failure the handle is NULL: if an argument before or after it is wrong, and if the
 * call itself fails. */
static void handles_after_failures(void) {
#define NO_HANDLE(handle, call)                                                                               \
    do {                                                                                                      \
        (handle) = (void *)1;                                                                                 \
        CHECK((call) != EMBANK_STATUS_OK);                                                                    \
        CHECK((handle) == NULL);                                                                              \
    } while (0)
    embank_bank *bank = open_bank("handles"), *other;
    embank_table *table = table_of(bank, "user"), *again;
    embank_table_settings settings = settings_of(0);
    embank_names *names;
    embank_bytes *bytes;
    embank_lease *lease;
    embank_ahead_queue *queue;
    embank_pending *pending;
    embank_scan *scan;
    const uint64_t key = 1;
    uint64_t memory[2];
    float row[2];
    size_t *no_count = (size_t *)(void *)((char *)memory + 4);
    uint64_t *no_number = (uint64_t *)(void *)((char *)memory + 4);

    NO_HANDLE(other, embank_bank_open(NULL, NULL, &other));
    NO_HANDLE(other, embank_bank_open(in_folder("handles"), NULL, &other));
    NO_HANDLE(other, embank_bank_open_read_only(NULL, NULL, 0, &other));
    NO_HANDLE(other, embank_bank_open_read_only(in_folder("handles"), NULL, 99, &other));
    NO_HANDLE(again, embank_bank_table(NULL, "new", &settings, &again));
    NO_HANDLE(again, embank_bank_table(bank, "new", &settings, &again));
    NO_HANDLE(again, embank_bank_open_table(NULL, "user", &again));
    NO_HANDLE(again, embank_bank_open_table(bank, "none", &again));
    NO_HANDLE(names, embank_bank_tables(NULL, &names));
    NO_HANDLE(bytes, embank_bank_recovered(NULL, NULL, &bytes));
    NO_HANDLE(bytes, embank_bank_recovered(bank, no_number, &bytes));
    NO_HANDLE(bytes, embank_bank_prometheus(NULL, &bytes));
    NO_HANDLE(lease, embank_table_get(NULL, &key, 1, row, 2, &lease));
    NO_HANDLE(lease, embank_table_get(table, &key, 1, row, 3, &lease));
    NO_HANDLE(lease, embank_table_get_rows(NULL, &key, 1, NULL, row, 2, NULL, &lease));
    NO_HANDLE(lease, embank_table_get_rows(table, &key, 1, NULL, row, 2, no_count, &lease));
    NO_HANDLE(queue, embank_bank_ahead_queue(NULL, &queue));
    NO_HANDLE(pending, embank_table_get_ahead(table, &key, 1, NULL, NULL, &pending));
    NO_HANDLE(lease, embank_pending_wait(NULL, row, 2, NULL, &lease));
    NO_HANDLE(scan, embank_table_scan(NULL, &scan));
    GOOD(embank_bank_drop_table(bank, "user"));
    NO_HANDLE(scan, embank_table_scan(table, &scan));
    NO_HANDLE(lease, embank_table_get(table, &key, 1, row, 2, &lease));
    embank_table_free(table);
    embank_bank_close(bank);
#undef NO_HANDLE
}

/* A table's settings are read back as they were set, and opening it with them works. */
static void dtypes_and_admission(void) {
    embank_bank *bank = open_bank("dtypes");
    const uint32_t dtypes[4] = {EMBANK_DTYPE_F32, EMBANK_DTYPE_F16, EMBANK_DTYPE_BF16, EMBANK_DTYPE_INT8};
    const float steps[4] = {0.0f, 0.0005f, 0.004f, 0.005f};
    const uint64_t key = 1;
    const float row[2] = {1.0f, 1.0f / 3.0f}, ones[2] = {1.0f, 1.0f}, longest[2] = {30.0f, 40.0f};
    float rows[2];
    embank_table *table, *again;
    for (int i = 0; i < 4; i++) {
        embank_table_settings settings = settings_of(2), told;
        char name[2] = {(char)('a' + i), 0};
        settings.dtype = dtypes[i];
        settings.state_dtype = EMBANK_DTYPE_BF16;
        settings.rounding = EMBANK_ROUNDING_NEAREST;
        settings.optimizer = embank_adagrad(0.5);
        settings.clip_row_norm = 1.0;
        settings.seed = 7;
        settings.tracking = EMBANK_TRACKING_SET_TIME;
        settings.staleness_bound = 3;
        GOOD(embank_bank_table(bank, name, &settings, &table));
        GOOD(embank_table_get_settings(table, &told, sizeof told));
        CHECK(memcmp(&settings, &told, sizeof told) == 0);
        GOOD(embank_bank_table(bank, name, &told, &again));
        embank_table_free(again);
        GOOD(embank_table_put(table, &key, 1, row, 2));
        GOOD(embank_table_peek(table, &key, 1, rows, 2, EMBANK_MISSING_ERROR, NULL));
        CHECK(fabsf(rows[0] - row[0]) <= steps[i] && fabsf(rows[1] - row[1]) <= steps[i]);
        CHECK(i == 0 || rows[1] != row[1]);
        GOOD(embank_table_apply_gradients(table, &key, 1, ones, 2));
        told.dtype = dtypes[(i + 1) % 4];
        BAD(EMBANK_STATUS_TABLE_MISMATCH, "dtype", embank_bank_table(bank, name, &told, &again));
        told = settings;
        told.state_dtype = EMBANK_DTYPE_F16;
        BAD(EMBANK_STATUS_TABLE_MISMATCH, "state dtype", embank_bank_table(bank, name, &told, &again));
        embank_table_free(table);
    }

    /* Settings that were read back and set again still limit gradients. */
    embank_table_settings settings = settings_of(2);
    settings.clip_row_norm = 1.0;
    GOOD(embank_bank_table(bank, "clipped", &settings, &table));
    GOOD(embank_table_get_settings(table, &settings, sizeof settings));
    GOOD(embank_bank_table(bank, "clipped", &settings, &again));
    GOOD(embank_table_apply_gradients(table, &key, 1, longest, 2));
    GOOD(embank_table_peek(table, &key, 1, rows, 2, EMBANK_MISSING_ERROR, NULL));
    CHECK(fabsf(rows[0] - 0.7f) < 1e-6f && fabsf(rows[1] - 0.6f) < 1e-6f);
    embank_table_free(again);
    embank_table_free(table);

    /* The second get makes the row. */
    embank_table_stats stats;
    embank_lease *lease;
    uint8_t present;
    settings = settings_of(2);
    settings.admission = EMBANK_ADMISSION_AFTER_GETS;
    settings.admission_gets = 2;
    GOOD(embank_bank_table(bank, "admitting", &settings, &table));
    for (uint8_t gets = 0; gets < 2; gets++) {
        GOOD(embank_table_get(table, &key, 1, rows, 2, &lease));
        GOOD(embank_lease_apply(lease, ones, 2));
        embank_lease_free(lease);
        GOOD(embank_table_contains(table, &key, 1, &present));
        CHECK(present == gets);
    }
    GOOD(embank_table_get_stats(table, &stats, sizeof stats));
    CHECK(stats.not_admitted_rows == 1);
    GOOD(embank_table_get_settings(table, &settings, sizeof settings));
    CHECK(settings.admission == EMBANK_ADMISSION_AFTER_GETS && settings.admission_gets == 2);
    embank_table_free(table);

    settings = settings_of(2);
    settings.state_dtype = EMBANK_DTYPE_INT8;
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "state_dtype", embank_bank_table(bank, "bad", &settings, &again));
    settings = settings_of(2);
    settings.rounding = EMBANK_ROUNDING_STOCHASTIC;
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "not rounded", embank_bank_table(bank, "bad", &settings, &again));
    settings = settings_of(2);
    settings.admission_gets = 2;
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "admission_gets", embank_bank_table(bank, "bad", &settings, &again));
    settings.admission_gets = 0;
    settings.admission = EMBANK_ADMISSION_PROBABILITY;
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "probability", embank_bank_table(bank, "bad", &settings, &again));
    embank_bank_close(bank);
}

static void *get_in_another_thread(void *table) {
    const uint64_t key = 1;
    float row[2];
    embank_lease *lease;
    BAD(EMBANK_STATUS_STALENESS_TIMEOUT, "bound", embank_table_get(table, &key, 1, row, 2, &lease));
    CHECK(lease == NULL);
    return NULL;
}

/* Every optimizer and initializer makes a table that learns. */
static void optimizers(void) {
    embank_bank *bank = open_bank("optimizers");
    const embank_optimizer all[6] = {embank_sgd(0.1),  embank_adagrad(0.1), embank_row_wise_adagrad(0.1),
                                     embank_adam(0.1), embank_adam_w(0.1),  embank_ftrl(0.1)};
    const embank_initializer starts[6] = {embank_constant(2.0f),
                                          embank_uniform(1.0f, 2.0f),
                                          embank_normal(5.0f, 0.1f),
                                          embank_truncated_normal(2.0f, 1.0f, 1.5f, 2.5f),
                                          embank_xavier_uniform(1.0f),
                                          embank_xavier_normal(1.0f)};
    for (int i = 0; i < 6; i++) {
        embank_table_settings settings = settings_of(2);
        embank_table *table;
        const uint64_t key = 1;
        const float gradient[2] = {1.0f, 1.0f};
        float before[2], after[2];
        char name[2] = {(char)('a' + i), 0};
        settings.optimizer = all[i];
        settings.initializer = starts[i];
        settings.clip_row_norm = 1.0;
        GOOD(embank_bank_table(bank, name, &settings, &table));
        GOOD(embank_table_initial(table, &key, 1, before, 2));
        GOOD(embank_table_apply_gradients(table, &key, 1, gradient, 2));
        GOOD(embank_table_peek(table, &key, 1, after, 2, EMBANK_MISSING_ERROR, NULL));
        CHECK(after[0] != before[0] && after[1] != before[1]);
        embank_table_free(table);
    }
    embank_bank_close(bank);
}

static void training_errors(void) {
    embank_bank *bank = open_bank("training");
    embank_table_settings settings = settings_of(2);
    embank_table *table, *plain;
    const uint64_t key = 1;
    float row[2];
    const float nan[2] = {0, NAN};
    embank_lease *lease;

    settings.staleness_bound = 0;
    GOOD(embank_bank_table(bank, "user", &settings, &table));
    GOOD(embank_table_get(table, &key, 1, row, 2, &lease));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, get_in_another_thread, table) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    /* Each thread has its own message, so the other thread's failure left this one unchanged. */
    CHECK(strstr(embank_last_error_message(), "bound") == NULL);
    embank_lease *again = lease;
    BAD(EMBANK_STATUS_SELF_BLOCKED, "own thread", embank_table_get(table, &key, 1, row, 2, &again));
    CHECK(again == NULL);
    GOOD(embank_lease_hand_over(lease));
    BAD(EMBANK_STATUS_STALENESS_TIMEOUT, "bound", embank_table_get(table, &key, 1, row, 2, &again));
    BAD(EMBANK_STATUS_NON_FINITE_GRADIENT, "column 1", embank_lease_apply(lease, nan, 2));
    embank_lease_free(lease);
    GOOD(embank_table_get(table, &key, 1, row, 2, &lease)); /* the free gave the count back */
    embank_lease_free(lease);

    settings.optimizer.kind = EMBANK_OPTIMIZER_KIND_NONE;
    GOOD(embank_bank_table(bank, "plain", &settings, &plain));
    BAD(EMBANK_STATUS_NO_OPTIMIZER, "plain", embank_table_apply_gradients(plain, &key, 1, row, 2));
    embank_table_free(plain);

    /* A get ends a lease that is older than the lease timeout. */
    embank_bank_options options;
    embank_bank *impatient;
    embank_table *expiring;
    embank_lease *second;
    GOOD(embank_bank_options_init(&options, sizeof options));
    options.memory_budget_bytes = 4 << 20;
    options.lease_timeout_ms = 1;
    GOOD(embank_bank_open(in_folder("expiring"), &options, &impatient));
    settings.optimizer = embank_sgd(0.5);
    GOOD(embank_bank_table(impatient, "user", &settings, &expiring));
    GOOD(embank_table_get(expiring, &key, 1, row, 2, &lease));
    /* This get waits until the first lease expires. */
    GOOD(embank_table_get(expiring, &key, 1, row, 2, &second));
    BAD(EMBANK_STATUS_LEASE_EXPIRED, "expired", embank_lease_apply(lease, row, 2));
    embank_lease_free(lease);
    embank_lease_free(second);

    /* A get of another row ends an old lease too. Releasing that lease is no error and does
     * nothing. */
    const uint64_t other_key = 2;
    embank_table_stats counters;
    GOOD(embank_table_get_stats(expiring, &counters, sizeof counters));
    const uint64_t expired = counters.leases_expired;
    GOOD(embank_table_get(expiring, &key, 1, row, 2, &lease));
    for (int tries = 0; counters.leases_expired == expired && tries < 10000000; tries++) {
        GOOD(embank_table_get(expiring, &other_key, 1, row, 2, &second));
        GOOD(embank_lease_release(second));
        embank_lease_free(second);
        GOOD(embank_table_get_stats(expiring, &counters, sizeof counters));
    }
    CHECK(counters.leases_expired == expired + 1);
    BAD(EMBANK_STATUS_LEASE_EXPIRED, "expired", embank_lease_apply(lease, row, 2));
    embank_lease_free(lease);
    GOOD(embank_table_get(expiring, &key, 1, row, 2, &lease));
    for (int tries = 0; counters.leases_expired == expired + 1 && tries < 10000000; tries++) {
        GOOD(embank_table_get(expiring, &other_key, 1, row, 2, &second));
        GOOD(embank_lease_release(second));
        embank_lease_free(second);
        GOOD(embank_table_get_stats(expiring, &counters, sizeof counters));
    }
    GOOD(embank_lease_release(lease));
    embank_lease_free(lease);
    embank_table_free(expiring);
    embank_bank_close(impatient);

    /* In a forked child calls fail, and freeing does nothing. */
    embank_ahead_queue *queue;
    embank_pending *before_fork, *pending;
    uint8_t ready;
    GOOD(embank_table_get(table, &key, 1, row, 2, &lease));
    GOOD(embank_bank_ahead_queue(bank, &queue));
    GOOD(embank_table_get_ahead(table, &other_key, 1, NULL, queue, &before_fork));
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        BAD(EMBANK_STATUS_FORKED, "fork", embank_table_put(table, &key, 1, row, 2));
        BAD(EMBANK_STATUS_FORKED, "fork", embank_bank_checkpoint(bank, NULL, 0, NULL));
        BAD(EMBANK_STATUS_FORKED, "fork", embank_table_get_ahead(table, &key, 1, NULL, queue, &pending));
        CHECK(pending == NULL);
        BAD(EMBANK_STATUS_FORKED, "fork", embank_pending_is_ready(before_fork, &ready));
        BAD(EMBANK_STATUS_FORKED, "fork", embank_pending_wait(before_fork, row, 2, NULL, &second));
        embank_pending_free(before_fork);
        embank_ahead_queue_free(queue);
        embank_lease_free(lease);
        embank_table_free(table);
        embank_bank_close(bank);
        _exit(0);
    }
    int state;
    CHECK(waitpid(child, &state, 0) == child && WIFEXITED(state) && WEXITSTATUS(state) == 0);
    GOOD(embank_lease_apply(lease, row, 2));
    GOOD(embank_pending_wait(before_fork, row, 2, NULL, &second));
    embank_lease_free(second);
    embank_pending_free(before_fork);
    embank_ahead_queue_free(queue);
    embank_bank_close(bank); /* handles may be freed in any order */
    embank_table_free(table);
    embank_lease_free(lease);
}

/* Gives the descriptors of the files below `folder` to /dev/null. Returns their number. */
static int take_segments(const char *folder) {
    char link[64], path[4096];
    int count = 0;
    int null = open("/dev/null", O_RDWR);
    CHECK(null >= 0);
    for (int number = 3; number < 4096; number++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", number);
        ssize_t length = readlink(link, path, sizeof path - 1);
        if (length < 0) continue;
        path[length] = 0;
        if (strstr(path, folder) == path && strstr(path, ".seg") != NULL) {
            CHECK(dup2(null, number) == number);
            count++;
        }
    }
    close(null);
    return count;
}

static void disk_errors(const char *foreign) {
    embank_bank *bank = open_bank("disk"), *other;
    embank_table *table = table_of(bank, "user");
    embank_bank_options options;
    const uint64_t key = 1;
    float row[2] = {1, 2};
    embank_lease *lease;

    BAD(EMBANK_STATUS_LOCKED, "open for writing", embank_bank_open(in_folder("disk"), NULL, &other));
    GOOD(embank_table_put(table, &key, 1, row, 2));
    GOOD(embank_bank_checkpoint(bank, NULL, 0, NULL));

    GOOD(embank_bank_open_read_only(in_folder("disk"), NULL, 1, &other));
    embank_table *read_only;
    GOOD(embank_bank_open_table(other, "user", &read_only));
    BAD(EMBANK_STATUS_READ_ONLY, "read-only", embank_table_get(read_only, &key, 1, row, 2, &lease));
    embank_bank_close(other);
    embank_table_free(read_only);

    GOOD(embank_bank_options_init(&options, sizeof options));
    options.memory_budget_bytes = 1;
    BAD(EMBANK_STATUS_BUDGET_TOO_SMALL, "budget", embank_bank_open(in_folder("small"), &options, &other));
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "is a file", embank_bank_open("/dev/null/bank", NULL, &other));
    BAD(EMBANK_STATUS_UNREADABLE_TABLE, "vocabulary", embank_bank_open(foreign, NULL, &other));

    /* Current rows use up the whole quota. */
    GOOD(embank_bank_options_init(&options, sizeof options));
    options.memory_budget_bytes = 1 << 20;
    options.disk_quota_bytes = 2 << 20;
    GOOD(embank_bank_open(in_folder("quota"), &options, &other));
    embank_table *filling = table_of(other, "user");
    static uint64_t keys[1000];
    static float rows[2000];
    embank_status status = EMBANK_STATUS_OK;
    for (uint64_t start = 0; status == EMBANK_STATUS_OK && start < 1000; start++) {
        for (uint64_t i = 0; i < 1000; i++) keys[i] = start * 1000 + i;
        status = embank_table_put(filling, keys, 1000, rows, 2000);
    }
    BAD(EMBANK_STATUS_QUOTA_EXCEEDED, "quota", status);
    embank_table_free(filling);
    embank_bank_close(other);

    /* A file that can't grow: no row is lost. */
    struct rlimit limit, none;
    CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    none = limit;
    none.rlim_cur = 0;
    signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0);
    row[0] = 3;
    GOOD(embank_table_put(table, &key, 1, row, 2));
    BAD(EMBANK_STATUS_DISK_FULL, "ulimit -f", embank_bank_checkpoint(bank, NULL, 0, NULL));
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);

    /* A segment whose descriptor other code has closed: the bank writes no more. */
    CHECK(take_segments(in_folder("disk/log")) > 0);
    status = EMBANK_STATUS_IO;
    for (int tries = 0; status == EMBANK_STATUS_IO && tries < 1000; tries++) {
        status = embank_bank_checkpoint(bank, NULL, 0, NULL);
    }
    CHECK(status == EMBANK_STATUS_POISONED);
    BAD(EMBANK_STATUS_POISONED, "reopen", embank_bank_checkpoint(bank, NULL, 0, NULL));
    embank_table_free(table);
    embank_bank_close(bank);

    /* The checkpoint before the failure is good; a flipped bit in it is reported. */
    bank = open_bank("disk");
    GOOD(embank_bank_open_table(bank, "user", &table));
    GOOD(embank_table_peek(table, &key, 1, row, 2, EMBANK_MISSING_ERROR, NULL));
    CHECK(row[0] == 1);
    embank_table_free(table);
    embank_bank_close(bank);
    FILE *file = fopen(in_folder("disk/BANK"), "r+b");
    CHECK(file != NULL && fseek(file, 20, SEEK_SET) == 0);
    int byte = fgetc(file);
    CHECK(byte != EOF && fseek(file, 20, SEEK_SET) == 0 && fputc(byte ^ 1, file) != EOF && fclose(file) == 0);
    BAD(EMBANK_STATUS_DAMAGED, "damaged", embank_bank_open(in_folder("disk"), NULL, &other));
}

static void vocabularies(void) {
    embank_bank *bank = open_bank("vocabularies");
    embank_vocabulary_settings settings, found;
    embank_vocabulary *words, *numbers;
    GOOD(embank_vocabulary_settings_init(&settings, sizeof settings));
    CHECK(settings.kind == EMBANK_VALUE_KIND_U64 && settings.value_bytes_max == 1024);
    GOOD(embank_bank_vocabulary(bank, "number", &settings, &numbers));
    settings.kind = EMBANK_VALUE_KIND_BYTES;
    settings.first_id = 1;
    settings.unknown = EMBANK_UNKNOWN_ID;
    settings.unknown_id = 0;
    GOOD(embank_bank_vocabulary(bank, "word", &settings, &words));
    GOOD(embank_vocabulary_get_settings(words, &found, sizeof found));
    CHECK(memcmp(&found, &settings, sizeof found) == 0);

    /* The values are "red", "", "blue" and "red". */
    const uint64_t offsets[5] = {0, 3, 3, 7, 10};
    uint64_t ids[4], len, next_id;
    GOOD(embank_vocabulary_ids_of_bytes(words, offsets, 4, "redbluered", 10, EMBANK_UNKNOWN_VALUES_MARK, ids));
    CHECK(ids[0] == EMBANK_NO_ID && ids[3] == EMBANK_NO_ID);
    GOOD(embank_vocabulary_ids_of_bytes(words, offsets, 4, "redbluered", 10, EMBANK_UNKNOWN_VALUES_AS_SETTINGS, ids));
    CHECK(ids[0] == 0 && ids[2] == 0);
    GOOD(embank_vocabulary_ids_of_bytes(words, offsets, 4, "redbluered", 10, EMBANK_UNKNOWN_VALUES_INSERT, ids));
    CHECK(ids[0] == 1 && ids[1] == 2 && ids[2] == 3 && ids[3] == 1);
    GOOD(embank_vocabulary_len(words, &len, &next_id));
    CHECK(len == 3 && next_id == 4);
    GOOD(embank_vocabulary_len(words, NULL, NULL));
    embank_byte_strings *strings;
    size_t size = 99;
    GOOD(embank_vocabulary_byte_strings(words, ids, 4, &strings));
    CHECK(embank_byte_strings_count(strings) == 4);
    CHECK(memcmp(embank_byte_strings_at(strings, 2, &size), "blue", 4) == 0 && size == 4);
    CHECK(embank_byte_strings_at(strings, 1, &size) != NULL && size == 0);
    CHECK(embank_byte_strings_at(strings, 4, &size) == NULL && size == 0);
    CHECK(embank_byte_strings_at(NULL, 0, NULL) == NULL && embank_byte_strings_count(NULL) == 0);
    embank_byte_strings_free(strings);

    const uint64_t values[3] = {900, 800, 900};
    uint64_t back[2];
    BAD(EMBANK_STATUS_UNKNOWN_VALUE, "900",
        embank_vocabulary_ids_of_numbers(numbers, values, 3, EMBANK_UNKNOWN_VALUES_AS_SETTINGS, ids));
    GOOD(embank_vocabulary_ids_of_numbers(numbers, values, 3, EMBANK_UNKNOWN_VALUES_INSERT, ids));
    CHECK(ids[0] == 0 && ids[1] == 1 && ids[2] == 0);
    GOOD(embank_vocabulary_numbers(numbers, ids, 2, back));
    CHECK(back[0] == 900 && back[1] == 800);
    GOOD(embank_vocabulary_ids_of_numbers(numbers, NULL, 0, EMBANK_UNKNOWN_VALUES_INSERT, NULL));

    /* Arguments that do not fit the vocabulary are refused. */
    const uint64_t wrong_offsets[2] = {0, 11}, no_id = 7;
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "offset",
        embank_vocabulary_ids_of_bytes(words, wrong_offsets, 1, "redbluered", 10, EMBANK_UNKNOWN_VALUES_MARK, ids));
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "bytes values",
        embank_vocabulary_ids_of_numbers(words, values, 3, EMBANK_UNKNOWN_VALUES_MARK, ids));
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "embank_unknown_values",
        embank_vocabulary_ids_of_numbers(numbers, values, 3, 9, ids));
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "overlap",
        embank_vocabulary_ids_of_numbers(numbers, ids, 3, EMBANK_UNKNOWN_VALUES_MARK, ids));
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "embank_vocabulary_numbers",
        embank_vocabulary_byte_strings(numbers, ids, 1, &strings));
    CHECK(strings == NULL);
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "embank_vocabulary_byte_strings",
        embank_vocabulary_numbers(words, back, 0, back + 1));
    BAD(EMBANK_STATUS_UNKNOWN_ID, "7", embank_vocabulary_numbers(numbers, &no_id, 1, back));
    embank_vocabulary *other;
    settings.first_id = 2;
    BAD(EMBANK_STATUS_VOCABULARY_MISMATCH, "embank_bank_open_vocabulary", embank_bank_vocabulary(bank, "word", &settings, &other));
    settings.first_id = 1;
    settings.unknown = EMBANK_UNKNOWN_ERROR;
    settings.unknown_id = 5;
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "unknown_id", embank_bank_vocabulary(bank, "third", &settings, &other));
    BAD(EMBANK_STATUS_NO_SUCH_VOCABULARY, "embank_bank_vocabulary", embank_bank_open_vocabulary(bank, "none", &other));
    CHECK(other == NULL);
    GOOD(embank_vocabulary_set_frozen(numbers, 1));
    const uint64_t unheard_of = 5;
    BAD(EMBANK_STATUS_UNKNOWN_VALUE, "5",
        embank_vocabulary_ids_of_numbers(numbers, &unheard_of, 1, EMBANK_UNKNOWN_VALUES_INSERT, ids));
    GOOD(embank_vocabulary_set_frozen(numbers, 0));
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "frozen", embank_vocabulary_set_frozen(numbers, 2));

    /* A table whose keys are ids. embank_bank_table must accept its settings. */
    embank_table_settings of_table = settings_of(2), told;
    embank_table *table, *again;
    embank_bytes *name;
    GOOD(embank_bank_table_of_vocabulary(bank, "word", &of_table, "word", &table));
    GOOD(embank_table_get_settings(table, &told, sizeof told));
    GOOD(embank_bank_table(bank, "word", &told, &again));
    GOOD(embank_table_vocabulary(again, &name));
    CHECK(strcmp(embank_bytes_data(name), "word") == 0);
    embank_bytes_free(name);
    embank_table_free(again);
    float rows[2];
    embank_lease *lease;
    const uint64_t id = 1;
    GOOD(embank_table_get(table, &id, 1, rows, 2, &lease));
    embank_lease_free(lease);
    BAD(EMBANK_STATUS_UNKNOWN_ID, "7", embank_table_get(table, &no_id, 1, rows, 2, &lease));
    BAD(EMBANK_STATUS_NO_SUCH_VOCABULARY, "none",
        embank_bank_table_of_vocabulary(bank, "none", &of_table, "none", &again));
    GOOD(embank_bank_table(bank, "plain", &of_table, &again));
    GOOD(embank_table_vocabulary(again, &name));
    CHECK(name == NULL);
    embank_table_free(again);

    embank_names *names;
    GOOD(embank_bank_vocabularies(bank, &names));
    CHECK(embank_names_count(names) == 2 && strcmp(embank_names_at(names, 1), "word") == 0);
    embank_names_free(names);
    GOOD(embank_bank_drop_vocabulary(bank, "word"));
    BAD(EMBANK_STATUS_VOCABULARY_DROPPED, "embank_bank_vocabulary", embank_vocabulary_numbers(words, &id, 1, back));
    BAD(EMBANK_STATUS_OTHER_VOCABULARY, "word", embank_bank_open_table(bank, "word", &again));
    embank_table_free(table);
    embank_vocabulary_free(words);
    embank_vocabulary_free(numbers);
    embank_vocabulary_free(NULL);
    embank_bank_close(bank);
}

static void waits_of_one_call(void) {
    embank_bank *bank = open_bank("waits");
    embank_table_settings settings = settings_of(1);
    embank_table *table;
    embank_lease *held, *lease;
    const uint64_t key = 1;
    float row[1];
    settings.staleness_bound = 0;
    GOOD(embank_bank_table(bank, "user", &settings, &table));
    embank_request request;
    GOOD(embank_request_init(&request, sizeof request));
    request.timeout_ms = 0;
    GOOD(embank_table_get_rows(table, &key, 1, &request, row, 1, NULL, &held));
    GOOD(embank_lease_hand_over(held));
    BAD(EMBANK_STATUS_STALENESS_TIMEOUT, "wait_timeout_ms", embank_table_get_rows(table, &key, 1, &request, row, 1, NULL, &lease));
    CHECK(lease == NULL);
    request.timeout_ms = 5;
    BAD(EMBANK_STATUS_STALENESS_TIMEOUT, "user", embank_table_get_rows(table, &key, 1, &request, row, 1, NULL, &lease));
    GOOD(embank_lease_release(held));
    request.timeout_ms = 0;
    GOOD(embank_table_get_rows(table, &key, 1, &request, row, 1, NULL, &lease));
    embank_lease_free(lease);
    embank_lease_free(held);
    embank_table_free(table);
    embank_bank_close(bank);
}

/* Checks that each call refuses a batch of 2^32 keys. The keys and the rows are a sparse file, so
 * they take no memory. */
static void batches_of_too_many_keys(void) {
    const size_t many = (size_t)1 << 32;
    embank_bank *bank = open_bank("too many");
    embank_table_settings settings = settings_of(1);
    embank_table *table;
    embank_lease *lease;
    const uint64_t offsets[] = {0, many};
    const embank_bags bags = {offsets, 2, NULL, EMBANK_POOLING_SUM, 0};
    float row[1];
    const enum embank_status refused = EMBANK_STATUS_INVALID_ARGUMENT;
    const char *word = "at most 4,294,967,295 keys";
    int file = open(in_folder("keys"), O_RDWR | O_CREAT, 0600);
    CHECK(file >= 0);
    int is_sparse = ftruncate(file, (off_t)(many * sizeof(uint64_t))) == 0;
    uint64_t *keys = mmap(NULL, many * sizeof *keys, PROT_READ, MAP_SHARED, file, 0);
    float *rows = mmap(NULL, many * sizeof *rows, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (is_sparse && keys != MAP_FAILED && rows != MAP_FAILED) {
        GOOD(embank_bank_table(bank, "user", &settings, &table));
        BAD(refused, word, embank_table_get(table, keys, many, rows, many, &lease));
        embank_request request;
        GOOD(embank_request_init(&request, sizeof request));
        request.per = EMBANK_ROW_PER_BAG;
        request.bags = &bags;
        BAD(refused, word, embank_table_get_rows(table, keys, many, NULL, rows, many, NULL, &lease));
        BAD(refused, word, embank_table_get_rows(table, keys, many, &request, row, 1, NULL, &lease));
        BAD(refused, word, embank_table_peek_bags(table, keys, many, &bags, row, 1));
        BAD(refused, word, embank_table_peek(table, keys, many, rows, many, EMBANK_MISSING_INITIAL, NULL));
        BAD(refused, word, embank_table_initial(table, keys, many, rows, many));
        BAD(refused, word, embank_table_put(table, keys, many, rows, many));
        BAD(refused, word, embank_table_apply_gradients(table, keys, many, rows, many));
        BAD(refused, word, embank_table_delete(table, keys, many, NULL));
        BAD(refused, word, embank_table_lookahead(table, keys, many, NULL));
        embank_table_free(table);
    } else {
        puts("skipped: this system maps no sparse file of 32 GiB");
    }
    if (keys != MAP_FAILED) {
        munmap(keys, many * sizeof *keys);
    }
    if (rows != MAP_FAILED) {
        munmap(rows, many * sizeof *rows);
    }
    close(file);
    unlink(in_folder("keys"));
    embank_bank_close(bank);
}

/* The tests whose only cancellation points are inside calls of the library. */
static void tests_without_cancellation_points(void) {
    rows_and_leases();
    read_modify_write();
    bags();
    gets_ahead();
    checkpoints();
    tables_and_lookahead();
    evictions();
    files();
    bad_arguments();
    handles_after_failures();
    optimizers();
    dtypes_and_admission();
    vocabularies();
    waits_of_one_call();
}

static int cancelled_after;

/* The request to cancel the thread is pending at every cancellation point of the calls. In the
 * callback there is one too. */
static int32_t pass_cancellation_point(void *context, uint64_t done, uint64_t total) {
    (void)context, (void)done, (void)total;
    pthread_testcancel();
    return 0;
}

static void *work_while_cancelled(void *bank_name) {
    const uint64_t key = 1;
    float row[2] = {1, 2};
    int state;

    CHECK(pthread_cancel(pthread_self()) == 0);
    embank_bank *bank = open_bank(bank_name);
    embank_table *table = table_of(bank, "user");
    GOOD(embank_table_put(table, &key, 1, row, 2));
    GOOD(embank_bank_checkpoint(bank, NULL, 0, NULL));
    embank_export_options out;
    GOOD(embank_export_options_init(&out, sizeof out));
    out.progress = pass_cancellation_point;
    GOOD(embank_table_export(table, in_folder("cancelled.npy"), &out, NULL, 0));
    embank_table_free(table);
    embank_bank_close(bank);
    cancelled_after = 1;
    pthread_testcancel();
    /* Only a thread that has disabled cancellation itself comes here. */
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state) == 0);
    CHECK(state == PTHREAD_CANCEL_DISABLE);
    return NULL;
}

static void *work_with_cancellation_disabled(void *bank_name) {
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL) == 0);
    return work_while_cancelled(bank_name);
}

/* Calls that succeed and that fail, in a call. After them the outer call still runs, so the thread
 * must not be cancelled yet. */
static int32_t call_in_a_call(void *table, uint64_t done, uint64_t total) {
    const uint64_t key = 1;
    float row[2];
    (void)done, (void)total;
    GOOD(embank_table_peek(table, &key, 1, row, 2, EMBANK_MISSING_ERROR, NULL));
    BAD(EMBANK_STATUS_INVALID_ARGUMENT, "NULL", embank_table_peek(NULL, &key, 1, row, 2, 0, NULL));
    pthread_testcancel();
    return 1;
}

static void *nest_calls_while_cancelled(void *bank_name) {
    const uint64_t key = 1;
    const float row[2] = {1, 2};
    int state;

    CHECK(pthread_cancel(pthread_self()) == 0);
    embank_bank *bank = open_bank(bank_name);
    embank_table *table = table_of(bank, "user");
    GOOD(embank_table_put(table, &key, 1, row, 2));
    GOOD(embank_bank_checkpoint(bank, NULL, 0, NULL));
    embank_export_options out;
    GOOD(embank_export_options_init(&out, sizeof out));
    out.progress = call_in_a_call;
    out.context = table;
    BAD(EMBANK_STATUS_CANCELLED, "ended", embank_table_export(table, in_folder("ended.npy"), &out, NULL, 0));
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state) == 0);
    CHECK(state == PTHREAD_CANCEL_ENABLE);
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL) == 0);
    embank_bank_close(bank);
    embank_table_free(table); /* frees the last handle, and so closes the bank */
    cancelled_after = 1;
    pthread_testcancel();
    return NULL;
}

/* Handles of a thread, and the number of times that its cleanup handler has freed them. */
static struct {
    embank_bank *bank;
    embank_table *table;
    embank_lease *lease;
    int freed;
} held;

/* Runs while the cancelled thread unwinds. */
static void free_held(void *unused) {
    const float gradients[2] = {1, 1};
    (void)unused;
    BAD(EMBANK_STATUS_SHAPE_MISMATCH, "gradients", embank_lease_apply(held.lease, gradients, 1));
    GOOD(embank_lease_apply(held.lease, gradients, 2));
    GOOD(embank_bank_checkpoint(held.bank, NULL, 0, NULL));
    embank_lease_free(held.lease);
    embank_table_free(held.table);
    embank_bank_close(held.bank);
    held.freed++;
}

static void *free_handles_when_cancelled(void *bank_name) {
    const uint64_t key = 1;
    float row[2];

    held.bank = open_bank(bank_name);
    held.table = table_of(held.bank, "user");
    GOOD(embank_table_get(held.table, &key, 1, row, 2, &held.lease));
    pthread_cleanup_push(free_held, NULL);
    CHECK(pthread_cancel(pthread_self()) == 0);
    pthread_testcancel();
    pthread_cleanup_pop(0);
    return NULL;
}

static void *test_while_cancelled(void *unused) {
    (void)unused;
    CHECK(pthread_cancel(pthread_self()) == 0);
    tests_without_cancellation_points();
    cancelled_after = 1;
    pthread_testcancel();
    return NULL;
}

/* Runs `work` in a thread. Checks that the thread was cancelled, but after its calls. */
static void is_cancelled_after(void *(*work)(void *), char *bank_name) {
    pthread_t thread;
    void *ended;

    cancelled_after = 0;
    CHECK(pthread_create(&thread, NULL, work, bank_name) == 0);
    CHECK(pthread_join(thread, &ended) == 0);
    CHECK(ended == PTHREAD_CANCELED && cancelled_after);
}

/* A cancelled thread once aborted the process in a call. */
static void cancelled_threads(void) {
    pthread_t thread;
    void *ended;

    is_cancelled_after(work_while_cancelled, "cancelled");
    is_cancelled_after(nest_calls_while_cancelled, "cancelled-nested");

    CHECK(pthread_create(&thread, NULL, work_with_cancellation_disabled, "not-cancelled") == 0);
    CHECK(pthread_join(thread, &ended) == 0);
    CHECK(ended == NULL);

    /* The other tests in a new folder: calls that wait, that fail, and that a callback ends. */
    size_t length = strlen(folder);
    CHECK(length + sizeof "/cancelled-calls" <= sizeof folder);
    strcpy(folder + length, "/cancelled-calls");
    CHECK(mkdir(folder, 0700) == 0);
    is_cancelled_after(test_while_cancelled, NULL);
    folder[length] = 0;
}

/* The cleanup handler of a cancelled thread ends its work and frees its handles. */
static void handles_of_a_cancelled_thread(void) {
    const uint64_t key = 1;
    float row[2];
    pthread_t thread;
    void *ended;

    CHECK(pthread_create(&thread, NULL, free_handles_when_cancelled, "cleanup") == 0);
    CHECK(pthread_join(thread, &ended) == 0);
    CHECK(ended == PTHREAD_CANCELED && held.freed == 1);
    embank_bank *bank = open_bank("cleanup");
    embank_table *table = table_of(bank, "user");
    GOOD(embank_table_peek(table, &key, 1, row, 2, EMBANK_MISSING_ERROR, NULL));
    CHECK(row[0] == 0.5f && row[1] == 0.5f);
    embank_table_free(table);
    embank_bank_close(bank);
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: %s FOLDER BANK_WITH_A_FOREIGN_TABLE\n", arguments[0]);
        return 2;
    }
    snprintf(folder, sizeof folder, "%s", arguments[1]);
    CHECK(strlen(embank_version()) >= 5);
    CHECK(strcmp(embank_last_error_message(), "") == 0);
    CHECK(strcmp(embank_status_name(EMBANK_STATUS_LEASE_ENDED), "LEASE_ENDED") == 0);
    training_errors(); /* first: it expects that no call of this thread has met a bound */
    tests_without_cancellation_points();
    batches_of_too_many_keys();
    cancelled_threads();
    handles_of_a_cancelled_thread();
    disk_errors(arguments[2]);
    puts("all checks passed");
    return 0;
}
