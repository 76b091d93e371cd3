// SPDX-License-Identifier: Apache-2.0
#include "engine/start_costs.h"

#include <stdlib.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"

// Most KV entries of a measured pass, and most rows. The router trusts costs up to four times these numbers.
enum { ENTRIES_MAX = 2048, ROWS_MAX = 1024 };
enum { SMOOTHING_WINDOW = 13 }; // as requests have it by default
enum { RUNS_MAX = 3 }; // runs of a short pass, of which the fastest counts: other processes start at the same time

struct measurement {
    struct engine *engine;
    const struct start_limits *limits;
    int entries, layers;
    double last_layer;                  // share of a layer that the last layer computes for rows without logits
    int64_t spent_us, rest_us;          // time of all passes so far; time of the logits of a pass without layers
    int32_t *token, *position, *blocks; // [entries] token 0; position ids; blocks of one sequence
    struct start_costs costs;
};

// Sets the blocks of a pass. Its cached blocks repeat the blocks that an earlier pass of as many rows wrote, because
// writing that many entries would take too long.
static int blocks_set(struct measurement *m, int rows, int cached)
{
    const int n_cached = cached / KV_BLOCK_TOKENS, written = rows / KV_BLOCK_TOKENS;
    const int n = (cached + rows + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    for (int i = 0; i < n; i++)
        m->blocks[i] = !cached ? i : i < n_cached ? i % written : written + i - n_cached;
    return n;
}

// A measured pass: the last layers are left out. The head is as large as several layers, so few passes compute it.
struct measured_pass {
    int rows, cached, layers;
    bool logits;
};

static enum status pass_run(struct measurement *m, const struct measured_pass *pass, int64_t *us_p)
{
    const int rows = pass->rows, cached = pass->cached;
    const int32_t row_start[2] = {0, rows}, kv_len[1] = {cached}, last[1] = {rows - 1}, keys[1] = {cached + rows};
    const struct ragged_batch batch = {.n_rows = rows,
                                       .token = m->token,
                                       .position = m->position + cached,
                                       .n_seqs = 1,
                                       .row_start = row_start,
                                       .kv_len = kv_len,
                                       .block_table = m->blocks,
                                       .max_blocks = blocks_set(m, rows, cached),
                                       .n_logit_rows = pass->logits,
                                       .logit_row = last,
                                       .n_importance_rows = m->limits->importance,
                                       .importance_row = last,
                                       .importance_keys = keys,
                                       .smoothing_window = SMOOTHING_WINDOW,
                                       .skipped_layers = m->layers - pass->layers};
    struct forward_result result;
    const int64_t begun_us = clock_now_us();
    TRY(engine_forward(m->engine, &batch, &result));
    *us_p = clock_now_us() - begun_us;
    return STATUS_OK;
}

// Measures the fastest of a few runs. Repeats a pass only if the time of all passes stays under half of the limit.
static enum status pass_measure(struct measurement *m, struct measured_pass pass, int64_t *us_p)
{
    int64_t best_us = INT64_MAX, us = 0;
    for (int run = 0; run < RUNS_MAX && (!run || m->spent_us + us <= m->limits->us / 2); run++) {
        TRY(pass_run(m, &pass, &us));
        m->spent_us += us;
        if (us < best_us) best_us = us;
    }
    *us_p = best_us;
    return STATUS_OK;
}

static void costs_add(struct measurement *m, int rows, int cached, int64_t us)
{
    const int64_t pairs = (int64_t)rows * cached + (int64_t)rows * (rows + 1) / 2;
    m->costs.passes[m->costs.n++] = (struct start_pass){rows, pairs, us > 0 ? us : 1};
}

// Measures one layer of a pass and adds the time of all layers and the logits. *us_p gets the time of the measured
// pass.
static enum status layer_measure(struct measurement *m, int rows, int cached, int64_t *us_p)
{
    int64_t empty_us;
    TRY(pass_measure(m, (struct measured_pass){rows, cached, 0, false}, &empty_us));
    TRY(pass_measure(m, (struct measured_pass){rows, cached, 1, false}, us_p));
    const double layer_us = *us_p > empty_us ? (double)(*us_p - empty_us) : 0;
    const double layers = m->layers - 1 + (rows > 1 && m->layers > 1 ? m->last_layer : 1);
    costs_add(m, rows, cached, m->rest_us + empty_us + (int64_t)(layers * layer_us));
    return STATUS_OK;
}

static enum status passes_measure(struct measurement *m)
{
    const int most = m->limits->rows < m->entries ? m->limits->rows : m->entries;
    int rows = most < 64 ? most : 64;
    int64_t us, whole_us;
    // The first pass is slower than later ones if the model is small.
    TRY(pass_run(m, &(struct measured_pass){1, 0, m->layers, true}, &whole_us));
    TRY(pass_measure(m, (struct measured_pass){1, 0, 0, true}, &m->rest_us));
    TRY(layer_measure(m, 1, 0, &us));
    if (whole_us < m->costs.passes[0].us) m->costs.passes[0].us = whole_us;
    TRY(layer_measure(m, rows, 0, &us));
    const int cached = (m->entries - rows) / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS;
    if (rows >= KV_BLOCK_TOKENS && cached >= rows) TRY(layer_measure(m, rows, cached, &us));
    while (rows < most && rows < ROWS_MAX && m->spent_us + 5 * us <= m->limits->us) {
        rows = 4 * rows < most ? 4 * rows : most;
        TRY(layer_measure(m, rows, 0, &us));
    }
    return STATUS_OK;
}

static void measurement_init(struct measurement *m, struct engine *e, const struct start_limits *limits)
{
    const int entries = limits->entries < ENTRIES_MAX ? limits->entries : ENTRIES_MAX;
    *m = (struct measurement){.engine = e,
                              .limits = limits,
                              .entries = entries,
                              .layers = model_get_config(engine_model(e))->n_layers,
                              .last_layer = model_last_layer_share(engine_model(e)),
                              .token = mem_alloc_array((size_t)entries, sizeof *m->token),
                              .position = mem_alloc_array((size_t)entries, sizeof *m->position),
                              .blocks = mem_alloc_array((size_t)entries, sizeof *m->blocks)};
    for (int i = 0; i < entries; i++)
        m->position[i] = i;
}

static void measurement_fini(struct measurement *m)
{
    free(m->token);
    free(m->position);
    free(m->blocks);
}

enum status start_costs_measure(struct engine *e, const struct start_limits *limits, struct start_costs *costs_p)
{
    struct measurement m;
    measurement_init(&m, e, limits);
    enum status status = passes_measure(&m);
    measurement_fini(&m);
    if (status == STATUS_OK) *costs_p = m.costs;
    return status;
}

enum status start_costs_skip(struct engine *e, const struct start_limits *limits)
{
    struct measurement m;
    int64_t us;
    measurement_init(&m, e, limits);
    enum status status = pass_run(&m, &(struct measured_pass){1, 0, 1, false}, &us);
    measurement_fini(&m);
    return status;
}
