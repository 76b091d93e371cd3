// SPDX-License-Identifier: Apache-2.0
#include "engine/model/stages.h"

#include <math.h>

double stages_head_layers(const struct model_config *c, enum dtype dtype, enum dtype head_dtype)
{
    const double hidden = c->hidden, q = (double)c->n_heads * c->head_size, kv = (double)c->n_kv_heads * c->head_size;
    const double attention = hidden * (2 * q + 2 * kv), matrices = layer_mlp_matrices(&c->layer);
    const double mlp = matrices * hidden * c->intermediate;
    const bool is_stored = c->stored != STORED_PLAIN && dtype != DTYPE_BF16 && dtype != DTYPE_F32;
    // Means over all layers, because layers may differ in the matrices that are excluded.
    const double excluded = is_stored ? attention * c->excluded_attention / (4.0 * c->n_layers) +
                                            mlp * c->excluded_mlp / (matrices * c->n_layers)
                                      : 0;
    const double weight_bytes =
        (double)dtype_matrix_bytes(dtype, c->intermediate, c->hidden) / c->intermediate / hidden;
    const double layer_bytes = 2 * excluded + (attention + mlp - excluded) * weight_bytes;
    return (double)dtype_matrix_bytes(head_dtype, c->vocab_size, c->hidden) / layer_bytes;
}

// Returns the length of the longest stage if the last one has `last` layers.
static double longest(int n_layers, int n_stages, double head_layers, int last)
{
    const int others = n_layers - last, earlier = n_stages - 1;
    return fmax(ceil((double)others / earlier), last + head_layers);
}

static int last_layers(int n_layers, int n_stages, double head_layers)
{
    if (n_stages == 1) return n_layers;
    int best = 1;
    // Among equal divisions the last stage gets most layers, so that the earlier ones get fewer.
    for (int last = 2; last <= n_layers - (n_stages - 1); last++)
        if (longest(n_layers, n_stages, head_layers, last) <= longest(n_layers, n_stages, head_layers, best))
            best = last;
    return best;
}

static enum status list_read(const char *list, int n_layers, int n_stages, struct count_list *counts)
{
    TRY(count_list_parse("pp-layers", list, 1, n_layers, counts));
    if (counts->n != n_stages)
        return status_fail(STATUS_INVALID, "--pp-layers %s: has %d stages, --pp %d", list, counts->n, n_stages);
    int64_t sum = 0;
    for (int i = 0; i < counts->n; i++)
        sum += counts->count[i];
    if (sum == n_layers) return STATUS_OK;
    return status_fail(STATUS_INVALID, "--pp-layers %s: has %lld layers, the model %d", list, (long long)sum, n_layers);
}

enum status stages_divide(int n_layers, int n_stages, double head_layers, const char *list,
                          struct stage_layers stages[STAGES_MAX])
{
    if (n_stages < 1 || n_stages > STAGES_MAX)
        return status_fail(STATUS_INVALID, "--pp %d: must be from 1 to %d", n_stages, STAGES_MAX);
    if (n_stages > n_layers)
        return status_fail(STATUS_INVALID, "--pp %d: each stage needs a layer, the model has %d", n_stages, n_layers);
    struct count_list counts = {.n = n_stages};
    if (list && *list) {
        TRY(list_read(list, n_layers, n_stages, &counts));
    } else {
        const int last = last_layers(n_layers, n_stages, head_layers), others = n_layers - last;
        for (int i = 0; i < n_stages - 1; i++)
            counts.count[i] = others / (n_stages - 1) + (i < others % (n_stages - 1));
        counts.count[n_stages - 1] = last;
    }
    for (int i = 0, first = 0; i < n_stages; first += counts.count[i++])
        stages[i] = (struct stage_layers){first, counts.count[i]};
    return STATUS_OK;
}
