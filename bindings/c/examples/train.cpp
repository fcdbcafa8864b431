// A recommender in 150 lines of C++: the tutorial of Embank's C ABI.
//
// Every user and every item has a row of 16 numbers, and a rating is predicted by their product,
// row by row (matrix factorisation). The rows lie in a bank, a directory that may be many times
// larger than the memory it is given. We train, take a checkpoint, train on, lose the process,
// resume from the checkpoint, and get the same rows again.
//
//   cargo build --release -p embank-c
//   c++ -std=c++17 -O2 -I bindings/c/include bindings/c/examples/train.cpp -o train
//       -L target/release -lembank_c -Wl,-rpath,target/release     (one line)
//   ./train /tmp/ratings.bank

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "embank.h"

// 1. Errors and handles. Every call returns a status, and embank_last_error_message() explains a
//    failure. Every handle is freed once, by the function of its type; a unique_ptr does that here.

void check(embank_status status) {
    if (status != EMBANK_STATUS_OK) throw std::runtime_error(embank_last_error_message());
}

template <auto free> struct Freed {
    template <typename T> void operator()(T *handle) const { free(handle); }
};
using Bank = std::unique_ptr<embank_bank, Freed<embank_bank_close>>;
using Table = std::unique_ptr<embank_table, Freed<embank_table_free>>;
using Lease = std::unique_ptr<embank_lease, Freed<embank_lease_free>>;
using Bytes = std::unique_ptr<embank_bytes, Freed<embank_bytes_free>>;

// 2. A bank. Its budget covers all memory that it uses. The bank opens at its newest checkpoint, or
//    empty if it has none.

constexpr uint32_t dim = 16;

Bank open_bank(const std::string &path) {
    embank_bank_options options;
    check(embank_bank_options_init(&options, sizeof options)); // defaults
    options.memory_budget_bytes = 8 << 20;
    embank_bank *bank = nullptr;
    check(embank_bank_open(path.c_str(), &options, &bank));
    return Bank(bank);
}

// 3. A table: the dim of its rows, their initial values, and the optimizer. A key is any 64-bit
//    number. No key has to be declared: the first get of a key makes its row.

Table open_table(const Bank &bank, const char *name) {
    embank_table_settings settings;
    check(embank_table_settings_init(&settings, sizeof settings));
    settings.dim = dim;
    settings.optimizer = embank_adagrad(0.1);
    settings.initializer = embank_normal(0.0f, 0.1f);
    settings.seed = 7;
    embank_table *table = nullptr;
    check(embank_bank_table(bank.get(), name, &settings, &table));
    return Table(table);
}

// The ratings come from tastes that the trainer does not know. Batch `step` is equal in every run,
// so a resumed run sees the data that the first run saw.
struct Batch {
    std::vector<uint64_t> users, items;
    std::vector<float> ratings;
};

float taste(uint64_t key, int side) { return std::sin(static_cast<float>(key % 97 + 1) * (side ? 1.7f : 0.9f)); }

Batch batch_of(uint64_t step) {
    std::mt19937_64 random(step);
    Batch batch;
    for (int i = 0; i < 512; i++) {
        const uint64_t user = random() % 5000, item = random() % 1000;
        batch.users.push_back(user);
        batch.items.push_back(item);
        batch.ratings.push_back(taste(user, 0) * taste(item, 1));
    }
    return batch;
}

// 4. One step. Get the rows of the batch (keys may repeat), compute, and pass a gradient per key to
//    the lease of the rows. The optimizer runs in the store, once per distinct key. Freeing a lease
//    without a gradient leaves the rows unchanged.

