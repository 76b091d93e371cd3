// SPDX-License-Identifier: Apache-2.0
// Messages of a router into a worker group (fuzz_role.h): sequences that are mostly well formed. Bits of a byte make
// one part of a sequence wrong each.
#include "tests/fuzz/fuzz_role.h"

enum { RANGES_MAX = 4, BIAS_MAX = 3 };

static struct item {
    Forepack__Cluster__V1__Sequence sequence;
    Forepack__Cluster__V1__Sampling sampling;
    Forepack__Cluster__V1__Range ranges[RANGES_MAX], *range_list[RANGES_MAX];
    uint32_t tokens[FUZZ_TOKENS_MAX], penalty_ids[FUZZ_TOKENS_MAX], bias_ids[BIAS_MAX], stop_ids[2];
    float bias[BIAS_MAX];
} items[FUZZ_ITEMS_MAX];

static void sampling_fill(struct fuzz_script *script, struct item *item)
{
    Forepack__Cluster__V1__Sampling *m = &item->sampling;
    int flags = fuzz_byte(script);
    forepack__cluster__v1__sampling__init(m);
    m->max_tokens = 1 + fuzz_byte(script) % 40u;
    m->top_p = m->repetition_penalty = 1;
    m->logprobs = -1;
    if (flags & 1) m->max_tokens = (uint32_t)fuzz_number(script);
    if (flags & 2) m->temperature = fuzz_real(script);
    if (flags & 4) m->top_p = fuzz_real(script);
    if (flags & 8) m->repetition_penalty = fuzz_real(script);
    if (flags & 16) m->logprobs = (int32_t)fuzz_number(script);
    if (flags & 32) m->presence_penalty = m->frequency_penalty = fuzz_real(script);
    if (flags & 64) m->top_k = (uint32_t)fuzz_number(script);
    m->min_tokens = (uint32_t)fuzz_number(script) % 64;
    m->ignore_eos = flags & 128;
    m->n_stop_token_ids = (size_t)fuzz_below(script, 3);
    m->stop_token_ids = item->stop_ids;
    item->stop_ids[0] = (uint32_t)fuzz_number(script);
}

static void bias_fill(struct fuzz_script *script, struct item *item)
{
    Forepack__Cluster__V1__Sampling *m = &item->sampling;
    m->n_logit_bias_ids = (size_t)fuzz_below(script, BIAS_MAX + 1);
    m->n_logit_bias = (size_t)fuzz_below(script, BIAS_MAX + 1);
    m->logit_bias_ids = item->bias_ids;
    m->logit_bias = item->bias;
    for (int i = 0; i < BIAS_MAX; i++) {
        item->bias_ids[i] = (uint32_t)fuzz_number(script);
        item->bias[i] = (float)fuzz_real(script);
    }
}

static void kept_fill(struct fuzz_script *script, struct item *item, bool wrong)
{
    Forepack__Cluster__V1__Sequence *m = &item->sequence;
    uint32_t kept = (uint32_t)m->n_token_ids - m->generated;
    m->kept = item->range_list;
    m->n_kept = wrong ? (size_t)fuzz_below(script, RANGES_MAX + 1) : 1;
    for (size_t i = 0; i < RANGES_MAX; i++) {
        item->range_list[i] = &item->ranges[i];
        forepack__cluster__v1__range__init(&item->ranges[i]);
        item->ranges[i].last = kept - 1;
        if (!wrong) continue;
        item->ranges[i].first = (uint32_t)fuzz_number(script);
        item->ranges[i].last = (uint32_t)fuzz_number(script);
    }
}

static void sequence_fill(struct fuzz_script *script, struct item *item)
{
    Forepack__Cluster__V1__Sequence *m = &item->sequence;
    int flags = fuzz_byte(script);
    forepack__cluster__v1__sequence__init(m);
    m->request = fuzz_byte(script) % FUZZ_IDS;
    m->token_ids = item->tokens;
    m->n_token_ids = fuzz_tokens(script, item->tokens);
    if (flags & 1) m->generated = (uint32_t)fuzz_number(script);
    m->prompt_tokens = flags & 2 ? (uint32_t)fuzz_number(script) : (uint32_t)m->n_token_ids - m->generated;
    kept_fill(script, item, flags & 4);
    sampling_fill(script, item);
    if (flags & 8) bias_fill(script, item);
    if (flags & 16) m->n_penalty_ids = fuzz_tokens(script, m->penalty_ids = item->penalty_ids);
    if (flags & 64) m->salt = fuzz_number(script);
    if (!(flags & 128)) m->sampling = &item->sampling;
}

static const Forepack__Cluster__V1__RouterMessage *bin_make(struct fuzz_script *script)
{
    static Forepack__Cluster__V1__RouterMessage message;
    static Forepack__Cluster__V1__PrefillBin bin;
    static Forepack__Cluster__V1__Sequence *list[FUZZ_ITEMS_MAX];
    forepack__cluster__v1__router_message__init(&message);
    forepack__cluster__v1__prefill_bin__init(&bin);
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN;
    message.prefill_bin = &bin;
    bin.n_sequences = (size_t)fuzz_below(script, FUZZ_ITEMS_MAX + 1);
    bin.sequences = list;
    for (size_t i = 0; i < bin.n_sequences; i++) {
        sequence_fill(script, &items[i]);
        list[i] = &items[i].sequence;
    }
    return &message;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_script script = {data, size};
    memset(items, 0, sizeof items);
    fuzz_role_run(&worker_role, NODE_WORKER, bin_make, &script);
    return 0;
}
