// SPDX-License-Identifier: Apache-2.0
// Small random checkpoints for tests, in Hugging Face layout: config.json, generation_config.json, safetensors (one
// file or shards) and optionally a byte-level tokenizer with ChatML. Every element follows from the seed, so that a
// test can compute with the same weights without reading them through the code under test.
//
//     struct tiny_model spec = tiny_model_spec("qwen2");
//     spec.tokenizer = true;
//     char *dir = tiny_model_temp(&spec); // or tiny_model_write(dir, &spec)
//     ...
//     tiny_model_remove(dir);
//
// A failed write aborts the test.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"

// FP8 checkpoints as published: matrices are e4m3 with scales, except table and head.
enum tiny_fp8 {
    TINY_FP8_NONE,
    TINY_FP8_CHANNEL, // compressed-tensors: a bf16 scale for each output, [N, 1]
    TINY_FP8_TENSOR,  // compressed-tensors: one bf16 scale, [1], and one for its input
    TINY_FP8_STATIC,  // fp8: one f32 scale, [], and one for its input
    TINY_FP8_FBGEMM,  // fbgemm_fp8: an f32 scale for each output, [N, 1]; attention stays in 16 bits
    TINY_FP8_BLOCK,   // fp8: an f32 scale for each block of 128 x 128, named weight_scale_inv
};

struct tiny_model {
    // "llama", "llama3" and "longrope" (scaled RoPE), "mlp-bias", "mistral", "qwen2" (QKV bias), "qwen3" (QK norm),
    // "granite", "olmo2", "smollm3" (layers without RoPE), "arcee" (with MLP biases), "apertus", "ministral3"
    const char *family;
    uint64_t seed;
    int n_layers, hidden, intermediate;
    int n_heads, n_kv_heads, head_size;
    int vocab_size, max_context;
    enum dtype dtype; // dtype of matrices and vectors
    enum tiny_fp8 fp8;
    bool tied;           // one table for embedding and head ...
    bool tied_as_head;   // ... stored as lm_head.weight, not as model.embed_tokens.weight
    bool attention_bias; // llama: biases on q, k, v and o
    int n_shards;        // 1: model.safetensors; more: shards and model.safetensors.index.json
    // also writes tokenizer.json and tokenizer_config.json; needs vocab_size TINY_TOKENIZER_SIZE or more
    bool tokenizer;
};

// The tokenizer: ids 0..255 are the bytes, then a few merges, then the special tokens.
enum {
    TINY_BOS = 264,
    TINY_EOS, // in config.json; generation_config.json also lists TINY_IM_END
    TINY_IM_START,
    TINY_IM_END,
    TINY_TOKENIZER_SIZE
};

// Returns a small model: 2 layers, hidden 64, 8 query and 4 KV heads of size 16, intermediate 96, vocabulary 272,
// context 512, f32, untied.
struct tiny_model tiny_model_spec(const char *family);

void tiny_model_write(const char *dir, const struct tiny_model *spec); // creates `dir` if necessary
char *tiny_model_temp(const struct tiny_model *spec); // writes to a new folder under $TMPDIR; see tiny_model_remove
void tiny_model_remove(char *dir);                    // deletes the folder and its files, frees the name

// One tensor of the checkpoint. rows is 0 for a vector; columns is 0 too for a scalar.
struct tiny_tensor {
    char name[96];
    int rows, columns;
    enum dtype dtype; // as stored
    double spread;    // bound on the values of the matrix, or of the matrix that has these scales
};

// Lists the tensors as stored. The caller frees the list.
struct tiny_tensor *tiny_model_tensors(const struct tiny_model *spec, int *n_p);

// Returns element `index` (row-major) of a tensor, rounded to the spec's dtype: exactly the value in the file. For FP8,
// byte times scale.
float tiny_model_value(const struct tiny_model *spec, const struct tiny_tensor *tensor, size_t index);
