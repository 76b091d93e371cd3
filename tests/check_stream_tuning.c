// SPDX-License-Identifier: Apache-2.0
// How a CPU backend chooses the prefetch of streamed weights: from given times, by measuring, and from the packed
// weight cache. check_exactness tests that no prefetch changes a result.
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"
#include "lib/base/fnv.h"
#include "tests/kernel_fixture.h"
#include "tests/suite.h"

// ---- by given times -------------------------------------------------------------------------------------------------

enum { ROUNDS = STREAM_ROUNDS_MAX };
static double seconds[STREAM_ROUNDS_MAX][STREAM_CANDIDATES];

// Every candidate except `fast` takes 1 ms in each round, with noise of up to 10 %.
static void fill(int fast, double fast_seconds)
{
    for (int r = 0; r < ROUNDS; r++)
        for (int c = 0; c < STREAM_CANDIDATES; c++)
            seconds[r][c] = (c == fast ? fast_seconds : 1e-3) * (1 + 0.05 * (double)random_float(1));
}

static int choose(int usual)
{
    return stream_choose(seconds, ROUNDS, usual);
}

START_TEST(the_fastest_candidate_is_chosen)
{
    for (int usual = 0; usual < STREAM_CANDIDATES; usual++) {
        fill(_i, 0.8e-3);
        ck_assert_int_eq(choose(usual), _i);
    }
}
END_TEST

START_TEST(among_faster_ones_the_fastest_is_chosen)
{
    for (int first = 0; first < STREAM_CANDIDATES; first++) {
        for (int r = 0; r < ROUNDS; r++)
            for (int c = 0; c < STREAM_CANDIDATES; c++)
                seconds[r][c] = 1e-3 + 1e-4 * ((c + first) % STREAM_CANDIDATES);
        int fastest = (STREAM_CANDIDATES - first) % STREAM_CANDIDATES;
        for (int usual = 0; usual < STREAM_CANDIDATES; usual++)
            ck_assert_int_eq(choose(usual), fastest);
    }
}
END_TEST

START_TEST(a_small_gain_is_not_enough)
{
    for (int usual = 0; usual < STREAM_CANDIDATES; usual++)
        for (int fast = 0; fast < STREAM_CANDIDATES; fast++) {
            for (int r = 0; r < ROUNDS; r++)
                for (int c = 0; c < STREAM_CANDIDATES; c++)
                    seconds[r][c] = c == fast ? 0.98e-3 : 1e-3;
            ck_assert_int_eq(choose(usual), usual);
        }
}
END_TEST

// All candidates have times between one and three times the shortest.
START_TEST(noise_alone_chooses_nothing)
{
    int misled = 0;
    for (int run = 0; run < 200; run++) {
        for (int r = 0; r < ROUNDS; r++)
            for (int c = 0; c < STREAM_CANDIDATES; c++)
                seconds[r][c] = 2e-3 + 1e-3 * (double)random_float(1);
        misled += choose(run % STREAM_CANDIDATES) != run % STREAM_CANDIDATES;
    }
    ck_assert_int_le(misled, 2);
}
END_TEST

// If a thread loses its core, single samples or all samples of a round take many times as long.
START_TEST(interrupted_samples_do_not_matter)
{
    fill(3, 0.8e-3);
    for (int r = 0; r < ROUNDS / 5; r++)
        seconds[r][3] *= 5;
    for (int c = 0; c < STREAM_CANDIDATES; c++) {
        seconds[ROUNDS - 2 - c][c] *= 20;
        seconds[ROUNDS - 1][c] *= 30;
    }
    ck_assert_int_eq(choose(0), 3);
    fill(0, 0.9e-3); // prefetching costs bandwidth, but the samples without prefetch were interrupted more often
    for (int r = 0; r < ROUNDS / 2; r++)
        seconds[r][0] *= 10;
    ck_assert_int_eq(choose(0), 0);
}
END_TEST

// Memory becomes twice as fast in the middle of a round.
START_TEST(a_changed_bandwidth_does_not_matter)
{
    fill(0, 1e-3);
    for (int r = 0; r < ROUNDS; r++)
        for (int c = 0; c < STREAM_CANDIDATES; c++)
            if (r > ROUNDS / 2 || (r == ROUNDS / 2 && c > 3)) seconds[r][c] /= 2;
    ck_assert_int_eq(choose(0), 0);
    ck_assert_int_eq(choose(5), 5);
}
END_TEST

