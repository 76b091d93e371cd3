// SPDX-License-Identifier: Apache-2.0
// Computes the fingerprint by which ranks and the router check that they have the same checkpoint. It is cheap to
// compute at every start, even for hundreds of gigabytes of weights on a network disk. It detects mistakes, not
// forgery. The algorithm must not change: operators pass fingerprints to routers (--model-fingerprint), and
// calibrations and packed weights store them.
#include <stdlib.h>
#include <string.h>

#include "engine/model/llama.h"
#include "engine/model/safetensors.h"
#include "lib/base/fnv.h"
#include "lib/base/mem.h"

enum { SAMPLES = 4, SAMPLE_BYTES = 64 };

// Adds the settings that older versions of this program refused. The text is empty for all other models, so that their
// fingerprints stay.
static uint64_t hash_rope(uint64_t state, const struct rope_config *r, int head_size)
{
    if (r->type <= ROPE_LLAMA3 && r->type != ROPE_DYNAMIC && r->dims == head_size) return state;
    char *text = mem_format("rope %d %d %a %d %a %a %a %d", r->type, r->dims, r->factor, r->original_context,
                            r->attention_factor, r->beta_fast, r->beta_slow, r->truncate);
    state = fnv1a(state, text, strlen(text));
    free(text);
    if (r->type != ROPE_LONGROPE) return state;
    state = fnv1a(state, r->short_factor, (size_t)r->dims / 2 * sizeof r->short_factor[0]);
    return fnv1a(state, r->long_factor, (size_t)r->dims / 2 * sizeof r->long_factor[0]);
}

// Adds the settings of the families that older versions of this program refused.
static uint64_t hash_family(uint64_t state, const struct model_config *c)
{
    const struct model_scales *s = &c->scales;
    const bool scaled = s->embedding != 1 || s->residual != 1 || s->attention > 0 || s->logits != 1;
    if (!scaled && !c->layer.mlp_bias && !(c->rope.query_beta != 0)) return state;
    char *text = mem_format("family %a %a %a %a %d %a %d", s->embedding, s->residual, s->attention, s->logits,
                            c->layer.mlp_bias, c->rope.query_beta, c->rope.query_context);
    state = fnv1a(state, text, strlen(text));
    free(text);
    return state;
}

// Adds how the codes of integer checkpoints are read. Packed weights depend on it, and the files need not show it.
static uint64_t hash_stored(uint64_t state, const struct model_config *c)
{
    if (c->stored == STORED_PLAIN || c->stored == STORED_FP8) return state;
    char *text = mem_format("stored %d %d %d", c->stored, c->has_zeros, c->zero_added);
    state = fnv1a(state, text, strlen(text));
    free(text);
    return state;
}

static uint64_t hash_config(uint64_t state, const struct model_config *c)
{
    const struct rope_config *r = &c->rope;
    const bool llama3 = r->type == ROPE_LLAMA3;
    char *text =
        mem_format("%s %d %d %d %d %d %d %d %d %a %d%d%d%d %a %d %a %a %a %d %d %d", c->architecture, c->n_layers,
                   c->hidden, c->intermediate, c->n_heads, c->n_kv_heads, c->head_size, c->vocab_size, c->max_context,
                   (double)c->norm_epsilon, c->tied_embeddings, c->layer.qkv_bias, c->layer.o_bias,
                   c->layer.head_norm != HEAD_NORM_NONE, r->theta, llama3, r->factor, r->low_freq_factor,
                   r->high_freq_factor, llama3 ? r->original_context : 0, c->bos_id, c->n_file_eos);
    state = fnv1a(state, text, strlen(text));
    free(text);
    state = fnv1a(state, c->eos_id, (size_t)c->n_file_eos * sizeof c->eos_id[0]);
    if (c->has_still_layers) state = fnv1a(state, c->still_layers, (size_t)c->n_layers);
    return hash_stored(hash_family(hash_rope(state, r, c->head_size), c), c);
}

// Samples of a tensor, from its first to its last byte: `n` pieces of `bytes` bytes, `stride` bytes apart.
struct samples {
    int n;
    size_t bytes, stride;
};

static struct samples tensor_samples(const struct safetensors_tensor *t)
{
    if (t->size_bytes <= SAMPLES * SAMPLE_BYTES) return (struct samples){.n = 1, .bytes = t->size_bytes};
    return (struct samples){SAMPLES, SAMPLE_BYTES, (t->size_bytes - SAMPLE_BYTES) / (SAMPLES - 1)};
}

// Prefetches all samples in parallel. Serial page faults would cost one disk round trip each, and the kernel would also
// read the neighbouring pages.
static void prefetch_samples(const struct safetensors *st)
{
    for (int i = 0; i < safetensors_count(st); i++) {
        const struct safetensors_tensor *t = safetensors_at(st, i);
        const struct samples s = tensor_samples(t);
        safetensors_prefetch(t->data, s.n, s.bytes, (int64_t)s.stride);
    }
}

static uint64_t hash_tensor(uint64_t state, const struct safetensors_tensor *t)
{
    const struct samples s = tensor_samples(t);
    state = fnv1a(state, t->name, strlen(t->name) + 1);
    state = fnv1a(state, t->dtype, strlen(t->dtype) + 1);
    state = fnv1a(state, t->shape, (size_t)t->n_dims * sizeof t->shape[0]);
    for (int i = 0; i < s.n; i++)
        state = fnv1a(state, (const char *)t->data + s.stride * (size_t)i, s.bytes);
    return state;
}

uint64_t model_hash(const struct model_config *config, const struct safetensors *st)
{
    uint64_t state = hash_config(FNV_START, config);
    if (!st) return fnv1a(state, "dummy", 5);
    prefetch_samples(st);
    for (int i = 0; i < safetensors_count(st); i++)
        state = hash_tensor(state, safetensors_at(st, i));
    return state;
}
