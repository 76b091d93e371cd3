// SPDX-License-Identifier: Apache-2.0
// See stream_tuning.h. Reads slices of the packed weights by gemms of one row. Each sample continues where the previous
// sample ended, so that its bytes are in no cache. Candidates take turns in every round and are compared within the
// round, since other machines on the same host change the memory bandwidth within seconds.
#include "kernels/cpu/stream_tuning.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "lib/base/clock.h"
#include "lib/base/fnv.h"
#include "lib/base/log.h"

enum {
    SLICE_WORDS = TILED_BLOCK_WORDS,
    SLICE_BYTES = SLICE_WORDS * PANEL_COLUMNS * 4, // bf12: three quarters of it
    SAMPLE_SLICES = 32,                            // slices of each thread: 2 MiB, about 0.1 ms
    // Samples read this many slices in a cycle, or the slices of all weights: more than caches hold. On a virtual
    // machine with 480 MiB of L3 in its host, reading 512 MiB is as slow as reading 3 GiB.
    CYCLE_SLICES = (512 << 20) / SLICE_BYTES,
    CYCLE_SLICES_OF_THREAD = 256,
    MEASURED_SLICES_MIN = (128 << 20) / SLICE_BYTES,
    TOUCH_BYTES = 4096, // a page
    ROUNDS_MIN = 9,
    ROUNDS_US = 25000, // no round starts later, except the first ROUNDS_MIN
};
static const double CLEARLY_FASTER = 1.03;

const struct stream_prefetch stream_candidates[STREAM_CANDIDATES] = {
    {STREAM_NONE, 0},          {STREAM_INTO_L1, 1 << 10}, {STREAM_INTO_L1, 2 << 10},
    {STREAM_INTO_L1, 4 << 10}, {STREAM_INTO_L2, 4 << 10}, {STREAM_INTO_L2, 8 << 10},
};

static const struct stream_prefetch *preferred; // set by stream_prefer(); NULL: measure

const char *stream_target_name(enum stream_target target)
{
    static const char *const names[STREAM_TARGETS] = {"none", "L1", "L2"};
    return names[target];
}

int stream_default(const struct cpu_isa *isa)
{
    return isa->tiled ? 2 : 0; // a Xeon with tiles reads a fifth faster with prefetch, a Zen 4 up to a third slower
}

// ---- choosing -------------------------------------------------------------------------------------------------------

static int double_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void sort(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, double_compare);
}

int stream_choose(double seconds[][STREAM_CANDIDATES], int rounds, int usual)
{
    int best = usual;
    double best_gain = 1;
    for (int c = 0; c < STREAM_CANDIDATES; c++) {
        double gains[STREAM_ROUNDS_MAX];
        for (int r = 0; r < rounds; r++)
            gains[r] = seconds[r][usual] / seconds[r][c];
        sort(gains, rounds);
        if (gains[rounds / 4] < CLEARLY_FASTER || gains[rounds / 2] <= best_gain) continue;
        best_gain = gains[rounds / 2];
        best = c;
    }
    return best;
}

// Returns the median of all samples of a candidate.
static double median_seconds(double seconds[][STREAM_CANDIDATES], int rounds, int candidate)
{
    double all[STREAM_ROUNDS_MAX];
    for (int r = 0; r < rounds; r++)
        all[r] = seconds[r][candidate];
    sort(all, rounds);
    return all[rounds / 2];
}

// ---- measuring ------------------------------------------------------------------------------------------------------

struct stream {
    const struct cpu *cpu;
    const uint32_t **slices; // slices of all matrices, or of enough of them
    int n, first;            // number of slices; start of the next sample
    size_t slice_bytes;
    struct stream_prefetch prefetch;
};

// Counts the slices of a matrix in the type of most matrices. Others are read too seldom to matter.
static int64_t weight_slices(const struct cpu *cpu, const struct weight *w)
{
    if (w->kind != WEIGHT_MATRIX || w->type != cpu->gemm_type) return 0;
    return w->n_panels * gemm_stored_words(w->words, w->type) / gemm_stored_words(SLICE_WORDS, w->type);
}

