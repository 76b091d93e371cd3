// SPDX-License-Identifier: Apache-2.0
// Runs the stages of a layer: attention and MLP. With a norm of all heads together (HEAD_NORM_WHOLE) a stage for q, k
// and v comes first, because that norm needs sums of squares over all ranks.
#include "engine/model/llama.h"

enum stage { STAGE_QKV, STAGE_ATTENTION, STAGE_MLP };

int layer_stages(const struct model *m)
{
    return m->config.layer.head_norm == HEAD_NORM_WHOLE ? 3 : 2;
}

static int stage_layer(const struct model *m, int i)
{
    return i / layer_stages(m);
}

static enum stage stage_kind(const struct model *m, int i)
{
    const int n = layer_stages(m);
    return (enum stage)(i % n + 3 - n);
}

// ---- the last layer -------------------------------------------------------------------------------------------------
// Nothing reads the last layer's outputs except the logits. So a backend that can gather rows computes K, V and
// importance of all rows there, and everything else for the logit rows only.

int layers_of_pass(const struct model *m, const struct ragged_batch *batch)
{
    const int n = m->config.n_layers - batch->skipped_layers - m->stage.first_layer;
    return n < 0 ? 0 : n < m->stage.n_layers ? n : m->stage.n_layers;
}

bool layers_gather(const struct model *m, const struct ragged_batch *batch)
{
    return m->last_residual && batch->n_logit_rows < batch->n_rows && !batch->skipped_layers;
}

static bool is_last(const struct forward_call *call, int l)
{
    return call->gathers && l == call->m->stage.n_layers - 1;
}

// ---- the residual stream --------------------------------------------------------------------------------------------

// Tensors of the residual stream. Each rank computes a partial output of attention or of the MLP. The residual stream
// is complete on every rank. Rank 0 adds its partial output to its copy of the stream. The other ranks replace their
// copies by their partial outputs. So the sum over ranks is the new stream. If devices reduce in bf16 (m->partial), all
// ranks store their partial outputs in a separate tensor. The next norm adds the sum of these tensors to the stream, so
// the stream itself is never rounded or sent. If the outputs are normalised (norms_outputs), all ranks store them in
// `branch`, and the next step adds the norm of their sum to the stream.
struct stream {
    struct tensor *x, *out;
    enum linear_mode mode; // of the linear step that stores `out`
};

static struct stream stream_of(const struct model *m, bool last)
{
    struct tensor *x = last ? m->last_residual : m->residual;
    if (m->branch) return (struct stream){x, last ? m->last_branch : m->branch, LINEAR_STORE};
    if (m->partial) return (struct stream){x, m->partial, LINEAR_STORE};
    return (struct stream){x, x, m->comm->rank ? LINEAR_STORE : LINEAR_ADD};
}

// Returns the epsilon of norms of the stream, which is divided by scales.residual.
static float stream_epsilon(const struct model *m)
{
    const double scale = m->config.scales.residual;
    return (float)((double)m->config.norm_epsilon / (scale * scale));
}

// Computes out = norm(x) W^T, for layer l or, with l = n_layers, for the logits. The norm is that of the input, or of
// the output of the stage before, which it adds to the stream.
static enum status stream_linear(struct model *m, const struct stream *s, const struct weight *input_gain,
                                 const struct weight *output_gain, struct tensor *out, const struct weight *w,
                                 const struct weight *bias, enum linear_mode mode, int rows)
{
    const struct backend_ops *ops = m->backend->ops;
    if (m->branch) {
        TRY(ops->add_norm(m->backend, m->normed, s->x, output_gain ? s->out : NULL, output_gain, m->config.norm_epsilon,
                          rows));
        return ops->linear(m->backend, out, m->normed, w, bias, mode, rows);
    }
    const struct norm_step norm = {m->normed,         s->x, input_gain,
                                   stream_epsilon(m), NULL, output_gain ? m->partial : NULL};
    return backend_norm_linear(m->backend, out, &norm, w, bias, mode, rows);
}

