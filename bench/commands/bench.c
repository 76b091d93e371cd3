// SPDX-License-Identifier: Apache-2.0
// forepack bench: finds the measurement, and what they share (bench.h).
#include "bench/commands/bench.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} measurements[] = {
    {"engine", bench_engine, "prefill and decode of one model, on the engine directly"},
    {"kernels", bench_kernels, "the matrix products of one layer alone"},
    {"perplexity", bench_perplexity, "what the types of weights cost in quality, on texts of your own"},
    {"prefill-quality", bench_quality, "right answers and time to the first token over what is kept"},
    {"serve", bench_serve, "what clients of a running cluster see under load"},
    {"prepack", bench_prepack, "prompts of different lengths: padded, in batches, packed"},
    {"router", bench_router, "time to pack a queue, and the router's CPU time for a request"},
};

enum { N_MEASUREMENTS = sizeof measurements / sizeof measurements[0] };

static void help(FILE *out)
{
    fprintf(out, "Usage: forepack bench WHAT [options]\n\nMeasurements:\n");
    for (int i = 0; i < N_MEASUREMENTS; i++)
        fprintf(out, "  %-16s %s\n", measurements[i].name, measurements[i].help);
    fprintf(out, "\n'forepack bench WHAT --help' lists the options.\n");
}

int command_bench(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0) {
        help(stdout);
        return 0;
    }
    for (int i = 0; i < N_MEASUREMENTS; i++)
        if (strcmp(argv[1], measurements[i].name) == 0) return measurements[i].run(argc - 1, argv + 1);
    fprintf(stderr, "unknown measurement '%s': must be one of", argv[1]);
    for (int i = 0; i < N_MEASUREMENTS; i++)
        fprintf(stderr, "%s %s", i ? "," : "", measurements[i].name);
    fprintf(stderr, "\n");
    return 2;
}

// ---- shared ----

enum status bench_counts_parse(const char *flag, const char *text, int min, int max, struct bench_counts *counts)
{
    struct bench_counts c = {.n = 0};
    for (const char *at = text;; at++) {
        char *end;
        errno = 0;
        long value = strtol(at, &end, 10);
        if (end == at || (*end && *end != ',') || errno || value < min || value > max)
            return status_fail(STATUS_INVALID, "--%s '%s': must be whole numbers from %d to %d, apart by commas", flag,
                               text, min, max);
        if (c.n == BENCH_COUNTS_MAX)
            return status_fail(STATUS_INVALID, "--%s '%s': must be at most %d numbers", flag, text, BENCH_COUNTS_MAX);
        c.count[c.n++] = (int)value;
        if (!*end) break;
        at = end;
    }
    *counts = c;
    return STATUS_OK;
}

enum status bench_reals_parse(const char *flag, const char *text, double min, double max, double *value, int *n_p)
{
    int n = 0;
    for (const char *at = text;; at++) {
        char *end;
        double number = strtod(at, &end);
        if (end == at || (*end && *end != ',') || !(number >= min && number <= max))
            return status_fail(STATUS_INVALID, "--%s '%s': must be numbers from %g to %g, apart by commas", flag, text,
                               min, max);
        if (n == BENCH_COUNTS_MAX)
            return status_fail(STATUS_INVALID, "--%s '%s': must be at most %d numbers", flag, text, BENCH_COUNTS_MAX);
        value[n++] = number;
        if (!*end) break;
        at = end;
    }
    *n_p = n;
    return STATUS_OK;
}

json_t *bench_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

void bench_add_readings(json_t *row, const struct rounds_readings *readings)
{
    json_object_set_new(row, "peak_gflops", bench_number(readings->mean.gflops));
    json_object_set_new(row, "dram_gbytes_per_s", bench_number(readings->mean.gbytes_per_s));
    const char *instruction = readings->mean.instruction;
    json_object_set_new(row, "instruction", instruction ? json_string(instruction) : json_null());
    json_t *all = json_array();
    for (int i = 0; i < readings->n; i++)
        json_array_append_new(all, json_pack("[f,f]", readings->all[i].gflops, readings->all[i].gbytes_per_s));
    json_object_set_new(row, "probes", all);
}

void bench_print_json(const json_t *rows)
{
    size_t i;
    json_t *row;
    printf("[");
    json_array_foreach(rows, i, row)
    {
        printf("%s\n ", i ? "," : "");
        json_dumpf(row, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    }
    printf("\n]\n");
}

enum probe_type bench_probe_type(const char *dtype)
{
    return strcmp(dtype, "f32") == 0 ? PROBE_F32 : strcmp(dtype, "bf16") == 0 ? PROBE_BF16 : PROBE_INT8;
}
