// SPDX-License-Identifier: Apache-2.0
// forepack bench kernels --attention: only the attention step of one layer, called as the model calls it. A prefill
// case is one prompt, in passes of at most --max-num-batched-tokens rows after its cached KV entries. A decode case is
// one row for each of several sequences. Embedding, RoPE and the append to the KV cache run before each pass and are
// not timed. On a device several attention steps follow, each on the next layer.
//
// Cases with cached KV entries cycle through enough layers, but at most LAYERS_MAX, that K and V are read from memory,
// as in a model with many layers. Cases with no cached entries need one layer: K and V were written just before, as in
// a model.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/commands/kernels.h"
#include "engine/batch_builder.h"
#include "engine/block_manager.h"
#include "engine/engine.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/random.h"

enum {
    LAYERS_MAX = 256,
    TABLE_ROWS = 1024,      // different rows that serve as q, k and v
    DEVICE_STEPS = 16,      // attention steps of a device before each wait, whose time they share
    BLOCKS_MAX = 100000000, // blocks of the KV cache
    TOKENS_MAX = 10000000   // tokens of a prompt, and cached tokens
};
static const double LAYERS_BYTES_MIN = 320e6; // K and V of all layers do not fit into a processor's cache

// A measured case, a row of the report.
struct attention_case {
    const char *phase; // "attention_prefill", "attention_decode"
    int batch;         // sequences
    int tokens;        // rows of each sequence
    int context;       // cached KV entries of each sequence
};

struct attention_bench {
    const struct kernels_flags *flags;
    struct count_list prompts, cached, batches, contexts; // prompts.n is 0 without prefill, contexts.n without decode
    struct model_config config;                           // model config with the head size of the flags
    enum dtype dtype, kv_dtype;
    struct rounds rounds;
    json_t *rows;

    // The open case.
    struct attention_case c;
    int chunk_rows;       // rows of one sequence in one pass
    int seq_blocks;       // KV blocks of one sequence
    int layers;           // layers of the KV cache
    int next_layer;       // first layer of the next run
    int steps;            // attention steps of each pass of a run, each on the next layer
    int passes;           // passes of one run
    double gflop, gbytes; // work of one layer
    struct backend *backend;
    struct tensor *qkv, *out;
    struct weight *table; // embeddings that serve as rows of q, k and v
    struct batch_builder builder;
    int32_t *block_numbers; // 0, 1, 2, ...: a sequence has consecutive KV blocks
};

static double attention_entry_bytes(const struct attention_bench *b)
{
    return 2.0 * b->config.n_kv_heads * (double)dtype_kv_bytes(b->kv_dtype, b->config.head_size);
}

// ---- passes ---------------------------------------------------------------------------------------------------------

static enum status attention_wait(const struct attention_bench *b)
{
    return b->backend->ops->wait ? b->backend->ops->wait(b->backend) : STATUS_OK;
}

// Begins a pass with `rows` rows for each of the sequences [first, first + n), after their `cached` KV entries. Appends
// K and V of the rows to `layers` layers, from next_layer on. Returns when the device has finished, so that its work is
// not timed with the next step.
static enum status attention_begin_pass(struct attention_bench *b, int first, int n, int cached, int rows, int layers)
{
    const struct backend_ops *ops = b->backend->ops;
    batch_builder_reset(&b->builder);
    for (int s = first; s < first + n; s++) {
        batch_builder_add_sequence(&b->builder, b->block_numbers + (size_t)s * (size_t)b->seq_blocks, b->seq_blocks,
                                   cached);
        for (int r = 0; r < rows; r++)
            batch_builder_add_row(&b->builder, (s + cached + r) % TABLE_ROWS, cached + r);
    }
    enum status status = ops->begin(b->backend, batch_builder_finish(&b->builder));
    if (status == STATUS_OK) status = ops->embed(b->backend, b->qkv, b->table);
    // rope_append() rotates q and k in place, so q and k are rotated once more for each layer. This is harmless: a
    // rotation keeps their lengths, and so the size of scores.
    for (int i = 0; i < layers && status == STATUS_OK; i++)
        status = ops->rope_append(b->backend, (b->next_layer + i) % b->layers, b->qkv, NULL, NULL, 0);
    return status == STATUS_OK ? attention_wait(b) : status;
}

static enum status attention_fill_cache(struct attention_bench *b)
{
    enum status status = STATUS_OK;
    for (int s = 0; s < b->c.batch; s++)
        for (int from = 0; from < b->c.context && status == STATUS_OK; from += b->builder.limits.rows) {
            int left = b->c.context - from, rows = left < b->builder.limits.rows ? left : b->builder.limits.rows;
            status = attention_begin_pass(b, s, 1, from, rows, b->layers);
        }
    return status;
}

