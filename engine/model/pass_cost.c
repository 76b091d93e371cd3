// SPDX-License-Identifier: Apache-2.0
#include "engine/model/pass_cost.h"

#include <math.h>
#include <string.h>

// Bytes of a weight. Groups of 128 weights of 4 bits have a scale of four bytes and a zero. bf12 has 12 bits.
static const double weight_bytes[RATE_TYPES] = {2, 1, 0.5 + 5.0 / 128, 1, 4, 1.5};
// NCCL uses at most this share of the multiprocessors while a pass computes (docs/gpus.md).
static const double OVERLAP_LOSS = 1.0 / 8;
// Speed of FP8 gemms with --fp8-fast-accum over the default, measured on an H100: 1.57 / 1.38 (docs/gpus.md).
static const double FAST_ACCUM_GAIN = 1.57 / 1.38;

// ---- the model ------------------------------------------------------------------------------------------------------

bool pass_type_parse(const char *dtype, const struct model_config *c, enum rate_type *type_p)
{
    static const struct {
        const char *name;
        enum rate_type type;
    } types[] = {{"bf16", RATE_BF16},      {"fp8", RATE_FP8}, {"int4-g128", RATE_INT4}, {"int8", RATE_INT8},
                 {"int8-g128", RATE_INT8}, {"f32", RATE_F32}, {"bf12", RATE_BF12}};
    static const enum rate_type stored[] = {
        [STORED_PLAIN] = RATE_BF16, [STORED_FP8] = RATE_FP8,   [STORED_INT8] = RATE_INT8,
        [STORED_AWQ] = RATE_INT4,   [STORED_GPTQ] = RATE_INT4, [STORED_PACKED] = RATE_INT4,
    };
    if (!dtype || strcmp(dtype, "auto") == 0) {
        *type_p = stored[c->stored];
        return true;
    }
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(types[i].name, dtype) != 0) continue;
        *type_p = types[i].type;
        return true;
    }
    return false;
}

// Adds the weights of the layers by type. Matrices that a quantised checkpoint excludes are bf16.
static void layers_add(struct pass_shape *m, const struct model_config *c, enum rate_type type)
{
    const double hidden = c->hidden, q = (double)c->n_heads * c->head_size, kv = (double)c->n_kv_heads * c->head_size;
    const double attention = c->n_layers * hidden * (2 * q + 2 * kv), attention_matrices = 4.0 * c->n_layers;
    const double matrices = layer_mlp_matrices(&c->layer), mlp_matrices = matrices * c->n_layers;
    const double mlp = mlp_matrices * hidden * c->intermediate;
    const bool is_stored = c->stored != STORED_PLAIN && type != RATE_BF16 && type != RATE_BF12 && type != RATE_F32;
    const double excluded =
        is_stored ? attention * c->excluded_attention / attention_matrices + mlp * c->excluded_mlp / mlp_matrices : 0;
    m->layer_weights[RATE_BF16] += excluded / m->ranks;
    m->layer_weights[type] += (attention + mlp - excluded) / m->ranks;
    for (int i = 0; i < RATE_TYPES; i++)
        m->layer_bytes[i] = m->layer_weights[i] * weight_bytes[i];
}

