// SPDX-License-Identifier: Apache-2.0
// The tensor-parallel group between processes, under mpirun with any number of ranks: collectives over MPI and over
// shared memory. On both, the engine's results are compared with those of threads of one process. All ranks run the
// same tests in the same order. A rank that fails ends the job, so that the others do not wait for it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "engine/comm_mpi.h"
#include "engine/comm_shm.h"
#include "engine/engine.h"
#include "engine/group.h"
#include "kernels/convert.h"
#include "lib/base/cores.h"
#include "lib/base/cpu_limits.h"
#include "lib/base/log.h"
#include "tests/forward.h"
#include "tests/suite.h"
#include "tests/tiny_model.h"

enum { SHM, MPI, MPI_BF16, COMMS };
static struct comm *comms[COMMS]; // of this group, which is on one host, and of a group across hosts
static struct comm *comm;         // the one under test

#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: rank %d of %d: %s (%s)\n", __FILE__, __LINE__, comm->rank, comm->size, #condition, \
                    status_message());                                                                                 \
            group_abort(comm, 1);                                                                                      \
        }                                                                                                              \
    } while (0)

// ---- collectives ----

// Returns a value with random bits. All values have a similar size. For some of them, every order of the ranks gives a
// different sum.
static float rank_value(int rank, size_t i)
{
    uint32_t x = (uint32_t)i * 2654435761u + (uint32_t)rank * 0x9e3779b9u + 1;
    x = (x ^ (x >> 15)) * 0x85ebca6bu;
    x ^= x >> 13;
    return (float)x * 0x1p-31f - 1;
}

// Returns the value as the comm under test adds it, perhaps rounded to bf16.
static float rank_addend(int rank, size_t i)
{
    float v = rank_value(rank, i);
    return comm == comms[MPI_BF16] ? bf16_to_f32(bf16_from_f32(v)) : v;
}

static const size_t counts[] = {
    0,    1,    2,    3,     4,     5,     7,     16,     1000,   4095,
    4096, 4097, 4099, 10001, 65535, 65536, 65537, 131072, 131073, 300007}; // around whole pieces of shared memory
enum { N_COUNTS = sizeof counts / sizeof *counts, COUNT_MAX = 300007 };

START_TEST(sums_are_in_rank_order_whatever_the_count)
{
    comm = comms[_i];
    enum { PIECES = (4 << 20) + 5 }; // more than a piece of comm_mpi.c
    float *data = malloc(PIECES * sizeof *data);
    for (int c = 0; c <= N_COUNTS; c++) {
        size_t n = c < N_COUNTS ? counts[c] : PIECES;
        for (size_t i = 0; i < n; i++)
            data[i] = rank_value(comm->rank, i);
        MUST(comm->ops->all_reduce_sum(comm, data, n) == STATUS_OK);
        for (size_t i = 0; i < n; i++) {
            float sum = rank_addend(0, i);
            for (int r = 1; r < comm->size; r++)
                sum += rank_addend(r, i);
            MUST(memcmp(&data[i], &sum, sizeof sum) == 0);
        }
    }
    free(data);
}
END_TEST

START_TEST(maxima_gather_and_broadcast)
{
    comm = comms[_i];
    for (int c = 0; c < N_COUNTS; c++) {
        size_t n = counts[c];
        float *data = malloc((n + 1) * sizeof *data), *all = malloc((n * (size_t)comm->size + 1) * sizeof *all);
        for (size_t i = 0; i < n; i++)
            data[i] = all[i] = rank_value(comm->rank, i);
        MUST(comm->ops->gather(comm, data, n, comm->rank ? NULL : all) == STATUS_OK);
        for (size_t i = 0; comm->rank == 0 && i < n * (size_t)comm->size; i++)
            MUST(all[i] == rank_value((int)(i / n), i % n));
        MUST(comm->ops->gather(comm, comm->rank ? data : all, n, comm->rank ? NULL : all) == STATUS_OK); // in place
        for (size_t i = 0; comm->rank == 0 && i < n * (size_t)comm->size; i++)
            MUST(all[i] == rank_value((int)(i / n), i % n));

        MUST(comm->ops->all_reduce_max(comm, data, n) == STATUS_OK);
        for (size_t i = 0; i < n; i++) {
            float max = rank_value(0, i);
            for (int r = 1; r < comm->size; r++)
                max = rank_value(r, i) > max ? rank_value(r, i) : max;
            MUST(data[i] == max);
        }
        for (size_t i = 0; i < n; i++)
            data[i] = comm->rank ? 0 : rank_value(3, i);
        MUST(comm->ops->broadcast(comm, data, n * sizeof *data) == STATUS_OK);
        for (size_t i = 0; i < n; i++)
            MUST(data[i] == rank_value(3, i));
        free(data);
        free(all);
    }
}
END_TEST