static void attention_add_work(struct attention_bench *b)
{
    const struct ragged_batch *batch = &b->builder.batch;
    double entries = batch->n_rows;
    for (int s = 0; s < batch->n_seqs; s++)
        entries += batch->kv_len[s];
    double pair_flop = 4.0 * b->config.n_heads * b->config.head_size;
    b->gflop += pair_flop * (double)ragged_attention_pairs(batch) / 1e9;
    b->gbytes += entries * attention_entry_bytes(b) / 1e9;
    b->passes++;
}

static enum status attention_run(struct contender *self, double *seconds_p)
{
    struct attention_bench *b = self->context;
    int64_t sum_us = 0;
    b->gflop = b->gbytes = 0;
    b->passes = 0;
    for (int from = 0; from < b->c.tokens; from += b->chunk_rows) {
        int left = b->c.tokens - from, rows = left < b->chunk_rows ? left : b->chunk_rows;
        enum status status = attention_begin_pass(b, 0, b->c.batch, b->c.context + from, rows, b->steps);
        int64_t from_us = clock_now_us();
        for (int i = 0; i < b->steps && status == STATUS_OK; i++)
            status = b->backend->ops->attention(b->backend, (b->next_layer + i) % b->layers, b->out, b->qkv);
        if (status == STATUS_OK) status = attention_wait(b);
        if (status != STATUS_OK) return status;
        sum_us += clock_now_us() - from_us;
        attention_add_work(b);
    }
    b->next_layer = (b->next_layer + b->steps) % b->layers;
    self->gflop = b->steps * b->gflop;
    self->gbytes = b->steps * b->gbytes;
    // at least 1 us: a rate needs a time other than 0
    *seconds_p = (double)(sum_us ? sum_us : 1) / 1e6;
    return STATUS_OK;
}

// ---- a case ---------------------------------------------------------------------------------------------------------

// Makes the table of values with mean 0 and standard deviation 1. Attention scores then also have standard deviation 1.
static enum status attention_make_table(struct attention_bench *b, int columns)
{
    float *values = mem_alloc_array((size_t)TABLE_ROWS * (size_t)columns, sizeof *values);
    struct random_source random = {1};
    for (int i = 0; i < TABLE_ROWS * columns; i++)
        values[i] = (float)((random_unit(&random) - 0.5) * sqrt(12));
    const struct matrix_view view = {.data = values,
                                     .dtype = DTYPE_F32,
                                     .rows = TABLE_ROWS,
                                     .columns = columns,
                                     .row_stride_bytes = columns * (int64_t)sizeof *values};
    enum status status = b->backend->ops->weight_embedding(b->backend, &view, 0, NULL, &b->table);
    free(values);
    return status;
}

static enum status attention_open_backend(struct attention_bench *b, int max_rows, int n_kv_blocks)
{
    const struct model_config *c = &b->config;
    float *inv_freq = mem_alloc_array((size_t)c->head_size / 2, sizeof *inv_freq);
    rope_config_frequencies(&c->rope, false, inv_freq);
    const struct backend_shape shape = {.n_layers = b->layers,
                                        .n_heads = c->n_heads,
                                        .n_kv_heads = c->n_kv_heads,
                                        .head_size = c->head_size,
                                        .rope.inv_freq = inv_freq,
                                        .max_rows = max_rows,
                                        .max_seqs = b->c.batch,
                                        .max_context = b->c.context + b->c.tokens,
                                        .n_kv_blocks = n_kv_blocks,
                                        .kv_dtype = b->kv_dtype};
    enum status status =
        backend_open(b->flags->backend, &shape, b->dtype, group_threads((int)b->flags->threads), &b->backend);
    free(inv_freq);
    return status;
}

static int attention_layers(const struct attention_bench *b)
{
    if (!b->c.context) return 1;
    double layer_bytes = (double)b->c.batch * (b->c.context + b->c.tokens) * attention_entry_bytes(b);
    double layers = ceil(LAYERS_BYTES_MIN / layer_bytes);
    return layers > LAYERS_MAX ? LAYERS_MAX : (int)layers;
}

