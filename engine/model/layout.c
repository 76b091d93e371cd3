// SPDX-License-Identifier: Apache-2.0
// Lays out a model before a backend is opened: the split over stages and ranks, the dtypes, the limits of a batch, the
// size of the KV cache, and the tensors of working memory.
#include <string.h>

#include "engine/model/llama.h"

static enum status split_over_ranks(const struct model_options *options, struct model *m)
{
    const struct model_config *c = &m->config;
    const int size = m->comm->size;
    // If there are more ranks than KV heads, every rank that has query heads of a KV head holds a copy of that KV head.
    if (c->n_kv_heads % size != 0 && size % c->n_kv_heads != 0)
        return status_fail(STATUS_UNSUPPORTED,
                           "%s: %d KV heads cannot be split over %d ranks: use a number of ranks that divides %d or is "
                           "a multiple of it",
                           options->dir, c->n_kv_heads, size, c->n_kv_heads);
    const struct {
        const char *what;
        int n;
    } parts[] = {{"attention heads", c->n_heads}, {"MLP columns", c->intermediate}};
    for (int i = 0; i < 2; i++)
        if (parts[i].n % size != 0)
            return status_fail(STATUS_UNSUPPORTED,
                               "%s: %d %s cannot be split evenly over %d ranks: use a number of ranks that "
                               "divides %d",
                               options->dir, parts[i].n, parts[i].what, size, parts[i].n);
    m->n_heads = c->n_heads / size;
    m->n_kv_heads = c->n_kv_heads > size ? c->n_kv_heads / size : 1;
    m->kv_copies = c->n_kv_heads > size ? 1 : size / c->n_kv_heads;
    m->first_kv_head = m->comm->rank * c->n_kv_heads / size;
    m->intermediate = c->intermediate / size;

    m->vocab_share = (c->vocab_size + size - 1) / size;
    m->first_id = m->comm->rank * m->vocab_share;
    if ((size - 1) * m->vocab_share >= c->vocab_size)
        return status_fail(STATUS_UNSUPPORTED, "%s: a vocabulary of %d is too small for %d ranks", options->dir,
                           c->vocab_size, size);
    int left = c->vocab_size - m->first_id;
    m->n_ids = left < m->vocab_share ? left : m->vocab_share;
    return STATUS_OK;
}

// Finds the stage of this rank and its layers.
static enum status split_over_stages(const struct model_options *o, struct model *m)
{
    int layers[MODEL_STAGES_MAX] = {m->config.n_layers};
    struct pipeline_stage *s = &m->stage;
    *s = (struct pipeline_stage){.count = o->stages > 1 ? o->stages : 1};
    TRY(stage_of_rank(m->group->rank, m->group->size, s->count, &s->index));
    TRY(stages_divide(&m->config, o->stage_layers, s->count, layers));
    for (int i = 0; i < s->index; i++)
        s->first_layer += layers[i];
    s->n_layers = layers[s->index];
    s->first = s->index == 0;
    s->last = s->index == s->count - 1;
    return STATUS_OK;
}

static enum status check_options(const struct model_options *o, const struct model_config *c)
{
    if (o->max_rows < 1 || o->max_seqs < 1 || o->max_logit_rows < 0 || o->max_logit_rows > o->max_rows ||
        o->n_kv_blocks < 0)
        return status_fail(STATUS_INVALID,
                           "%d rows, %d sequences, %d logit rows, %d KV blocks: must be at least 1, 1, 0 and 0, and no "
                           "more logit rows than rows",
                           o->max_rows, o->max_seqs, o->max_logit_rows, o->n_kv_blocks);
    if (o->max_context < 0 || o->max_context > c->max_context)
        return status_fail(STATUS_INVALID, "max_context %d: must be in 1..%d for this model, or 0 for all of it",
                           o->max_context, c->max_context);
    return STATUS_OK;
}

