// SPDX-License-Identifier: Apache-2.0
// The fingerprint that tells a router whether two nodes serve the same checkpoint: cheap at every start, even with
// hundreds of gigabytes of weights on a network disk. It detects mistakes, not forgery.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fnv.h"
#include "base/mem.h"
#include "model/model.h"
#include "model/safetensors.h"

enum { SAMPLES = 4, SAMPLE_BYTES = 64 };

static uint64_t hash_config(uint64_t state, const struct model_config *c)
{
    char *text =
        mem_format("%s %d %d %d %d %d %d %d %d %a %d%d%d%d %a %d %a %a %a %d %d %d", c->architecture, c->n_layers,
                   c->hidden, c->intermediate, c->n_heads, c->n_kv_heads, c->head_size, c->vocab_size, c->max_context,
                   (double)c->norm_epsilon, c->tied_embeddings, c->qkv_bias, c->o_bias, c->qk_norm, c->rope_theta,
                   c->rope_llama3, c->rope_factor, c->rope_low_freq_factor, c->rope_high_freq_factor,
                   c->rope_original_context, c->bos_id, c->n_eos);
    state = fnv1a(state, text, strlen(text));
    free(text);
    return fnv1a(state, c->eos_id, (size_t)c->n_eos * sizeof c->eos_id[0]);
}

// Name, dtype, shape, and samples of the data from the first byte to the last.
static uint64_t hash_tensor(uint64_t state, const struct safetensors_tensor *t)
{
    state = fnv1a(state, t->name, strlen(t->name) + 1);
    state = fnv1a(state, t->dtype, strlen(t->dtype) + 1);
    state = fnv1a(state, t->shape, (size_t)t->n_dims * sizeof t->shape[0]);
    if (t->size_bytes <= SAMPLES * SAMPLE_BYTES) return fnv1a(state, t->data, t->size_bytes);
    for (uint64_t i = 0; i < SAMPLES; i++)
        state = fnv1a(state, (const char *)t->data + (t->size_bytes - SAMPLE_BYTES) / (SAMPLES - 1) * i, SAMPLE_BYTES);
    return state;
}

enum status model_dummy_fingerprint(const char *path, uint64_t *fingerprint_p)
{
    struct model_config config;
    enum status status = model_config_read(path, &config);
    if (status == STATUS_OK) *fingerprint_p = fnv1a(hash_config(FNV_START, &config), "dummy", 5);
    return status;
}

enum status model_fingerprint(const char *dir, uint64_t *fingerprint_p)
{
    struct model_config config;
    struct safetensors *st;
    TRY(model_config_read(dir, &config));
    TRY(safetensors_open(dir, &st));
    uint64_t state = hash_config(FNV_START, &config);
    for (int i = 0; i < safetensors_count(st); i++)
        state = hash_tensor(state, safetensors_at(st, i));
    safetensors_close(st);
    *fingerprint_p = state;
    return STATUS_OK;
}