static void nap(long us)
{
    nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

// All ranks choose the same random collectives. Each chooses its own random delays.
START_TEST(ranks_with_random_delays_never_mix_steps)
{
    comm = comms[_i];
    enum { ROUNDS = 200, FLOATS_MAX = 70000 };
    float *data = malloc(FLOATS_MAX * sizeof *data), *all = malloc((size_t)comm->size * FLOATS_MAX * sizeof *all);
    unsigned shared = 7, own = 100 + (unsigned)comm->rank;
    for (int round = 0; round < ROUNDS; round++) {
        int kind = rand_r(&shared) % 4;
        size_t n = (size_t)(rand_r(&shared) % (round % 16 ? 300 : FLOATS_MAX)), from = (size_t)round;
        for (size_t i = 0; i < n; i++)
            data[i] = rank_value(kind == 3 && comm->rank ? 9 : comm->rank, from + i);
        if (rand_r(&own) % 4 == 0) nap(rand_r(&own) % 200);
        if (kind == 0) MUST(comm->ops->all_reduce_sum(comm, data, n) == STATUS_OK);
        if (kind == 1) MUST(comm->ops->all_reduce_max(comm, data, n) == STATUS_OK);
        if (kind == 2) MUST(comm->ops->gather(comm, data, n, comm->rank ? NULL : all) == STATUS_OK);
        if (kind == 3) MUST(comm->ops->broadcast(comm, data, n * sizeof *data) == STATUS_OK);
        for (size_t i = 0; i < n; i++) {
            float sum = rank_addend(0, from + i), max = rank_value(0, from + i);
            for (int r = 1; r < comm->size; r++) {
                float v = rank_value(r, from + i);
                sum += rank_addend(r, from + i);
                max = v > max ? v : max;
            }
            if (kind < 2 || kind == 3) MUST(data[i] == (kind == 0 ? sum : kind == 1 ? max : rank_value(0, from + i)));
            for (int r = 0; kind == 2 && comm->rank == 0 && r < comm->size; r++)
                MUST(all[(size_t)r * n + i] == rank_value(r, from + i));
        }
    }
    free(data);
    free(all);
}
END_TEST

START_TEST(one_host_shares_memory)
{
    comm = comms[SHM];
    MUST(comm_mpi_on_one_host(comms[MPI]));
    MUST(comms[SHM]->ops != comms[MPI]->ops);
    MUST(!group_set_allreduce_bf16(comm)); // all sums below are in bf16
}
END_TEST

static cpu_set_t cores_at_start; // the same on every rank, as the job is started with --bind-to none

// Every core belongs to one rank, or to all ranks if there are fewer cores than ranks.
START_TEST(ranks_of_a_host_divide_its_cores)
{
    static float used[CPU_SETSIZE];
    cpu_set_t cores;
    cores_usable(&cores);
    int n = CPU_COUNT(&cores_at_start);
    for (int c = 0; c < CPU_SETSIZE; c++)
        used[c] = CPU_ISSET(c, &cores) ? 1 : 0;
    MUST(comm->ops->all_reduce_sum(comm, used, CPU_SETSIZE) == STATUS_OK);
    for (int c = 0; c < CPU_SETSIZE; c++)
        MUST(used[c] == (float)(!CPU_ISSET(c, &cores_at_start) ? 0 : n < comm->size ? comm->size : 1));
    MUST(group_threads(0) == (n < comm->size ? 1 : cpu_limits_threads(1, 1)));
    MUST(group_threads(5) == 5);
}
END_TEST

START_TEST(waiting_for_a_late_rank_burns_no_core)
{
    enum { TIMES = 5, LATE_US = 50000 };
    comm = comms[SHM];
    struct rusage before, after;
    float x[100] = {0};
    MUST(comm->ops->all_reduce_sum(comm, x, 100) == STATUS_OK);
    getrusage(RUSAGE_THREAD, &before);
    for (int i = 0; i < TIMES; i++) {
        if (comm->rank == i % comm->size) nap(LATE_US);
        MUST(comm->ops->all_reduce_sum(comm, x, 100) == STATUS_OK);
    }
    getrusage(RUSAGE_THREAD, &after);
    long used_us =
        (after.ru_utime.tv_sec - before.ru_utime.tv_sec + after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1000000L +
        after.ru_utime.tv_usec - before.ru_utime.tv_usec + after.ru_stime.tv_usec - before.ru_stime.tv_usec;
    MUST(used_us < TIMES * LATE_US / 10); // CPU time, however long the call took
}
END_TEST

START_TEST(ranks_that_disagree_on_the_size_get_an_error)
{
    comm = comms[SHM];
    struct comm *short_lived; // a failed call leaves a comm unusable
    MUST(comm_open_shm(comms[MPI], &short_lived) == STATUS_OK);
    float data[3] = {0};
    MUST(short_lived->ops->all_reduce_sum(short_lived, data, comm->rank == 1 ? 2 : 3) == STATUS_INTERNAL);
    MUST(strncmp(status_message(), "collective: rank ", 17) == 0);
    short_lived->ops->close(short_lived);
}
END_TEST

START_TEST(a_rank_without_the_segment_fails_the_opening)
{
    comm = comms[SHM];
    struct comm *other = NULL;
    int bad = _i ? comm->size - 1 : 0;
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    if (comm->rank == bad)
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){.rlim_max = files.rlim_max}); // no file can be opened
    enum status status = comm_open_shm(comms[MPI], &other);
    setrlimit(RLIMIT_NOFILE, &files);
    MUST(status == STATUS_UNAVAILABLE && other == NULL);
    MUST((status_message()[0] != 0) == (comm->rank == bad));
    MUST(comm_open_shm(comms[MPI], &other) == STATUS_OK); // no rank has an unread message
    other->ops->close(other);
}
END_TEST