// ---- attention ------------------------------------------------------------------------------------------------------

static enum status qkv_step(struct model *m, int l, int rows)
{
    const struct layer *layer = &m->layers[l];
    const struct stream s = stream_of(m, false);
    // The embedding and the rows of the stage before are complete already.
    const struct weight *output_gain = l ? m->layers[l - 1].mlp_norm : NULL;
    return stream_linear(m, &s, layer->attention_norm, output_gain, m->qkv, layer->qkv, layer->qkv_bias, LINEAR_STORE,
                         rows);
}

static enum status qkv_stage(struct model *m, int l, int rows)
{
    TRY(qkv_step(m, l, rows));
    return m->backend->ops->sum_squares(m->backend, m->squares, m->qkv, rows);
}

static enum status whole_norm_step(struct model *m, const struct layer *layer, int rows)
{
    const struct model_config *c = &m->config;
    const struct whole_norm norm = {.squares = m->squares,
                                    .q_gain = layer->q_norm,
                                    .k_gain = layer->k_norm,
                                    .q_dims = c->n_heads * c->head_size,
                                    .k_dims = c->n_kv_heads * c->head_size * m->kv_copies,
                                    .epsilon = c->norm_epsilon};
    return m->backend->ops->norm_whole(m->backend, m->qkv, &norm, rows);
}

// Runs the steps from the input of a layer to q, k and v before RoPE.
static enum status qkv_finish(struct model *m, int l, int rows)
{
    const struct rope_config *rope = &m->config.rope;
    if (m->squares)
        TRY(whole_norm_step(m, &m->layers[l], rows));
    else
        TRY(qkv_step(m, l, rows));
    if (!(rope->query_beta != 0)) return STATUS_OK;
    return m->backend->ops->scale_queries(m->backend, m->qkv, (float)rope->query_beta, rope->query_context, rows);
}

static enum status attention_stage(struct model *m, int l, int rows)
{
    struct backend *b = m->backend;
    const struct layer *layer = &m->layers[l];
    const struct stream s = stream_of(m, false);
    const struct weight *q_gain = m->squares ? NULL : layer->q_norm, *k_gain = m->squares ? NULL : layer->k_norm;
    TRY(qkv_finish(m, l, rows));
    TRY(backend_rope_attention(b, l, m->attended, m->qkv, q_gain, k_gain, m->config.norm_epsilon));
    return b->ops->linear(b, s.out, m->attended, layer->o, layer->o_bias, s.mode, rows);
}

static enum status last_attention_stage(struct model *m, int l, const struct ragged_batch *batch)
{
    const struct backend_ops *ops = m->backend->ops;
    const struct layer *layer = &m->layers[l];
    const struct stream s = stream_of(m, true);
    const struct weight *q_gain = m->squares ? NULL : layer->q_norm, *k_gain = m->squares ? NULL : layer->k_norm;
    const int n = batch->n_logit_rows;
    TRY(qkv_finish(m, l, batch->n_rows));
    TRY(ops->rope_append(m->backend, l, m->qkv, q_gain, k_gain, m->config.norm_epsilon));
    TRY(ops->attention_last(m->backend, l, m->attended, m->qkv));
    if (!n) return STATUS_OK;
    TRY(ops->gather_rows(m->backend, m->last_attended, m->attended, batch->logit_row, n));
    TRY(ops->gather_rows(m->backend, m->last_residual, m->residual, batch->logit_row, n));
    return ops->linear(m->backend, s.out, m->last_attended, layer->o, layer->o_bias, s.mode, n);
}

// ---- MLP ------------------------------------------------------------------------------------------------------------