static enum status attention_case_open(struct attention_bench *b)
{
    const struct attention_case *c = &b->c;
    const int budget = (int)b->flags->token_budget, entries = c->context + c->tokens;
    b->seq_blocks = kv_blocks_for(entries);
    b->chunk_rows = c->tokens < budget ? c->tokens : budget;
    b->layers = attention_layers(b);
    b->next_layer = 0;
    int64_t n_blocks = (int64_t)c->batch * b->seq_blocks;
    if (n_blocks > BLOCKS_MAX)
        return status_fail(STATUS_INVALID, "%d sequences of %d KV entries: %lld KV blocks are too many, at most %d",
                           c->batch, entries, (long long)n_blocks, BLOCKS_MAX);
    // attention_fill_cache() appends a sequence's cached entries in passes of at most max_rows rows. max_rows is at
    // least the context or the token budget, whichever is smaller, so that few passes suffice.
    int rows = c->batch * b->chunk_rows, fill_rows = c->context < budget ? c->context : budget;
    int max_rows = rows > fill_rows ? rows : fill_rows;
    enum status status = attention_open_backend(b, max_rows, (int)n_blocks);
    if (status != STATUS_OK) return status;

    const struct backend_ops *ops = b->backend->ops;
    const int q = b->config.n_heads * b->config.head_size, qkv = q + 2 * b->config.n_kv_heads * b->config.head_size;
    const struct batch_limits limits = {.rows = max_rows, .seqs = c->batch, .seq_blocks = b->seq_blocks};
    batch_builder_init(&b->builder, &limits);
    b->block_numbers = mem_alloc_array((size_t)n_blocks, sizeof *b->block_numbers);
    for (int i = 0; i < n_blocks; i++)
        b->block_numbers[i] = i;
    b->steps = ops->wait ? DEVICE_STEPS : 1;
    status = ops->tensor_create(b->backend, TENSOR_F32, max_rows, qkv, &b->qkv);
    if (status == STATUS_OK) status = ops->tensor_create(b->backend, TENSOR_ACTIVATION, max_rows, q, &b->out);
    if (status == STATUS_OK) status = attention_make_table(b, qkv);
    return status == STATUS_OK ? attention_fill_cache(b) : status;
}

static void attention_case_close(struct attention_bench *b)
{
    if (!b->backend) return;
    b->backend->ops->close(b->backend);
    b->backend = NULL;
    batch_builder_fini(&b->builder);
    free(b->block_numbers);
    b->block_numbers = NULL;
}

// ---- report ---------------------------------------------------------------------------------------------------------

static void attention_print_heading(const struct attention_bench *b)
{
    if (b->flags->json) return;
    printf("attention of one layer: %d heads and %d KV heads of size %d, K and V in %s, %d threads\n",
           b->config.n_heads, b->config.n_kv_heads, b->config.head_size, dtype_name(b->kv_dtype),
           group_threads((int)b->flags->threads));
    printf(BENCH_SHARE_LEGEND "\n\n");
    printf("%-17s %5s %7s %8s %6s %10s %7s %9s %9s %7s %7s %7s\n", "phase", "batch", "tokens", "context", "passes",
           "ms", "spread", "GFLOP/s", "peak", "GB/s", "DRAM", "share");
    fflush(stdout);
}

static void attention_print_row(const struct attention_bench *b, double seconds, const struct measurement *m,
                                const struct rounds_readings *readings)
{
    if (b->flags->json) return;
    char share[BENCH_SHARE_BYTES];
    printf("%-17s %5d %7d %8d %6d %10.3f %6.1f%% %9.1f %9.1f %7.1f %7.1f %7s\n", b->c.phase, b->c.batch, b->c.tokens,
           b->c.context, b->passes, 1000 * seconds, 100 * m->spread, b->gflop / seconds, readings->mean.gflops,
           b->gbytes / seconds, readings->mean.gbytes_per_s, bench_share_text(m, share));
    fflush(stdout);
}

static void attention_add_row(struct attention_bench *b, const struct measurement *m,
                              const struct rounds_readings *readings)
{
    const struct model_config *c = &b->config;
    double seconds = m->seconds / b->steps;
    attention_print_row(b, seconds, m, readings);
    json_t *row = json_pack("{s:s,s:i,s:i,s:i,s:i,s:f,s:f,s:f,s:f}", "phase", b->c.phase, "tokens", b->c.tokens,
                            "batch", b->c.batch, "context", b->c.context, "passes", b->passes, "ms", 1000 * seconds,
                            "spread", m->spread, "gflops", b->gflop / seconds, "gbytes_per_s", b->gbytes / seconds);
    json_object_set_new(row, "attention_gflop", json_real(b->gflop));
    json_object_set_new(row, "gbytes", json_real(b->gbytes));
    bench_add_share(row, m);
    json_object_set_new(row, "backend", json_string(b->backend->ops->name));
    json_object_set_new(row, "dtype", json_string(dtype_name(b->dtype)));
    json_object_set_new(row, "kv_dtype", json_string(dtype_name(b->kv_dtype)));
    json_object_set_new(row, "heads", json_integer(c->n_heads));
    json_object_set_new(row, "kv_heads", json_integer(c->n_kv_heads));
    json_object_set_new(row, "head_size", json_integer(c->head_size));
    json_object_set_new(row, "layers", json_integer(b->layers));
    json_object_set_new(row, "threads", json_integer(group_threads((int)b->flags->threads)));
    json_object_set_new(row, "rounds", json_integer(b->rounds.rounds));
    bench_add_readings(row, readings);
    json_array_append_new(b->rows, row);
}

