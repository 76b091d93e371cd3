// SPDX-License-Identifier: Apache-2.0
// Turns the RoPE settings of a config into the arrays of the backends, which rotate dims i and i + D/2 of a head as a
// pair. If only the first dims of a head rotate, the loader reorders the dims of q and k so that the pairs come first
// in both halves. Attention does not depend on the order of dims.
#include "engine/model/llama.h"
#include "lib/base/mem.h"

#include <math.h>
#include <stdlib.h>

enum { MAX_HALF = ROPE_MAX_PAIRS };

struct model_rope {
    float inv_freq[MAX_HALF], long_inv_freq[MAX_HALF], scale[MAX_HALF];
};

struct model_rope *model_rope_create(const struct model_config *config, struct rope_shape *shape)
{
    const struct rope_config *r = &config->rope;
    struct model_rope *rope = mem_alloc(sizeof *rope);
    rope_config_frequencies(r, false, rope->inv_freq);
    if (r->type == ROPE_LONGROPE) rope_config_frequencies(r, true, rope->long_inv_freq);
    // A factor of q . k other than 1 / sqrt(head size) is applied to q and to k in equal parts.
    const double attention = config->scales.attention;
    const double part = attention > 0 ? sqrt(attention * sqrt(config->head_size)) : 1;
    for (int i = 0; i < config->head_size / 2; i++)
        rope->scale[i] = (float)(part * (i < r->dims / 2 ? r->attention_factor : 1));
    *shape = (struct rope_shape){.inv_freq = rope->inv_freq,
                                 .scale = rope->scale,
                                 .long_inv_freq = r->type == ROPE_LONGROPE ? rope->long_inv_freq : NULL,
                                 .original_context = r->original_context,
                                 .ntk_dims = r->dims,
                                 .ntk_factor = r->type == ROPE_DYNAMIC ? r->factor : 0,
                                 .theta = r->theta,
                                 .still_layers = config->has_still_layers ? config->still_layers : NULL};
    return rope;
}

int model_rope_parts(const struct model_config *config, struct head_part parts[4])
{
    const int d = config->head_size, dims = config->rope.dims, still = (d - dims) / 2;
    if (dims == d) {
        parts[0] = (struct head_part){0, d};
        return 1;
    }
    parts[0] = (struct head_part){0, dims / 2};
    parts[1] = (struct head_part){dims, still};
    parts[2] = (struct head_part){dims / 2, dims / 2};
    parts[3] = (struct head_part){dims + still, still};
    return 4;
}