// ---- the engine ----

static struct model_options options_for(const char *dir)
{
    return (struct model_options){.dir = dir,
                                  .backend = "cpu",
                                  .dtype = "f32",
                                  .threads = 1,
                                  .max_rows = 128,
                                  .max_seqs = 32,
                                  .n_kv_blocks = 128};
}

// Rank 0 writes a tiny model. Returns its folder on every rank.
static char *shared_model(const char *family)
{
    char name[256] = "";
    if (comm->rank == 0) {
        struct tiny_model spec = tiny_model_spec(family);
        spec.n_layers = 4;
        char *dir = tiny_model_temp(&spec);
        snprintf(name, sizeof name, "%s", dir);
        free(dir);
    }
    MUST(comm->ops->broadcast(comm, name, sizeof name) == STATUS_OK);
    return strdup(name);
}

static void remove_model(char *dir)
{
    if (comm->rank == 0) {
        tiny_model_remove(dir);
    } else {
        free(dir);
    }
}

// Makes pass `step` of four sequences: packed prompts with gaps in the positions, then a chunk, then decodes.
static void make_batch(struct forward *f, int step)
{
    static int32_t token[64], position[64];
    for (int i = 0; i < 64; i++) {
        token[i] = (i * 37 + step * 11) % 256;
        position[i] = i + i / 5 * 3;
    }
    forward_start(f, 4);
    if (step == 0) {
        forward_add(f, 0, 0, token, NULL, 40, LOGITS_LAST);
        forward_add(f, 1, 0, token, position, 23, LOGITS_ALL);
        forward_add(f, 2, 0, token, position, 1, LOGITS_LAST);
        forward_add(f, 3, 0, token, NULL, 33, LOGITS_NONE);
    } else {
        int32_t next[4] = {200 + step, 200 + step, 200 + step, 50 + step};
        forward_add(f, 0, 39 + step, token + 1, next, 1, LOGITS_LAST);
        forward_add(f, 1, 22 + step, token + 2, next + 1, 1, LOGITS_LAST);
        forward_add(f, 2, step, token + 3, next + 2, 1, LOGITS_LAST);
        forward_add(f, 3, 32 + step, token + 4, next + 3, 1, LOGITS_LAST);
    }
}