static enum status choose_dtype(const struct model_options *o, const struct safetensors *st, struct model *m)
{
    enum dtype stored;
    TRY(model_stored_dtype(&m->config, st, &stored));
    if (strcmp(o->dtype, "auto") == 0) {
        m->dtype = stored == DTYPE_F16 ? DTYPE_BF16 : stored;
        return STATUS_OK;
    }
    for (int d = 0; d < DTYPE_COUNT; d++)
        if (d != DTYPE_F16 && strcmp(o->dtype, dtype_name((enum dtype)d)) == 0) {
            m->dtype = (enum dtype)d;
            return STATUS_OK;
        }
    return status_fail(STATUS_INVALID, "dtype %s: must be one of " MODEL_DTYPES, o->dtype);
}

static enum status choose_kv_dtype(const char *name, struct model *m)
{
    m->kv_dtype = dtype_of_activations(m->dtype);
    if (!name || strcmp(name, "auto") == 0) return STATUS_OK;
    static const enum dtype choices[] = {DTYPE_BF16, DTYPE_INT8, DTYPE_FP8};
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        if (strcmp(name, dtype_name(choices[i])) != 0) continue;
        if (m->dtype == DTYPE_F32)
            return status_fail(
                STATUS_INVALID,
                "kv-cache-dtype %s: a model computed in f32 keeps K and V in f32: use kv-cache-dtype auto, or a "
                "dtype of 16 or 8 bits",
                name);
        m->kv_dtype = choices[i];
        return STATUS_OK;
    }
    return status_fail(STATUS_INVALID, "kv-cache-dtype %s: must be one of " MODEL_KV_DTYPES, name);
}

static enum status choose_allreduce_dtype(const char *name, struct model *m)
{
    m->sums_bf16 = !name || strcmp(name, "auto") == 0 || strcmp(name, "bf16") == 0;
    if (m->sums_bf16 || strcmp(name, "f32") == 0) return STATUS_OK;
    return status_fail(STATUS_INVALID, "allreduce-dtype %s: must be one of " MODEL_ALLREDUCE_DTYPES, name);
}

