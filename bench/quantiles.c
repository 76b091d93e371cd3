// SPDX-License-Identifier: Apache-2.0
#include "bench/quantiles.h"

#include <math.h>
#include <stdlib.h>

#include "lib/base/mem.h"

void samples_add(struct samples *s, double value)
{
    MEM_GROW(s->value, s->n, s->capacity);
    s->value[s->n++] = value;
}

void samples_free(struct samples *s)
{
    free(s->value);
    *s = (struct samples){0};
}

static int samples_compare(const void *left, const void *right)
{
    const double *a = left, *b = right;
    return (*a > *b) - (*a < *b);
}

static void samples_sort(struct samples *s)
{
    if (s->n) qsort(s->value, (size_t)s->n, sizeof *s->value, samples_compare);
}

static double samples_at(const struct samples *s, double percent)
{
    if (!s->n) return NAN;
    double at = percent / 100 * (s->n - 1);
    int below = (int)floor(at);
    if (below >= s->n - 1) return s->value[s->n - 1];
    return s->value[below] + (at - below) * (s->value[below + 1] - s->value[below]);
}

double samples_percentile(struct samples *s, double percent)
{
    samples_sort(s);
    return samples_at(s, percent);
}

struct quantiles samples_quantiles(struct samples *s)
{
    samples_sort(s);
    double sum = 0;
    for (int i = 0; i < s->n; i++)
        sum += s->value[i];
    return (struct quantiles){s->n ? sum / s->n : NAN, samples_at(s, 50), samples_at(s, 90),
                              samples_at(s, 95),       samples_at(s, 99), samples_at(s, 100)};
}