START_TEST(candidates_are_valid)
{
    ck_assert_int_eq(stream_candidates[0].target, STREAM_NONE);
    for (int c = 0; c < STREAM_CANDIDATES; c++) {
        const struct stream_prefetch *p = &stream_candidates[c];
        ck_assert_int_lt(p->target, STREAM_TARGETS);
        ck_assert_int_eq(p->target == STREAM_NONE, p->ahead_bytes == 0);
        ck_assert_int_le(p->ahead_bytes, STREAM_AHEAD_MAX);
        ck_assert_int_eq(p->ahead_bytes % 64, 0);
    }
}
END_TEST

// ---- measuring and keeping ------------------------------------------------------------------------------------------

static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_INT8, DTYPE_INT8_G128};

static struct cpu *open_cpu(enum dtype dtype, int threads)
{
    struct backend_shape shape = {.n_layers = 1,
                                  .n_heads = 1,
                                  .n_kv_heads = 1,
                                  .head_size = 2,
                                  .rope.inv_freq = (float[]){1},
                                  .max_rows = 1,
                                  .max_seqs = 1,
                                  .max_context = 1,
                                  .n_kv_blocks = 1};
    struct backend *b;
    OK(backend_open_cpu(&shape, dtype, threads, &b));
    return (struct cpu *)b;
}

START_TEST(benchmarks_choose_by_name)
{
    ck_assert(!stream_prefer("auto"));
    ck_assert(!stream_prefer("L1"));
    ck_assert(!stream_prefer("L1:2047"));
    ck_assert(!stream_prefer("none:0"));
    ck_assert(stream_prefer("none"));
    ck_assert(stream_prefer("L2:8192"));
    char name[STREAM_NAME_BYTES];
    struct cpu *cpu = open_cpu(DTYPE_BF16, 1);
    cpu->base.ops->weights_finish(&cpu->base);
    cpu_stream_name(&cpu->base, name);
    ck_assert_str_eq(name, "L2:8192");
    cpu->base.ops->close(&cpu->base);
}
END_TEST

static void load_weight(struct cpu *cpu, int rows, int columns)
{
    random_state = 1;
    float *data = random_floats((size_t)rows * (size_t)columns, 1);
    make_weight(&cpu->base, data, rows, columns);
    free(data);
}

static bool is_candidate(const struct stream_prefetch *prefetch)
{
    for (int c = 0; c < STREAM_CANDIDATES; c++)
        if (memcmp(&stream_candidates[c], prefetch, sizeof *prefetch) == 0) return true;
    return false;
}

START_TEST(a_measurement_chooses_a_candidate)
{
    static const struct stream_prefetch other = {STREAM_INTO_L2, 640};
    struct cpu *cpu = open_cpu(dtypes[_i / 2], 1 + _i % 2);
    cpu->prefetch = other;
    ck_assert(!cpu_stream_measure(cpu));
    load_weight(cpu, 10, 30);
    ck_assert(!cpu_stream_measure(cpu));
    ck_assert_mem_eq(&cpu->prefetch, &other, sizeof other);
    load_weight(cpu, 300, 1100);
    ck_assert(cpu_stream_measure(cpu));
    ck_assert(is_candidate(&cpu->prefetch));
    cpu->base.ops->close(&cpu->base);
}
END_TEST

// If neither the file nor the level gives a prefetch, it is not measured for small weights.
START_TEST(small_weights_keep_the_default)
{
    struct cpu *cpu = open_cpu(DTYPE_BF16, 2);
    load_weight(cpu, 300, 1100);
    struct stream_prefetch expected = stream_candidates[stream_default(cpu->isa)];
    cpu->base.ops->weights_finish(&cpu->base);
    ck_assert_mem_eq(&cpu->prefetch, &expected, sizeof expected);
    cpu->base.ops->close(&cpu->base);
}
END_TEST

enum { MEASURED_AT = 96 }; // place in a file, after its header; see packed_cache.c