// Sets the limits of a batch and the size of the KV cache.
static enum status shape_plan(const struct model_options *o, struct model *m)
{
    const struct model_config *c = &m->config;
    int context = o->max_context ? o->max_context : c->max_context;
    int64_t block_bytes = (int64_t)2 * m->stage.n_layers * KV_BLOCK_TOKENS * m->n_kv_heads;
    block_bytes *= (int64_t)dtype_kv_bytes(m->kv_dtype, c->head_size);
    int64_t blocks = o->n_kv_blocks;
    if (!blocks) {
        int64_t wanted = (int64_t)o->max_seqs * ((context + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS);
        int64_t affordable = ((int64_t)1 << 30) / block_bytes;
        blocks = wanted < affordable ? wanted : affordable > 0 ? affordable : 1;
    }
    m->max_logit_rows = o->max_logit_rows;
    if (!m->max_logit_rows) m->max_logit_rows = o->max_seqs < o->max_rows ? o->max_seqs : o->max_rows;
    m->kv_block_bytes = (size_t)block_bytes;
    m->kv_bytes = (size_t)(blocks * block_bytes);
    m->zeros = o->zeros;
    m->kv_blocks_asked = o->n_kv_blocks;
    m->host_limit = o->memory_bytes;
    m->gpu_memory_utilization =
        o->gpu_memory_utilization > 0 ? o->gpu_memory_utilization : MODEL_GPU_MEMORY_UTILIZATION;
    m->shape = (struct backend_shape){.n_layers = m->stage.n_layers,
                                      .n_heads = m->n_heads,
                                      .n_kv_heads = m->n_kv_heads,
                                      .head_size = c->head_size,
                                      .max_rows = o->max_rows,
                                      .max_seqs = o->max_seqs,
                                      .max_context = context,
                                      .n_kv_blocks = (int)blocks,
                                      .gpu = o->gpu,
                                      .overlap_rows = o->overlap_rows ? o->overlap_rows : MODEL_OVERLAP_ROWS,
                                      .fp8_fast_accum = o->fp8_fast_accum,
                                      .embedding_scale = (float)(c->scales.embedding / c->scales.residual),
                                      .kv_dtype = m->kv_dtype};
    return STATUS_OK;
}

enum status model_lay_out(const struct model_options *options, const struct safetensors *st, struct model *m)
{
    model_resolve_head(&m->config, st);
    TRY(check_options(options, &m->config));
    TRY(split_over_stages(options, m));
    TRY(split_over_ranks(options, m));
    TRY(choose_dtype(options, st, m));
    TRY(choose_kv_dtype(options->kv_dtype, m));
    TRY(choose_allreduce_dtype(options->allreduce_dtype, m));
    TRY(shape_plan(options, m));
    enum dtype stored;
    TRY(model_stored_dtype(&m->config, st, &stored));
    // Matrices that a quantised checkpoint stores in 16 bits are computed in 16 bits.
    m->shape.as_stored = m->config.stored != STORED_PLAIN && m->dtype == stored;
    return STATUS_OK;
}

int model_list_tensors(struct model *m, bool samples, struct tensor_need list[MODEL_TENSORS_MAX])
{
    const int rows = m->shape.max_rows, d = m->shape.head_size, size = m->comm->size;
    const int logits = m->stage.last ? m->max_logit_rows : 0;
    const int gathers = m->comm->rank == 0 && size > 1 ? size * logits : 0;
    const int last = m->backend->ops->gather_rows ? logits : 0;
    const struct layer_shape *layer = &m->config.layer;
    // Outputs that are normalised are summed in f32, since their norms need the sums.
    const bool partial =
        size > 1 && m->sums_bf16 && m->backend->ops->capabilities.device_collectives && !layer->norms_outputs;
    const int inner = layer_mlp_is_fused(layer) ? 0 : rows, branch = layer->norms_outputs ? rows : 0;
    const int squares = layer->head_norm == HEAD_NORM_WHOLE ? rows : 0;
    const struct tensor_need all[] = {
        {&m->residual, TENSOR_F32, rows, m->config.hidden, 0, false},
        {&m->partial, TENSOR_PARTIAL, partial ? rows : 0, m->config.hidden, 0, false},
        {&m->normed, TENSOR_ACTIVATION, rows, m->config.hidden, 0, false},
        {&m->qkv, TENSOR_F32, rows, (m->n_heads + 2 * m->n_kv_heads) * d, 0, false},
        {&m->attended, TENSOR_ACTIVATION, rows, m->n_heads * d, 0, false},
        {&m->mlp, TENSOR_ACTIVATION, rows, m->intermediate, 0, false},
        {&m->mlp_inner, TENSOR_F32, inner, (layer_mlp_matrices(layer) - 1) * m->intermediate, 0, false},
        {&m->branch, TENSOR_F32, branch, m->config.hidden, 0, false},
        {&m->squares, TENSOR_F32, squares, 2, 0, false},
        {&m->last_branch, TENSOR_F32, branch ? last : 0, m->config.hidden, 0, true},
        {&m->last_attended, TENSOR_ACTIVATION, last, m->n_heads * d, 0, true},
        {&m->last_residual, TENSOR_F32, last, m->config.hidden, 0, true},
        {&m->logits, TENSOR_F32, logits, m->vocab_share, 0, true},
        {&m->gathered, TENSOR_F32, gathers, m->vocab_share, 0, true},
        {&m->sampled, TENSOR_F32, samples ? logits : 0, 2, 0, true},
        {&m->gathered_sampled, TENSOR_F32, samples ? gathers : 0, 2, 0, true},
    };
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (!all[i].rows) continue;
        enum dtype dtype = all[i].kind == TENSOR_F32 ? DTYPE_F32 : dtype_of_activations(m->dtype);
        list[n] = all[i];
        list[n++].bytes = (size_t)all[i].rows * (size_t)all[i].columns * dtype_size_bytes(dtype);
    }
    return n;
}