static enum status mlp_stage(struct model *m, int l, bool last, int rows)
{
    struct backend *b = m->backend;
    const struct layer *layer = &m->layers[l];
    const struct stream s = stream_of(m, last);
    const bool fused = layer_mlp_is_fused(&m->config.layer);
    if (!rows) return STATUS_OK;
    if (fused && !m->branch) {
        const struct norm_step norm = {m->normed, s.x, layer->mlp_norm, stream_epsilon(m), NULL, m->partial};
        return backend_mlp(b, s.out, m->mlp, &norm, layer->gate_up, layer->down, s.mode, rows);
    }
    TRY(stream_linear(m, &s, layer->mlp_norm, layer->attention_norm, fused ? m->mlp : m->mlp_inner, layer->gate_up,
                      layer->gate_up_bias, fused ? LINEAR_SWIGLU : LINEAR_STORE, rows));
    if (!fused) TRY(b->ops->activate(b, m->mlp, m->mlp_inner, &layer->activation, rows));
    return b->ops->linear(b, s.out, m->mlp, layer->down, layer->down_bias, s.mode, rows);
}

// ---- stages ---------------------------------------------------------------------------------------------------------

enum status layer_stage(const struct forward_call *call, int i, int rows)
{
    struct model *m = call->m;
    const int l = stage_layer(m, i);
    const bool last = is_last(call, l);
    switch (stage_kind(m, i)) {
    case STAGE_QKV: return qkv_stage(m, l, rows);
    case STAGE_ATTENTION: return last ? last_attention_stage(m, l, call->batch) : attention_stage(m, l, rows);
    case STAGE_MLP: break;
    }
    return mlp_stage(m, l, last, last ? call->batch->n_logit_rows : rows);
}

static enum status sum_rows(struct model *m, struct tensor *t, int columns, int first_row, int rows)
{
    float *data = m->backend->ops->tensor_data(m->backend, t);
    return m->comm->ops->all_reduce_sum(m->comm, data + (size_t)first_row * (size_t)columns,
                                        (size_t)rows * (size_t)columns);
}

enum status model_sum_rows(struct model *m, struct tensor *t, int first_row, int rows)
{
    return sum_rows(m, t, m->config.hidden, first_row, rows);
}

enum status layer_sum(const struct forward_call *call, int i, int first_row, int rows)
{
    struct model *m = call->m;
    const bool last = is_last(call, stage_layer(m, i));
    const int n = call->batch->n_logit_rows;
    if (stage_kind(m, i) == STAGE_QKV) return sum_rows(m, m->squares, 2, first_row, rows);
    if (last) return n ? model_sum_rows(m, stream_of(m, true).out, 0, n) : STATUS_OK;
    if (m->partial) return m->backend->ops->sum_ranks(m->backend, m->partial, rows);
    return model_sum_rows(m, stream_of(m, false).out, first_row, rows);
}

// Adds the norm of the last output to the stream. A backend may pass more logit rows than the batch has, if all rows
// have logits.
static enum status add_last_output(const struct forward_call *call, const struct stream *s, int logit_rows)
{
    struct model *m = call->m;
    const int layers = layers_of_pass(m, call->batch), n = call->batch->n_rows;
    const int rows = call->gathers || logit_rows > n ? logit_rows : n;
    if (!m->branch || !layers) return STATUS_OK;
    return m->backend->ops->add_norm(m->backend, m->normed, s->x, s->out, m->layers[layers - 1].mlp_norm,
                                     m->config.norm_epsilon, rows);
}

enum status layers_finish(const struct forward_call *call)
{
    const struct stream s = stream_of(call->m, false);
    return add_last_output(call, &s, 0);
}

enum status layer_logits(const struct forward_call *call, int logit_rows)
{
    struct model *m = call->m;
    const struct stream s = stream_of(m, call->gathers);
    const int32_t *row_index = call->gathers ? NULL : call->batch->logit_row;
    const struct norm_step norm = {m->normed, s.x, m->final_norm, stream_epsilon(m), row_index, m->partial};
    TRY(add_last_output(call, &s, logit_rows));
    return backend_norm_linear(m->backend, m->logits, &norm, m->head, NULL, LINEAR_STORE, logit_rows);
}