enum { STEPS = 40 };

// Compares the group with `threads_size` tensor-parallel threads.
static void lead(struct engine *engine, const char *dir, int threads_size)
{
    size_t vocab = (size_t)model_get_config(engine_model(engine))->vocab_size;
    struct model_options options = options_for(dir);
    struct ranks threads;
    ranks_open(&threads, &options, threads_size);
    struct forward *f = calloc(1, sizeof *f);
    for (int step = 0; step < STEPS; step++) {
        make_batch(f, step);
        struct forward_result mine;
        MUST(engine_forward(engine, &f->batch, &mine) == STATUS_OK);
        struct forward_result theirs = ranks_forward(&threads, &f->batch);
        MUST(memcmp(mine.logits, theirs.logits, (size_t)f->batch.n_logit_rows * vocab * sizeof(float)) == 0);
        // Sometimes the group idles for longer than a follower polls its wake-up socket before it sleeps.
        if (step % 10 == 9) nap(5000);
    }
    free(f);
    ranks_close(&threads);
}

START_TEST(the_group_computes_what_threads_compute)
{
    static const char *const families[] = {"llama3", "qwen3"};
    comm = comms[_i / 2];
    char *dir = shared_model(families[_i % 2]);
    struct model_options options = options_for(dir);
    struct engine *engine;
    MUST(engine_open(&options, comm, &engine) == STATUS_OK);
    engine_set_step_timeout(engine, 300000);
    if (comm->rank == 0) {
        lead(engine, dir, comm->size);
    } else {
        MUST(engine_follow(engine) == STATUS_OK);
    }
    engine_close(engine);
    // The comm outlives the engine, and no rank has an unread message.
    float one = 1;
    MUST(comm->ops->all_reduce_sum(comm, &one, 1) == STATUS_OK && one == (float)comm->size);
    remove_model(dir);
}
END_TEST

// Opens a new comm over messages or shared memory, which may be divided.
static struct comm *comm_again(int kind)
{
    struct comm *mpi, *shm;
    MUST(comm_open_mpi(&mpi) == STATUS_OK);
    if (kind == MPI) return mpi;
    MUST(comm_open_shm(mpi, &shm) == STATUS_OK);
    mpi->ops->close(mpi);
    return shm;
}

// _i is the kind of comm and, times 2, the tensor-parallel degree minus 1.
START_TEST(a_group_with_stages_computes_what_threads_compute)
{
    const int tp = 1 + _i / 2, world = comms[SHM]->size;
    if (world % tp != 0 || world == tp) return;
    comm = comm_again(_i % 2);
    char *dir = shared_model("llama3");
    struct model_options options = options_for(dir);
    options.stages = world / tp;
    struct engine *engine;
    for (int round = 0; round < 2; round++) { // a second engine finds the stages that the first one made
        MUST(engine_open(&options, comm, &engine) == STATUS_OK);
        engine_set_step_timeout(engine, 300000);
        MUST(comm->part->size == tp);
        if (comm->rank == 0) {
            MUST(engine_check(engine) == STATUS_OK);
            lead(engine, dir, tp);
        } else {
            MUST(engine_follow(engine) == STATUS_OK);
        }
        engine_close(engine);
    }
    remove_model(dir);
    comm->ops->close(comm);
    comm = comms[SHM];
}
END_TEST

// Messages go down the ranks: each rank adds its values to the message of the rank above.
START_TEST(messages_of_any_size_pass_through_all_ranks)
{
    enum { LARGEST = (4 << 20) + 5 };
    comm = comm_again(_i);
    MUST(comm->ops->split(comm, comm->size) == STATUS_OK);
    MUST(comm->part->size == 1);
    float *data = malloc(LARGEST * sizeof *data);
    unsigned own = 100 + (unsigned)comm->rank;
    for (int round = 0; round < N_COUNTS + 100; round++) {
        const size_t n = round < N_COUNTS ? counts[round] : round == N_COUNTS ? LARGEST : (size_t)round;
        const int last = comm->rank == comm->size - 1;
        if (!last) MUST(comm->ops->receive(comm, comm->rank + 1, data, n) == STATUS_OK);
        if (rand_r(&own) % 4 == 0) nap(rand_r(&own) % 200);
        for (size_t i = 0; i < n; i++)
            data[i] = (last ? 0 : data[i]) + rank_value(comm->rank, i + (size_t)round);
        if (comm->rank) MUST(comm->ops->send(comm, comm->rank - 1, data, n) == STATUS_OK);
        for (size_t i = 0; comm->rank == 0 && i < n; i++) {
            float sum = 0;
            for (int r = comm->size - 1; r >= 0; r--)
                sum += rank_value(r, i + (size_t)round);
            MUST(data[i] == sum);
        }
    }
    free(data);
    comm->ops->close(comm);
    comm = comms[SHM];
}
END_TEST

