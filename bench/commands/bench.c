// SPDX-License-Identifier: Apache-2.0
#include "bench/commands/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char *bench_share_text(const struct measurement *m, char *text)
{
    if (isnan(m->share)) return "-";
    snprintf(text, BENCH_SHARE_BYTES, "%.1f%%%c", 100 * m->share, m->memory_bound ? 'm' : 'c');
    return text;
}

void bench_add_share(json_t *row, const struct measurement *m)
{
    const char *limit = isnan(m->share) ? "unknown" : m->memory_bound ? "memory" : "compute";
    json_object_set_new(row, "share", bench_number(m->share));
    json_object_set_new(row, "limit", json_string(limit));
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

double bench_weight_bytes(const char *dtype)
{
    if (strcmp(dtype, "int4-g128") == 0) return 0.5 + 5.0 / 128; // a scale of four bytes and a zero for each group
    if (strcmp(dtype, "bf12") == 0) return 1.5;
    return strcmp(dtype, "f32") == 0 ? 4 : strcmp(dtype, "bf16") == 0 ? 2 : 1;
}

enum probe_type bench_probe_type(const char *dtype)
{
    const bool multiplies_bf16 = strncmp(dtype, "bf1", 3) == 0 || strcmp(dtype, "int4-g128") == 0;
    return strcmp(dtype, "f32") == 0 ? PROBE_F32 : multiplies_bf16 ? PROBE_BF16 : PROBE_INT8;
}

double thread_cpu_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}
