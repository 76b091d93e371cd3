// SPDX-License-Identifier: Apache-2.0
#include "sim/measured_passes.h"

#include <math.h>

static double number(const json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name));
}

static void deviations_read(const json_t *counts, struct histogram *h)
{
    histogram_init(h, &histogram_deviation_ppm);
    size_t i;
    json_t *count;
    json_array_foreach(counts, i, count)
    {
        if (i <= (size_t)h->scale->n && json_integer_value(count) > 0)
            h->counts[i] = (uint64_t)json_integer_value(count);
    }
}

// Reads a class of passes. Sizes come in ascending order.
static void class_read(struct measured_passes *m, const json_t *class)
{
    double passes = number(class, "passes"), rows = number(class, "rows") / passes;
    double us = (number(class, "s") * 1e6 - m->pair_us * number(class, "pairs")) / passes;
    struct measured_kind *kind = &m->kinds[json_is_true(json_object_get(class, "prompts"))];
    if (!(passes > 0) || !(rows > 0) || kind->n == COST_SIZES) return;
    if (kind->n && !(rows > kind->sizes[kind->n - 1].rows)) return;
    struct measured_size *size = &kind->sizes[kind->n++];
    *size = (struct measured_size){.rows = rows, .us = fmax(us, 1)};
    deviations_read(json_object_get(class, "deviations"), &size->deviation);
}

void measured_passes_read(struct measured_passes *m, const json_t *node, double row_us, double pair_us)
{
    *m = (struct measured_passes){.row_us = row_us, .pair_us = pair_us};
    size_t i;
    json_t *class;
    json_array_foreach(json_object_get(node, "pass_classes"), i, class) class_read(m, class);
}

void measured_passes_forget_deviations(struct measured_passes *m)
{
    for (int kind = 0; kind < PASS_KINDS; kind++)
        for (int i = 0; i < m->kinds[kind].n; i++)
            histogram_init(&m->kinds[kind].sizes[i].deviation, &histogram_deviation_ppm);
}

bool measured_passes_known(const struct measured_passes *m)
{
    return m->kinds[0].n || m->kinds[1].n;
}

// Returns the kind's measurements, or the other kind's if this kind was not measured.
static const struct measured_kind *kind_of(const struct measured_passes *m, bool has_prompts)
{
    return &m->kinds[m->kinds[has_prompts].n ? has_prompts : !has_prompts];
}

// Returns the time of a pass, interpolated between the measured sizes. Beyond these sizes, rows cost what the cost
// model says.
double measured_pass_us(const struct measured_passes *m, bool has_prompts, double rows, double pairs)
{
    const struct measured_kind *kind = kind_of(m, has_prompts);
    const struct measured_size *above = kind->sizes, *last = &kind->sizes[kind->n - 1];
    while (above < last && above->rows < rows)
        above++;
    double us = above->us + m->row_us * (rows - above->rows);
    if (above > kind->sizes && above->rows > rows) {
        const struct measured_size *below = above - 1;
        us = below->us + (above->us - below->us) * (rows - below->rows) / (above->rows - below->rows);
    }
    return fmax(us, 1) + m->pair_us * pairs;
}

// --- deviations

static double edge_of(const struct histogram_scale *scale, int i)
{
    double first = (double)scale->edges[0], last = (double)scale->edges[scale->n - 1];
    return i < 0 ? first / 2 : i < scale->n ? (double)scale->edges[i] : 1.25 * last;
}

// Returns the ratio at a share of the way between the edges of bucket i.
static double ratio_at(const struct histogram_scale *scale, int i, double share)
{
    return edge_of(scale, i - 1) + share * (edge_of(scale, i) - edge_of(scale, i - 1));
}

static double mean_ratio(const struct histogram *h)
{
    double sum = 0;
    for (int i = 0; i <= h->scale->n; i++)
        sum += (double)h->counts[i] * ratio_at(h->scale, i, 0.5);
    return sum / (double)histogram_count(h);
}

// Returns the size with the nearest mean number of rows; distances are ratios.
static const struct measured_size *size_near(const struct measured_kind *kind, double rows)
{
    const struct measured_size *size = kind->sizes, *last = &kind->sizes[kind->n - 1];
    while (size < last && size[0].rows * size[1].rows < rows * rows)
        size++;
    return size;
}

double measured_pass_vary(const struct measured_passes *m, bool has_prompts, double rows, struct random_source *random)
{
    const struct histogram *h = &size_near(kind_of(m, has_prompts), rows)->deviation;
    double at = random_unit(random) * (double)histogram_count(h);
    if (!histogram_count(h)) return 1;
    int i = 0;
    while (i < h->scale->n && at >= (double)h->counts[i])
        at -= (double)h->counts[i++];
    return ratio_at(h->scale, i, at / (double)h->counts[i]) / mean_ratio(h);
}