struct pass_shape pass_shape_of(const struct model_config *c, const struct device_rates *device,
                                const struct pass_options *o)
{
    const enum rate_type type = o->type == RATE_FP8 && !(device->tflops[RATE_FP8] > 0) ? RATE_BF16 : o->type;
    const double ranks = o->ranks, kv_heads = fmax(1, c->n_kv_heads / ranks);
    struct pass_shape m = {.device = *device,
                           .layers = c->n_layers,
                           .ranks = o->ranks,
                           .stages = o->stages > 1 ? o->stages : 1,
                           .last_layers = c->n_layers,
                           .overlap_rows = o->ranks > 1 ? o->overlap_rows : 0,
                           .hidden = c->hidden,
                           .head_weights = (double)c->hidden * c->vocab_size / ranks,
                           .entry_bytes = 2.0 * c->n_layers * kv_heads * c->head_size * o->kv_bytes,
                           .pair_flop = 4.0 * c->n_layers * c->n_heads * c->head_size / ranks,
                           .attention_share =
                               c->head_size < 128 ? device->attention_small_head_share : device->attention_share};
    m.head_bytes = m.head_weights * weight_bytes[RATE_BF16]; // the head is not quantised
    for (int i = 0; i < RATE_TYPES; i++)
        m.arithmetic_share[i] =
            device->arithmetic_share[i] * (i == RATE_FP8 && o->fp8_fast_accum ? FAST_ACCUM_GAIN : 1);
    for (int i = 0; m.stages > 1 && i < m.stages - 1; i++)
        m.longest_layers = o->stage_layers[i] > m.longest_layers ? o->stage_layers[i] : m.longest_layers;
    if (m.stages > 1) m.last_layers = o->stage_layers[m.stages - 1];
    layers_add(&m, c, type);
    return m;
}

double pass_shape_weight_bytes(const struct pass_shape *m)
{
    double bytes = 0;
    for (int i = 0; i < RATE_TYPES; i++)
        bytes += m->layer_bytes[i] / m->layers;
    return fmax(bytes * m->longest_layers, bytes * m->last_layers + m->head_bytes);
}

// ---- a pass ---------------------------------------------------------------------------------------------------------

void pass_work_add(struct pass_work *work, const struct pass_shape *m, double n, double rows, double cached,
                   bool has_logits)
{
    const struct device_rates *d = &m->device;
    const double pairs = rows * cached + rows * (rows + 1) / 2;
    const double reading_us = (rows + cached) * m->entry_bytes / (d->read_gbytes_per_s * 1e3 * d->kv_share);
    const double arithmetic_us = pairs * m->pair_flop / (d->tflops[RATE_BF16] * 1e6 * m->attention_share);
    work->rows += n * rows;
    work->logit_rows += has_logits ? n : 0;
    work->attention_us += n * fmax(reading_us, arithmetic_us);
    if (reading_us >= arithmetic_us) work->kv_us += n * reading_us;
}

// Adds gemms of `weights` weights: the longer of reading and arithmetic.
static void gemms_add(struct pass_parts *cost, const struct pass_shape *m, enum rate_type type, double weights,
                      double bytes, double rows)
{
    const struct device_rates *d = &m->device;
    const bool is_slow = type == RATE_FP8 && rows > RATE_FEW_ROWS;
    const double share = is_slow ? d->fp8_many_rows_share : d->weight_share[type];
    const double reading_us = bytes / (d->read_gbytes_per_s * 1e3 * share);
    const double tflops = d->tflops[type] > 0 ? d->tflops[type] : d->tflops[RATE_BF16];
    const double arithmetic_us = 2 * weights * rows / (tflops * 1e6 * m->arithmetic_share[type]);
    if (reading_us >= arithmetic_us)
        cost->weights_us += reading_us;
    else
        cost->arithmetic_us += arithmetic_us;
}

// Returns the time of one sum of `bytes` bytes over all ranks: a ring inside a host, then a ring between hosts.
static double sum_us(const struct pass_shape *m, double bytes)
{
    const struct device_rates *d = &m->device;
    const double inside = fmin(m->ranks, d->link_ranks), hosts = ceil(m->ranks / inside);
    double us = d->link_us + 2 * (inside - 1) / inside * bytes / (d->link_gbytes_per_s * 1e3 * d->link_share);
    if (hosts > 1)
        us += d->network_us - d->link_us +
              2 * (hosts - 1) / hosts * bytes / inside / (d->network_gbytes_per_s * 1e3 * d->link_share);
    return us;
}

