// SPDX-License-Identifier: Apache-2.0
// The RoPE settings of a checkpoint (arXiv 2104.09864) and the frequencies that follow from them. The types of scaling
// are as in Hugging Face transformers, modeling_rope_utils: linear and dynamic (dynamic NTK), llama3, yarn (arXiv
// 2309.00071) and longrope (arXiv 2402.13753). Frequencies are computed in f32, as transformers computes them.
#pragma once

#include <stdint.h>

#include "lib/text/config_reader.h"

enum { ROPE_MAX_PAIRS = 512 }; // half of the largest head size

enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_DYNAMIC, ROPE_LLAMA3, ROPE_YARN, ROPE_LONGROPE };

struct rope_config {
    enum rope_type type;
    int dims;                                 // the first `dims` dims of a head rotate, an even number
    double theta, factor;                     // `factor` is 0 without scaling
    int original_context;                     // context of the first training; 0 if the type does not use it
    double attention_factor;                  // cosines and sines are multiplied by it
    double low_freq_factor, high_freq_factor; // llama3
    double beta_fast, beta_slow;              // yarn
    bool truncate;                            // yarn
    // Ministral 3: q of position p is multiplied by 1 + query_beta * log(1 + floor(p / query_context)). 0: it is not.
    double query_beta;
    int query_context;
    float short_factor[ROPE_MAX_PAIRS], long_factor[ROPE_MAX_PAIRS]; // longrope: [dims / 2]
};

// Differences between model families.
struct rope_family {
    double default_theta;
    int default_original; // value of original_max_position_embeddings if the file has none; 0: none
    bool partial;         // reads partial_rotary_factor. The other families refuse values under 1
    bool longrope_only;   // Phi-3: the only type of scaling is longrope, which older files call su or yarn
    bool query_scale;     // Ministral 3: needs llama_4_scaling_beta. The other families refuse it
    // Text of rope_parameters if the file has neither rope_parameters nor rope_scaling. NULL: an empty object.
    const char *default_object;
};

// Reads rope_theta, partial_rotary_factor, and rope_scaling or rope_parameters. `*context_p` holds
// max_position_embeddings and is replaced by the context that the scaling gives, as vLLM computes it. Failures are
// reported through `r`.
void rope_config_read(struct config_reader *r, const struct rope_family *family, int head_size, int *context_p,
                      struct rope_config *rope);

// Returns a number that differs between sequences whose `length` (kernels/rope_shape.h) gives the same tokens different
// KV entries; 0 if the length does not matter. It belongs into the salt of the prefix cache.
uint64_t rope_config_salt(const struct rope_config *rope, int length);

// Computes inv_freq [dims / 2]: the angles of position 1, in radians. `longer` selects the frequencies of sequences
// over original_context tokens, which differ with longrope. Frequencies with dynamic scaling depend on the length, see
// rope_angle() in kernels/rope_shape.h; this function returns the frequencies of sequences up to original_context.
void rope_config_frequencies(const struct rope_config *rope, bool longer, float *inv_freq);