struct measured {
    uint64_t machine;
    uint32_t target, ahead_bytes;
    uint64_t hash;
};

struct folder {
    char path[32], *file;
};

static struct cpu *open_with_file(const struct folder *folder, bool *hit_p)
{
    struct cpu *cpu = open_cpu(DTYPE_BF16, 2);
    char *path = mem_format("%s/cache", folder->path);
    *hit_p = cpu->base.ops->packed_cache_open(&cpu->base, path, 7);
    free(path);
    load_weight(cpu, 300, 1100);
    return cpu;
}

// Makes a file of one weight, without a choice.
static struct folder make_file(void)
{
    struct folder folder = {.path = "/tmp/forepack-stream-XXXXXX"};
    bool hit;
    ck_assert_ptr_nonnull(mkdtemp(folder.path));
    struct cpu *cpu = open_with_file(&folder, &hit);
    ck_assert(!hit);
    cpu->base.ops->weights_finish(&cpu->base);
    folder.file = mem_format("%s/cache-cpu%d-%d.weights", folder.path, cpu->isa->vector_floats, cpu->isa->step_words);
    cpu->base.ops->close(&cpu->base);
    return folder;
}

static void remove_file(struct folder *folder)
{
    unlink(folder->file);
    ck_assert_int_eq(rmdir(folder->path), 0);
    free(folder->file);
}

// Opens a backend that maps the file. Returns false if its prefetch is the default.
static bool start(const struct folder *folder, struct stream_prefetch *prefetch_p)
{
    bool hit;
    struct cpu *cpu = open_with_file(folder, &hit);
    ck_assert(hit);
    cpu->prefetch.ahead_bytes = -1;
    cpu->base.ops->weights_finish(&cpu->base);
    *prefetch_p = cpu->prefetch;
    cpu->base.ops->close(&cpu->base);
    return prefetch_p->ahead_bytes >= 0;
}

static void store(const struct folder *folder, const struct measured *m)
{
    int fd = open(folder->file, O_WRONLY);
    ck_assert_int_ge(fd, 0);
    ck_assert(pwrite(fd, m, sizeof *m, MEASURED_AT) == sizeof *m);
    close(fd);
}

START_TEST(a_choice_is_kept_in_the_file)
{
    static const struct stream_prefetch kept = {STREAM_INTO_L1, 4096};
    struct folder folder = make_file();
    struct stream_prefetch found;
    ck_assert(!start(&folder, &found));
    bool hit;
    struct cpu *cpu = open_with_file(&folder, &hit);
    packed_cache_keep_prefetch(cpu->packed_cache, stream_machine(cpu), &kept);
    cpu->base.ops->close(&cpu->base);
    ck_assert(start(&folder, &found));
    ck_assert_mem_eq(&found, &kept, sizeof kept);
    remove_file(&folder);
}
END_TEST

// The choice depends on the number of threads. A start with another number does not use the choice, and replaces it.
START_TEST(another_machine_measures_again)
{
    static const struct stream_prefetch kept = {STREAM_INTO_L1, 4096}, other = {STREAM_INTO_L2, 8192};
    struct folder folder = make_file();
    struct stream_prefetch found;
    bool hit;
    struct cpu *cpu = open_with_file(&folder, &hit), *single = open_cpu(DTYPE_BF16, 1);
    uint64_t machine = stream_machine(cpu);
    ck_assert(machine != stream_machine(single));
    packed_cache_keep_prefetch(cpu->packed_cache, stream_machine(single), &kept);
    ck_assert(packed_cache_prefetch(cpu->packed_cache, stream_machine(single), &found));
    ck_assert(!packed_cache_prefetch(cpu->packed_cache, machine, &found));
    packed_cache_keep_prefetch(cpu->packed_cache, machine, &other);
    ck_assert(packed_cache_prefetch(cpu->packed_cache, machine, &found));
    ck_assert_mem_eq(&found, &other, sizeof found);
    cpu->base.ops->close(&cpu->base);
    single->base.ops->close(&single->base);
    remove_file(&folder);
}
END_TEST

