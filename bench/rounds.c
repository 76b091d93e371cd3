// SPDX-License-Identifier: Apache-2.0
#include "bench/rounds.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

static int rounds_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Returns the median. Sorts the values.
static double rounds_median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, rounds_compare);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static struct probe_reading readings_mean(const struct probe_reading *readings, int n)
{
    struct probe_reading sum = {.gflops = n ? 0 : NAN, .gbytes_per_s = n ? 0 : NAN};
    for (int i = 0; i < n; i++) {
        sum.gflops += readings[i].gflops / n;
        sum.gbytes_per_s += readings[i].gbytes_per_s / n;
        sum.instruction = readings[i].instruction;
    }
    return sum;
}

static enum status rounds_read_probe(const struct rounds *options, struct rounds_readings *readings)
{
    if (!options->probe) return STATUS_OK;
    return probe_read(options->probe, options->type, &readings->all[readings->n++]);
}

static enum status contender_time(struct contender *c, int min_ms, double *seconds_p)
{
    const int burst = c->burst ? c->burst : 1;
    double sum = 0;
    int runs = 0;
    while (!runs || sum * burst * 1000 < min_ms) {
        double seconds;
        enum status status = c->run(c, &seconds);
        if (status != STATUS_OK) return status;
        sum += seconds;
        runs++;
    }
    *seconds_p = sum / runs;
    return STATUS_OK;
}

// Returns the shortest time of one run at the probe's rates.
static double contender_limit_s(const struct contender *c, const struct probe_reading *machine, bool *memory_bound_p)
{
    double arithmetic = c->gflop / machine->gflops, memory = c->gbytes / machine->gbytes_per_s;
    *memory_bound_p = memory > arithmetic;
    return *memory_bound_p ? memory : arithmetic;
}

static struct measurement contender_summarise(const struct contender *c, const double *seconds,
                                              const struct rounds_readings *readings, int rounds)
{
    struct measurement m = {.share = NAN};
    double sorted[ROUNDS_MAX], shares[ROUNDS_MAX];
    if (readings->n) {
        for (int r = 0; r < rounds; r++) {
            struct probe_reading around = readings_mean(&readings->all[r], 2);
            shares[r] = contender_limit_s(c, &around, &m.memory_bound) / seconds[r];
        }
        m.share = rounds_median(shares, rounds);
        contender_limit_s(c, &readings->mean, &m.memory_bound);
    }
    for (int r = 0; r < rounds; r++)
        sorted[r] = seconds[r];
    m.seconds = rounds_median(sorted, rounds);
    m.spread = (sorted[rounds - 1] - sorted[0]) / m.seconds;
    return m;
}

enum status rounds_run(const struct rounds *options, struct contender *contenders, int n,
                       struct measurement *measurements, struct rounds_readings *readings_p)
{
    assert(n <= CONTENDERS_MAX && options->rounds >= 1 && options->rounds <= ROUNDS_MAX);
    double seconds[CONTENDERS_MAX][ROUNDS_MAX];
    struct rounds_readings readings = {.n = 0};
    enum status status = STATUS_OK;
    for (int i = 0; i < n && status == STATUS_OK; i++)
        status = contenders[i].run(&contenders[i], &seconds[i][0]); // warms up; overwritten below
    if (status == STATUS_OK) status = rounds_read_probe(options, &readings);
    for (int r = 0; r < options->rounds && status == STATUS_OK; r++) {
        for (int i = 0; i < n && status == STATUS_OK; i++)
            status = contender_time(&contenders[i], options->min_ms, &seconds[i][r]);
        if (status == STATUS_OK) status = rounds_read_probe(options, &readings);
    }
    if (status != STATUS_OK) return status;
    readings.mean = readings_mean(readings.all, readings.n);
    for (int i = 0; i < n; i++)
        measurements[i] = contender_summarise(&contenders[i], seconds[i], &readings, options->rounds);
    *readings_p = readings;
    return STATUS_OK;
}