static int64_t cpu_slices(const struct cpu *cpu)
{
    int64_t n = 0;
    for (const struct weight *w = cpu->weights; w; w = w->next)
        n += weight_slices(cpu, w);
    return n;
}

static void stream_init(struct stream *s, const struct cpu *cpu)
{
    int64_t n = cpu_slices(cpu), enough = (int64_t)cpu->threads * CYCLE_SLICES_OF_THREAD;
    if (enough < CYCLE_SLICES) enough = CYCLE_SLICES;
    if (n > enough) n = enough;
    *s = (struct stream){.cpu = cpu, .slices = mem_alloc_array((size_t)n + 1, sizeof *s->slices)};
    s->slice_bytes = (size_t)gemm_stored_words(SLICE_WORDS, cpu->gemm_type) * PANEL_COLUMNS * sizeof(uint32_t);
    for (const struct weight *w = cpu->weights; w; w = w->next)
        for (int64_t i = 0; i < weight_slices(cpu, w) && s->n < n; i++)
            s->slices[s->n++] = w->panels + (size_t)i * s->slice_bytes / sizeof(uint32_t);
}

// Touches the pages of a slice before the first sample, so that no sample waits for a page of a mapped file.
static void slice_touch(void *arg, int item, int thread)
{
    const struct stream *s = arg;
    const volatile char *bytes = (const volatile char *)s->slices[item];
    for (size_t at = 0; at < s->slice_bytes; at += TOUCH_BYTES)
        (void)bytes[at];
}

static void slice_read(void *arg, int item, int thread)
{
    // One row of x, tiled or not; also scales.
    static const _Alignas(64) uint32_t zeros[SLICE_WORDS * INT4_PAIRS * TILE_SIDE];
    const struct stream *s = arg;
    const struct panel_gemm gemm = {.type = s->cpu->gemm_type,
                                    .rows = 1,
                                    .words = SLICE_WORDS,
                                    .c = cpu_thread_scratch(s->cpu, thread),
                                    .x = zeros,
                                    .panel = s->slices[(s->first + item) % s->n],
                                    .start = zeros,
                                    .w_scale = (const float *)(const void *)zeros,
                                    .x_scale = (const float *)(const void *)zeros,
                                    .zero = (const int8_t *)(const void *)zeros,
                                    .exponents = (const uint8_t *)(const void *)zeros,
                                    .decoded = s->cpu->decoded + (size_t)thread * s->cpu->decoded_words,
                                    .prefetch = s->prefetch};
    s->cpu->isa->panel_gemm(&gemm);
}

// Returns the seconds to read `slices` slices.
static double stream_sample(struct stream *s, int slices, const struct stream_prefetch *prefetch)
{
    s->prefetch = *prefetch;
    int64_t from_us = clock_now_us();
    thread_pool_run(s->cpu->pool, THREAD_POOL_STATIC, slice_read, s, slices);
    int64_t us = clock_now_us() - from_us;
    s->first = (s->first + slices) % s->n;
    return (double)(us ? us : 1) / 1e6;
}

// Samples all candidates one after another in each round, with another first candidate each time. Returns the number of
// rounds.
static int stream_rounds(struct stream *s, int slices, double seconds[][STREAM_CANDIDATES])
{
    if (s->cpu->packed_cache) thread_pool_run(s->cpu->pool, THREAD_POOL_STATIC, slice_touch, s, s->n);
    stream_sample(s, slices, &stream_candidates[0]); // wakes threads and vector units
    int64_t end_us = clock_now_us() + ROUNDS_US;
    int rounds = 0;
    for (; rounds < ROUNDS_MIN || (rounds < STREAM_ROUNDS_MAX && clock_now_us() < end_us); rounds++)
        for (int i = 0; i < STREAM_CANDIDATES; i++) {
            int c = (rounds + i) % STREAM_CANDIDATES;
            seconds[rounds][c] = stream_sample(s, slices, &stream_candidates[c]);
        }
    return rounds;
}

