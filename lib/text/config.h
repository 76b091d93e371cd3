// SPDX-License-Identifier: Apache-2.0
// Reads config.json and generation_config.json of a Hugging Face checkpoint into one plain struct, checked. The
// families that are supported are in family.c.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/status.h"
#include "lib/text/layer_shape.h"
#include "lib/text/rope_config.h"

enum { MODEL_MAX_EOS = 16, MODEL_MAX_LAYERS = 1024 };

// Granite: factors of embeddings, of the outputs of attention and MLP, of q . k (0: 1 / sqrt(head size)), and the
// divisor of logits. 1 in other families.
struct model_scales {
    double embedding, residual, attention, logits;
};

// How matrices are stored: as they are, in FP8 or INT8 with scales, or as packed codes of 4 bits: by AutoAWQ, by GPTQ
// tools, or by compressed-tensors. Matrices that a quantised checkpoint excludes are stored in 16 bits.
enum stored_weights { STORED_PLAIN, STORED_FP8, STORED_INT8, STORED_AWQ, STORED_GPTQ, STORED_PACKED };

struct model_config {
    char architecture[64];
    int n_layers;
    int hidden;       // width of the residual stream
    int intermediate; // width of the MLP
    int n_heads, n_kv_heads;
    int head_size;
    int vocab_size;
    int max_context; // of max_position_embeddings and RoPE scaling, or the sliding window if shorter
    float norm_epsilon;
    bool tied_embeddings;
    bool holds_more;     // the text model is a part of the checkpoint; the other parts are ignored
    bool tied_if_absent; // tied_embeddings applies only if the file has no head
    struct layer_shape layer;
    struct model_scales scales;
    enum stored_weights stored; // quantization_config
    // numbers of matrices that are not quantised, over all layers (a layer has 4 attention and 3 MLP matrices)
    int excluded_attention, excluded_mlp;
    int fp8_block;   // rows and columns of a block with a scale; 0: scales per output or matrix
    bool has_zeros;  // codes of 4 bits have stored zeros; else all zeros are 8
    bool some_zeros; // with has_zeros: zeros are 8 in matrices that store none
    bool zero_added; // GPTQ of the first format stores zero - 1
    bool reordered;  // inputs may be in another order: the checkpoint must show the group of each
    struct rope_config rope;
    bool has_still_layers;
    uint8_t still_layers[MODEL_MAX_LAYERS]; // [n_layers] SmolLM3: 1 for layers without RoPE
    int sliding_window;                     // 0: no window. Attention is never windowed: max_context is limited instead
    int bos_id;                             // -1: no BOS. generation_config.json overrides config.json
    // End tokens: the union of config.json, generation_config.json and the eos_token of tokenizer_config.json. Hugging
    // Face uses only the ids of generation_config.json, but a missing id is more often an oversight than an intention.
    // The fingerprint covers the first n_file_eos ids, which the first two files name.
    int eos_id[MODEL_MAX_EOS], n_eos, n_file_eos;
};

// Reads and checks both files; generation_config.json may be absent. If `dir` is a file, it is read as config.json. An
// absent or null key means the same as in Hugging Face. Returns STATUS_NOT_FOUND, STATUS_DATA or STATUS_UNSUPPORTED,
// with the file, the key and the allowed values.
enum status model_config_read(const char *dir, struct model_config *config);

// Returns the text that an error message adds after the value of max_context. The text names sliding_window if that key
// limits the context, else it is "".
const char *model_config_context_note(const struct model_config *config);

bool model_config_is_eos(const struct model_config *config, int32_t token);

// Returns the estimated time of one attention pair, in units of the time of one prompt row. Pacing uses it
// (docs/glossary.md).
double model_config_pair_rows(const struct model_config *config);
