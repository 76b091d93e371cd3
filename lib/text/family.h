// SPDX-License-Identifier: Apache-2.0
// The families of models that this program runs: the differences between their configuration classes in Hugging Face
// transformers, and between their layers.
#pragma once

#include "lib/text/config_reader.h"
#include "lib/text/layer_shape.h"
#include "lib/text/rope_config.h"

struct family {
    const char *architecture, *model_type;
    int default_context;
    int default_head_size; // 0: hidden / heads
    int default_bos, default_eos;
    int default_kv_heads;     // 0: as many as heads
    int default_window;       // 0: no window
    double default_epsilon;   // of norms
    const char *activation;   // the value of hidden_act, "silu" also for swish
    struct layer_shape layer; // what every model of the family has
    bool attention_bias;      // reads the key attention_bias
    bool default_attention_bias;
    bool attention_out_bias; // the key attention_out_bias, not attention_bias, tells if the output has a bias
    bool mlp_bias;           // reads the key mlp_bias
    bool multipliers;        // reads the multipliers of Granite
    bool default_tied;
    bool no_rope_layers;   // reads no_rope_layers and no_rope_layer_interval
    bool window_optional;  // sliding_window applies if use_sliding_window is true, to layers from max_window_layers on
    bool window_unlayered; // layer_types does not decide which layers have the window
    struct rope_family rope;
};

// Finds the family that architectures or model_type name. An unknown family is refused with the part of it that this
// program lacks, if that is known. On failure returns some family, so that the caller can go on.
const struct family *family_find(struct config_reader *r);

// Refuses keys that change the computation in other families, unless they have the value that changes nothing.
void family_check_keys(struct config_reader *r, const struct family *family);
