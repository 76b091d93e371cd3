// SPDX-License-Identifier: Apache-2.0
#include "router/front/request/answer_resume.h"

#include <stdlib.h>

#include "lib/base/mem.h"
#include "router/core/resume.h"

static enum status numbers_check(const struct answer *a, size_t n_ids, uint32_t n_received)
{
    const struct request *r = a->request;
    size_t n = n_ids ? n_ids : n_received, most = (size_t)sampling_output_max(&r->spec.sampling);
    if (n_ids && n_received)
        return status_fail(STATUS_INVALID, "resume: give either token_ids or received_tokens, not both");
    if (n > most) return status_fail(STATUS_OUT_OF_RANGE, "resume: %zu tokens given, max_tokens is %zu", n, most);
    if (n && !r->resume.mark && r->spec.prefill.mode != PREFILL_OFF)
        return status_fail(STATUS_INVALID, "resume.mark: required, because the prompt may be pruned: give the mark of "
                                           "the answer's first chunk");
    return STATUS_OK;
}

static bool is_among(const int32_t *ids, int n, int32_t id)
{
    while (n > 0 && ids[n - 1] != id)
        n--;
    return n > 0;
}

static enum status tokens_check(const struct answer *a, const uint32_t *ids, size_t n)
{
    const struct model_config *config = &a->client->front->config;
    const struct sampling *s = &a->request->spec.sampling;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= (uint32_t)config->vocab_size)
            return status_fail(STATUS_INVALID, "resume.token_ids[%zu]: %u is not below the vocabulary size %d", i,
                               ids[i], config->vocab_size);
        bool is_end = !s->ignore_eos && is_among(config->eos_id, config->n_eos, (int32_t)ids[i]);
        if (is_end || is_among(s->stop_ids, s->n_stop_ids, (int32_t)ids[i]))
            return status_fail(STATUS_INVALID, "resume.token_ids[%zu]: token %u ends answers and is never part of one",
                               i, ids[i]);
    }
    return STATUS_OK;
}

// Checks that the grammar allows the tokens. Sets *is_complete_p to true if they complete it.
static enum status grammar_check(const struct answer *a, const int32_t *tokens, int n, bool *is_complete_p)
{
    const struct grammar_spec *spec = &a->request->spec.sampling.grammar;
    struct grammar_matcher *matcher;
    if (spec->kind == GRAMMAR_NONE) return STATUS_OK;
    TRY(grammar_matcher_create(a->client->front->grammars, spec, &matcher));
    enum status status = grammar_matcher_accept(matcher, tokens, n);
    if (status == STATUS_OK)
        *is_complete_p = grammar_matcher_is_complete(matcher);
    else
        status = status_fail(STATUS_INVALID, "resume.token_ids: the grammar of the request does not allow them");
    grammar_matcher_free(matcher);
    return status;
}

// Pushes the tokens through the stream of the text, which then continues after them.
static enum status text_push(struct answer *a, const int32_t *tokens, int n)
{
    char *joined;
    struct answer_chunk chunk = {.tokens = tokens};
    a->min_tokens = a->request->spec.sampling.min_tokens;
    a->resumed_ends = mem_alloc_array((size_t)n, sizeof *a->resumed_ends);
    a->request->resume.is_stopped |= answer_push(a, tokens, n, &chunk, a->resumed_ends, &joined);
    bytes_add(&a->resumed_text, chunk.text, chunk.text_bytes);
    free(joined);
    if (chunk.n == n) return STATUS_OK;
    return status_fail(STATUS_INVALID, "resume.token_ids: a stop string ends the answer after %d of the %d tokens",
                       chunk.n, n);
}

enum status answer_resume(struct answer *a, const uint32_t *ids, size_t n_ids, uint32_t n_received)
{
    struct request *r = a->request;
    TRY(numbers_check(a, n_ids, n_received));
    TRY(tokens_check(a, ids, n_ids));
    a->n_resumed = n_ids ? (int)n_ids : (int)n_received;
    if (!n_ids) return STATUS_OK;
    const int32_t *tokens = (const int32_t *)ids; // ids are below the vocabulary size
    TRY(grammar_check(a, tokens, (int)n_ids, &r->resume.is_stopped));
    r->output = mem_copy(tokens, n_ids * sizeof *tokens);
    r->output_capacity = r->resume.n = (int)n_ids;
    return text_push(a, r->output, (int)n_ids);
}
