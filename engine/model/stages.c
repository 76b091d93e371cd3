// SPDX-License-Identifier: Apache-2.0
#include "engine/model/stages.h"

#include <stdlib.h>

static enum status refuse_list(const char *text, int n_stages)
{
    return status_fail(STATUS_INVALID,
                       "pp-layers %.40s: must be %d numbers of layers of at least 1, separated by commas, one for each "
                       "stage",
                       text, n_stages);
}

enum status stages_parse(const char *text, int n_stages, int *layers)
{
    const char *at = text;
    for (int i = 0; text && i < n_stages; i++) {
        char *end;
        if (*at < '0' || *at > '9') return refuse_list(text, n_stages);
        const long n = strtol(at, &end, 10);
        if (n < 1 || n > 1000000 || *end != (i < n_stages - 1 ? ',' : 0)) return refuse_list(text, n_stages);
        if (layers) layers[i] = (int)n;
        at = end + 1;
    }
    return STATUS_OK;
}

double stages_head_layers(const struct model_config *c)
{
    static const double weight_bytes[] = {
        [STORED_PLAIN] = 2, [STORED_FP8] = 1,    [STORED_INT8] = 1,
        [STORED_AWQ] = 0.5, [STORED_GPTQ] = 0.5, [STORED_PACKED] = 0.5,
    };
    const double hidden = c->hidden, q = (double)c->n_heads * c->head_size, kv = (double)c->n_kv_heads * c->head_size;
    const double attention = hidden * (2 * q + 2 * kv), matrices = layer_mlp_matrices(&c->layer);
    const double mlp = matrices * hidden * c->intermediate;
    // Means over all layers, because layers may differ in the matrices that are excluded.
    const double excluded =
        attention * c->excluded_attention / (4.0 * c->n_layers) + mlp * c->excluded_mlp / (matrices * c->n_layers);
    return 2 * hidden * c->vocab_size / (2 * excluded + (attention + mlp - excluded) * weight_bytes[c->stored]);
}

enum status stages_divide(const struct model_config *c, const char *text, int n_stages, int *layers)
{
    if (n_stages > c->n_layers)
        return status_fail(STATUS_INVALID, "pp %d: the model has %d layers, and every stage needs one", n_stages,
                           c->n_layers);
    TRY(stages_parse(text, n_stages, layers));
    int sum = 0;
    for (int i = 0; text && i < n_stages; i++)
        sum += layers[i];
    if (text && sum == c->n_layers) return STATUS_OK;
    if (text)
        return status_fail(STATUS_INVALID, "pp-layers %.40s: these are %d layers, but the model has %d", text, sum,
                           c->n_layers);
    const double head = stages_head_layers(c);
    // Give each layer to the stage that is shortest so far. The last stage is the first choice only if the head leaves
    // it shorter than the other stages.
    for (int i = 0; i < n_stages; i++)
        layers[i] = 1;
    for (int left = c->n_layers - n_stages; left; left--) {
        int shortest = 0;
        for (int i = 1; i < n_stages; i++) {
            if (layers[i] + (i == n_stages - 1 ? head : 0) < layers[shortest]) shortest = i;
        }
        layers[shortest]++;
    }
    return STATUS_OK;
}

enum status stage_of_rank(int rank, int size, int n_stages, int *index_p)
{
    if (n_stages < 1 || n_stages > MODEL_STAGES_MAX || size % n_stages != 0)
        return status_fail(STATUS_INVALID,
                           "pp %d: %d ranks cannot be divided into stages of equal size: start stages times "
                           "tensor-parallel ranks",
                           n_stages, size);
    *index_p = n_stages - 1 - rank / (size / n_stages);
    return STATUS_OK;
}