// The file with the weights remains in use.
START_TEST(a_damaged_choice_is_not_used)
{
    struct folder folder = make_file();
    struct stream_prefetch found;
    struct cpu *cpu = open_cpu(DTYPE_BF16, 2);
    struct measured right = {stream_machine(cpu), STREAM_INTO_L2, 4096, 0};
    cpu->base.ops->close(&cpu->base);
    right.hash = fnv1a(FNV_START, &right, offsetof(struct measured, hash));
    for (size_t at = 0; at < sizeof right; at++) {
        struct measured wrong = right;
        ((unsigned char *)&wrong)[at] ^= 0x40;
        store(&folder, &wrong);
        ck_assert_msg(!start(&folder, &found), "byte %zu", at);
    }
    const struct measured out_of_bounds[] = {{.target = STREAM_TARGETS, .ahead_bytes = 1024},
                                             {.target = 0xffffffff, .ahead_bytes = 1024},
                                             {.target = STREAM_INTO_L1, .ahead_bytes = 1000},
                                             {.target = STREAM_INTO_L1, .ahead_bytes = STREAM_AHEAD_MAX + 64},
                                             {.target = STREAM_INTO_L1, .ahead_bytes = 0xffffffc0}};
    for (size_t i = 0; i < sizeof out_of_bounds / sizeof *out_of_bounds; i++) {
        struct measured wrong = out_of_bounds[i];
        wrong.machine = right.machine;
        wrong.hash = fnv1a(FNV_START, &wrong, offsetof(struct measured, hash));
        store(&folder, &wrong);
        ck_assert_msg(!start(&folder, &found), "case %zu", i);
    }
    store(&folder, &right);
    ck_assert(start(&folder, &found));
    ck_assert_int_eq(found.target, STREAM_INTO_L2);
    ck_assert_int_eq(found.ahead_bytes, 4096);
    remove_file(&folder);
}
END_TEST

// A start must not write into a file that has replaced the one it has mapped, nor through a link.
START_TEST(only_the_mapped_file_is_written)
{
    static const struct stream_prefetch kept = {STREAM_INTO_L1, 4096};
    struct folder folder = make_file();
    bool hit;
    struct cpu *cpu = open_with_file(&folder, &hit);
    char *moved = mem_format("%s/moved", folder.path);
    ck_assert_int_eq(rename(folder.file, moved), 0);
    ck_assert_int_eq(symlink(moved, folder.file), 0);
    packed_cache_keep_prefetch(cpu->packed_cache, 1, &kept);
    ck_assert_int_eq(unlink(folder.file), 0);
    int fd = open(folder.file, O_CREAT | O_RDWR | O_EXCL, 0600);
    packed_cache_keep_prefetch(cpu->packed_cache, 1, &kept);
    struct stat info;
    ck_assert_int_eq(fstat(fd, &info), 0);
    ck_assert_int_eq(info.st_size, 0);
    close(fd);
    struct stream_prefetch found;
    ck_assert(!packed_cache_prefetch(cpu->packed_cache, 1, &found));
    ck_assert_int_eq(rename(moved, folder.file), 0);
    packed_cache_keep_prefetch(cpu->packed_cache, 1, &kept);
    ck_assert(packed_cache_prefetch(cpu->packed_cache, 1, &found));
    cpu->base.ops->close(&cpu->base);
    free(moved);
    remove_file(&folder);
}
END_TEST

SUITE("stream_tuning")
{
    TIMEOUT(60);
    LOOP(the_fastest_candidate_is_chosen, 0, STREAM_CANDIDATES);
    TEST(among_faster_ones_the_fastest_is_chosen);
    TEST(noise_alone_chooses_nothing);
    TEST(a_small_gain_is_not_enough);
    TEST(interrupted_samples_do_not_matter);
    TEST(a_changed_bandwidth_does_not_matter);
    TEST(benchmarks_choose_by_name);
    TEST(candidates_are_valid);
    LOOP(a_measurement_chooses_a_candidate, 0, 2 * (int)(sizeof dtypes / sizeof *dtypes));
    TEST(small_weights_keep_the_default);
    TEST(a_choice_is_kept_in_the_file);
    TEST(another_machine_measures_again);
    TEST(a_damaged_choice_is_not_used);
    TEST(only_the_mapped_file_is_written);
}