bool cpu_stream_measure(struct cpu *cpu)
{
    double seconds[STREAM_ROUNDS_MAX][STREAM_CANDIDATES];
    int64_t from_us = clock_now_us();
    struct stream s;
    stream_init(&s, cpu);
    const int of_threads = cpu->threads * SAMPLE_SLICES, slices = of_threads < s.n ? of_threads : s.n;
    int rounds = slices ? stream_rounds(&s, slices, seconds) : 0;
    free(s.slices);
    if (!rounds) return false;
    int chosen = stream_choose(seconds, rounds, stream_default(cpu->isa));
    double gbytes = (double)slices * (double)s.slice_bytes / 1e9;
    cpu->prefetch = stream_candidates[chosen];
    log_event(LOG_INFO, "prefetch_measured", LOG_FIELD("into", stream_target_name(cpu->prefetch.target)),
              LOG_FIELD("ahead_bytes", cpu->prefetch.ahead_bytes),
              LOG_FIELD("gbytes_per_s", gbytes / median_seconds(seconds, rounds, chosen)),
              LOG_FIELD("without_gbytes_per_s", gbytes / median_seconds(seconds, rounds, 0)),
              LOG_MS("ms", clock_now_us() - from_us));
    return true;
}

// ---- keeping --------------------------------------------------------------------------------------------------------

uint64_t stream_machine(const struct cpu *cpu)
{
    uint64_t key = fnv1a(FNV_START, stream_candidates, sizeof stream_candidates);
    key = fnv1a(key, cpu->isa->name, strlen(cpu->isa->name));
    key = fnv1a(key, &cpu->threads, sizeof cpu->threads);
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256];
    // Use the first core, whose entry ends with an empty line.
    while (file && fgets(line, sizeof line, file) && line[0] != '\n') {
        static const char *const names[] = {"vendor_id", "cpu family", "model", "stepping", "CPU "};
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (strncmp(line, names[i], strlen(names[i])) == 0) key = fnv1a(key, line, strlen(line));
    }
    if (file) fclose(file);
    return key;
}

void cpu_stream_tune(struct cpu *cpu)
{
    struct packed_cache *cache = cpu->packed_cache;
    uint64_t machine = cache ? stream_machine(cpu) : 0;
    if (preferred) {
        cpu->prefetch = *preferred;
    } else if (cache && packed_cache_prefetch(cache, machine, &cpu->prefetch)) {
        log_event(LOG_INFO, "prefetch_found", LOG_FIELD("into", stream_target_name(cpu->prefetch.target)),
                  LOG_FIELD("ahead_bytes", cpu->prefetch.ahead_bytes));
    } else if (cpu_slices(cpu) >= MEASURED_SLICES_MIN && cpu_stream_measure(cpu) && cache) {
        packed_cache_keep_prefetch(cache, machine, &cpu->prefetch);
    }
}

// ---- benchmarks -----------------------------------------------------------------------------------------------------

static void stream_name(const struct stream_prefetch *prefetch, char name[STREAM_NAME_BYTES])
{
    const char *target = stream_target_name(prefetch->target);
    if (prefetch->target == STREAM_NONE)
        snprintf(name, STREAM_NAME_BYTES, "%s", target);
    else
        snprintf(name, STREAM_NAME_BYTES, "%s:%d", target, prefetch->ahead_bytes);
}

void cpu_stream_name(const struct backend *b, char name[STREAM_NAME_BYTES])
{
    stream_name(&((const struct cpu *)b)->prefetch, name);
}

bool stream_prefer(const char *name)
{
    for (int c = 0; c < STREAM_CANDIDATES; c++) {
        char own[STREAM_NAME_BYTES];
        stream_name(&stream_candidates[c], own);
        if (strcmp(own, name) != 0) continue;
        preferred = &stream_candidates[c];
        return true;
    }
    return false;
}