// Returns the time for which sums delay the pass. Long passes run as two halves, and one half is summed while the other
// computes.
static double sums_us(const struct pass_shape *m, double rows, double computing_us)
{
    if (m->ranks == 1 || !(m->device.link_gbytes_per_s > 0)) return 0;
    const double us = 2.0 * m->layers * sum_us(m, rows * m->hidden * 2);
    if (!m->overlap_rows || rows < 2.0 * m->overlap_rows) return us;
    return fmax(us - computing_us, 0) + fmin(us, computing_us) * OVERLAP_LOSS;
}

// Returns the time in which one stage receives the residual stream of the stage before.
static double transfer_us(const struct pass_shape *m, double rows)
{
    const struct device_rates *d = &m->device;
    if (m->stages == 1 || !(d->link_gbytes_per_s > 0)) return 0;
    const bool inside = m->stages * m->ranks <= d->link_ranks; // all stages are on one host
    const double gbytes_per_s = inside ? d->link_gbytes_per_s : d->network_gbytes_per_s;
    return (inside ? d->link_us : d->network_us) + rows * m->hidden * 4 / (gbytes_per_s * 1e3 * d->link_share);
}

// Adds `share` of the layers' time. All parts are proportional to the number of layers.
static void layers_cost(struct pass_parts *cost, const struct pass_parts *layers, double share)
{
    cost->weights_us += share * layers->weights_us;
    cost->arithmetic_us += share * layers->arithmetic_us;
    cost->attention_us += share * layers->attention_us;
    cost->sums_us += share * layers->sums_us;
    cost->launch_us += share * layers->launch_us;
    cost->total_us = cost->weights_us + cost->arithmetic_us + cost->attention_us + cost->sums_us + cost->launch_us;
}

// Returns the time of a pass on a group with all layers, without the head.
static struct pass_parts all_layers_cost(const struct pass_shape *m, const struct pass_work *work)
{
    struct pass_parts cost = {.attention_us = work->attention_us};
    int kernels = 0;
    for (int i = 0; i < RATE_TYPES; i++) {
        if (!(m->layer_weights[i] > 0)) continue;
        gemms_add(&cost, m, (enum rate_type)i, m->layer_weights[i], m->layer_bytes[i], work->rows);
        kernels = m->device.layer_kernels[i];
    }
    cost.launch_us = kernels * m->layers * m->device.launch_us;
    cost.sums_us = sums_us(m, work->rows, cost.weights_us + cost.arithmetic_us + cost.attention_us);
    return cost;
}

struct pass_parts pass_cost_of(const struct pass_shape *m, const struct pass_work *work)
{
    const struct pass_parts layers = all_layers_cost(m, work);
    struct pass_parts longest = {0}, last = {0}, all = {0};
    if (work->logit_rows > 0) gemms_add(&last, m, RATE_BF16, m->head_weights, m->head_bytes, work->logit_rows);
    all = last;
    layers_cost(&all, &layers, 1);
    layers_cost(&last, &layers, (double)m->last_layers / m->layers);
    layers_cost(&longest, &layers, (double)m->longest_layers / m->layers);
    struct pass_parts cost = longest.total_us > last.total_us ? longest : last;
    cost.transfer_us = transfer_us(m, work->rows);
    cost.latency_us = all.total_us + (m->stages - 1) * cost.transfer_us;
    return cost;
}

double pass_decode_bubble(const struct pass_shape *m, const struct pass_parts *pass)
{
    const double waits_us = (m->stages - 1) * pass->transfer_us + m->device.host_us;
    return waits_us / (m->stages * pass->total_us + waits_us);
}

double pass_cost_batch_us(const struct pass_shape *m, const struct ragged_batch *batch)
{
    struct pass_work work = {0};
    for (int s = 0; s < batch->n_seqs; s++)
        pass_work_add(&work, m, 1, batch->row_start[s + 1] - batch->row_start[s], batch->kv_len[s], false);
    work.logit_rows = batch->n_logit_rows;
    return pass_cost_of(m, &work).total_us;
}