START_TEST(a_rank_that_cannot_open_its_model_fails_the_group)
{
    comm = comms[SHM];
    char *dir = shared_model("llama");
    int bad = comm->size - 1;
    struct model_options options = options_for(comm->rank == bad ? "/nowhere/model" : dir);
    struct engine *engine;
    enum status status = engine_open(&options, comm, &engine);
    MUST(status != STATUS_OK);
    MUST((status_message()[0] != 0) == (comm->rank == bad));
    float worst = (float)status;
    MUST(comm->ops->all_reduce_max(comm, &worst, 1) == STATUS_OK && worst == (float)status);
    remove_model(dir);
}
END_TEST

START_TEST(a_rank_with_another_version_of_the_model_fails_the_group)
{
    comm = comms[_i ? MPI : SHM];
    char *llama = shared_model("llama"), *llama3 = shared_model("llama3"); // equal shapes, other RoPE
    int bad = comm->size - 1;
    struct model_options options = options_for(comm->rank == bad ? llama3 : llama);
    struct engine *engine;
    MUST(engine_open(&options, comm, &engine) == STATUS_INVALID);
    MUST((status_message()[0] != 0) == (comm->rank == bad));
    MUST(comm->rank != bad || strstr(status_message(), ": model fingerprint ") != NULL);
    float one = 1; // no rank has an unread message
    MUST(comm->ops->all_reduce_sum(comm, &one, 1) == STATUS_OK && one == (float)comm->size);
    remove_model(llama3);
    remove_model(llama);
}
END_TEST

static void close_comms(void)
{
    for (int c = MPI; c < COMMS; c++)
        comms[c]->ops->close(comms[c]);
    group_close(comms[SHM]);
}

SUITE("engine_mpi")
{
    log_setup("test", LOG_ERROR);
    cores_usable(&cores_at_start);
    if (group_open(&argc, &argv, 300, &comms[SHM]) != STATUS_OK || comm_open_mpi(&comms[MPI]) != STATUS_OK ||
        comm_open_mpi(&comms[MPI_BF16]) != STATUS_OK) {
        fprintf(stderr, "%s\n", status_message());
        exit(EXIT_FAILURE);
    }
    comm_mpi_set_allreduce_bf16(comms[MPI_BF16]);
    comm = comms[SHM];
    if (comm->rank > 0) setenv("CK_VERBOSITY", "silent", 1); // the first rank reports
    NO_FORK();                                               // MPI does not survive a fork
    atexit(close_comms);
    TEST(one_host_shares_memory);
    TEST(ranks_of_a_host_divide_its_cores);
    LOOP(sums_are_in_rank_order_whatever_the_count, 0, COMMS);
    LOOP(maxima_gather_and_broadcast, 0, COMMS);
    LOOP(ranks_with_random_delays_never_mix_steps, 0, COMMS);
    TEST(waiting_for_a_late_rank_burns_no_core);
    TEST(ranks_that_disagree_on_the_size_get_an_error);
    LOOP(a_rank_without_the_segment_fails_the_opening, 0, 2);
    LOOP(the_group_computes_what_threads_compute, 0, 4); // on SHM and MPI
    LOOP(messages_of_any_size_pass_through_all_ranks, 0, 2);
    LOOP(a_group_with_stages_computes_what_threads_compute, 0, 4);
    TEST(a_rank_that_cannot_open_its_model_fails_the_group);
    LOOP(a_rank_with_another_version_of_the_model_fails_the_group, 0, 2);
}