double train_step(const Table &users, const Table &items, const Batch &batch) {
    const size_t count = batch.users.size(), values = count * dim;
    std::vector<float> user_rows(values), item_rows(values);
    embank_lease *lease = nullptr;
    check(embank_table_get(users.get(), batch.users.data(), count, user_rows.data(), values, &lease));
    const Lease user_lease(lease);
    check(embank_table_get(items.get(), batch.items.data(), count, item_rows.data(), values, &lease));
    const Lease item_lease(lease);

    std::vector<float> user_gradients(values), item_gradients(values);
    double loss = 0;
    for (size_t i = 0; i < count; i++) {
        const float *user = &user_rows[i * dim], *item = &item_rows[i * dim];
        float predicted = 0;
        for (uint32_t d = 0; d < dim; d++) predicted += user[d] * item[d];
        const float error = predicted - batch.ratings[i];
        loss += error * error / static_cast<float>(count);
        for (uint32_t d = 0; d < dim; d++) {
            user_gradients[i * dim + d] = error * item[d];
            item_gradients[i * dim + d] = error * user[d];
        }
    }
    check(embank_lease_apply(user_lease.get(), user_gradients.data(), values));
    check(embank_lease_apply(item_lease.get(), item_gradients.data(), values));
    return loss;
}

// 5. Many steps. The keys of the batch after the next are announced ahead, so that their rows are
//    in memory when the batch gets them. The announcement never waits.

double train(const Table &users, const Table &items, uint64_t from, uint64_t to) {
    double loss = 0;
    for (uint64_t step = from; step < to; step++) {
        const Batch ahead = batch_of(step + 2);
        check(embank_table_lookahead(users.get(), ahead.users.data(), ahead.users.size(), nullptr));
        check(embank_table_lookahead(items.get(), ahead.items.data(), ahead.items.size(), nullptr));
        loss = train_step(users, items, batch_of(step));
        if (step % 200 == 0) std::printf("step %4llu  loss %.4f\n", static_cast<unsigned long long>(step), loss);
    }
    return loss;
}

// 6. A peek at rows for evaluation. It changes nothing.

std::vector<float> look(const Table &table, uint64_t keys) {
    std::vector<uint64_t> all(keys);
    for (uint64_t key = 0; key < keys; key++) all[key] = key;
    std::vector<float> rows(keys * dim);
    check(embank_table_peek(table.get(), all.data(), keys, rows.data(), rows.size(), EMBANK_MISSING_INITIAL, nullptr));
    return rows;
}

int main(int count, char **arguments) try {
    if (count != 2) {
        std::fprintf(stderr, "usage: %s DIRECTORY_OF_THE_BANK\n", arguments[0]);
        return 2;
    }
    const std::string path = arguments[1];
    const uint64_t half = 600, end = 1200;
    std::vector<float> users_at_the_end, items_at_the_end;
    {
        const Bank bank = open_bank(path);
        const Table users = open_table(bank, "user"), items = open_table(bank, "item");
        train(users, items, 0, half);

        // 7. A checkpoint: all tables, and bytes of our own (here the step), durable when the call
        //    returns.
        uint64_t number = 0;
        check(embank_bank_checkpoint(bank.get(), &half, sizeof half, &number));
        std::printf("checkpoint %llu\n", static_cast<unsigned long long>(number));

        train(users, items, half, end);
        users_at_the_end = look(users, 5000);
        items_at_the_end = look(items, 1000);

        embank_bank_stats stats;
        check(embank_bank_get_stats(bank.get(), &stats, sizeof stats));
        std::printf("%llu rows, %llu KiB of memory\n", static_cast<unsigned long long>(stats.live_rows),
                    static_cast<unsigned long long>(stats.memory_used_bytes / 1024));
    } // Closing takes no checkpoint: changes after the last one are gone.

    // 8. Resuming: the rows are those of the checkpoint, and its bytes hold the step to go on with.
    const Bank bank = open_bank(path);
    embank_bytes *bytes = nullptr;
    check(embank_bank_recovered(bank.get(), nullptr, &bytes));
    const Bytes blob(bytes);
    uint64_t step = 0;
    if (embank_bytes_size(bytes) != sizeof step) throw std::runtime_error("another program took the checkpoint");
    std::memcpy(&step, embank_bytes_data(bytes), sizeof step);
    std::printf("resuming at step %llu\n", static_cast<unsigned long long>(step));

    const Table users = open_table(bank, "user"), items = open_table(bank, "item");
    const double loss = train(users, items, step, end);
    if (look(users, 5000) != users_at_the_end || look(items, 1000) != items_at_the_end) {
        throw std::runtime_error("the two runs differ");
    }
    std::printf("resumed to the same rows; last loss %.4f\n", loss);
    return 0;
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