// ---- run ------------------------------------------------------------------------------------------------------------

static enum status attention_measure_case(struct attention_bench *b)
{
    struct contender contender = {.run = attention_run, .context = b};
    struct measurement m;
    struct rounds_readings readings;
    int probe_ms = (int)b->flags->probe_ms;
    enum status status = attention_case_open(b);
    if (status == STATUS_OK) status = rounds_run(&b->rounds, &contender, 1, &m, &readings);
    if (status == STATUS_OK && b->backend->ops->measure && probe_ms)
        status = kernels_read_device(b->backend, probe_ms, contender.gflop, contender.gbytes, &m, &readings);
    if (status == STATUS_OK) attention_add_row(b, &m, &readings);
    attention_case_close(b);
    return status;
}

static enum status attention_measure_prefill(struct attention_bench *b)
{
    enum status status = STATUS_OK;
    for (int t = 0; t < b->prompts.n; t++)
        for (int i = 0; i < b->cached.n && status == STATUS_OK; i++) {
            b->c = (struct attention_case){"attention_prefill", 1, b->prompts.count[t], b->cached.count[i]};
            status = attention_measure_case(b);
        }
    return status;
}

static enum status attention_measure_decode(struct attention_bench *b)
{
    enum status status = STATUS_OK;
    for (int t = 0; t < b->contexts.n; t++)
        for (int i = 0; i < b->batches.n && status == STATUS_OK; i++) {
            b->c = (struct attention_case){"attention_decode", b->batches.count[i], 1, b->contexts.count[t]};
            status = attention_measure_case(b);
        }
    return status;
}

static enum status attention_parse_counts(struct attention_bench *b)
{
    const struct kernels_flags *f = b->flags;
    enum status status = STATUS_OK;
    if (strcmp(f->prompt_tokens, "0") != 0)
        status = count_list_parse("prompt-tokens", f->prompt_tokens, 1, TOKENS_MAX, &b->prompts);
    if (status == STATUS_OK) status = count_list_parse("cached-tokens", f->cached_tokens, 0, TOKENS_MAX, &b->cached);
    if (status == STATUS_OK) status = count_list_parse("batch", f->batch, 1, 65536, &b->batches);
    if (status == STATUS_OK && strcmp(f->context, "0") != 0)
        status = count_list_parse("context", f->context, 1, TOKENS_MAX, &b->contexts);
    if (status == STATUS_OK && !b->prompts.n && !b->contexts.n)
        status = status_fail(STATUS_INVALID, "--prompt-tokens and --context are both 0: there is nothing to measure");
    return status;
}

static enum status attention_choose_dtypes(struct attention_bench *b)
{
    const char *kv = b->flags->kv_dtype;
    enum status status = kernels_dtype(b->flags->dtype, &b->dtype);
    if (status != STATUS_OK) return status;
    b->kv_dtype = dtype_of_activations(b->dtype);
    if (strcmp(kv, "auto") == 0) return STATUS_OK;
    if (b->dtype == DTYPE_F32)
        return status_fail(STATUS_INVALID, "--kv-cache-dtype %s: with --dtype f32 K and V are f32, so give auto", kv);
    return kernels_dtype(kv, &b->kv_dtype);
}

enum status kernels_measure_attention(const struct kernels_flags *flags, const struct model_config *config,
                                      struct probe *probe, json_t *rows)
{
    struct attention_bench b = {.flags = flags, .config = *config, .rows = rows};
    if (flags->head_size) b.config.head_size = (int)flags->head_size;
    enum status status = attention_choose_dtypes(&b);
    if (status == STATUS_OK) status = attention_parse_counts(&b);
    if (status != STATUS_OK) return status;
    // Attention computes in the activations' type, so the probe measures this type.
    enum probe_type type = bench_probe_type(dtype_name(dtype_of_activations(b.dtype)));
    b.rounds = (struct rounds){probe, type, (int)flags->rounds, (int)flags->min_ms};
    attention_print_heading(&b);
    status = attention_measure_prefill(&b);
    return status == STATUS_OK ? attention_measure_decode(&b) : status;
}
