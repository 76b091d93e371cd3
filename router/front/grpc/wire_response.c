// SPDX-License-Identifier: Apache-2.0
#include "router/front/grpc/wire_response.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/utf8.h"
#include "proto/forepack/v1/inference.pb-c.h"
#include "router/core/request_stages.h"
#include "router/front/grpc/grpc_access.h"
#include "router/front/request/reply.h"

static void response_send(struct rpc_call *call, const char *id, Forepack__V1__GenerateResponse *response)
{
    response->request_id = (char *)id;
    reply_stream(call, &response->base);
}

// --- chunks

// Returns one allocation with all protobuf structs of a chunk's log-probabilities. The caller frees it.
static Forepack__V1__TokenLogprob **logprob_messages(const struct token_logprob *logprobs, int n)
{
    size_t n_top = 0;
    for (int i = 0; i < n; i++)
        n_top += (size_t)logprobs[i].n_top;
    size_t each = sizeof(Forepack__V1__TokenLogprob) + sizeof(Forepack__V1__TokenLogprob *);
    size_t top_each = sizeof(Forepack__V1__TopLogprob) + sizeof(Forepack__V1__TopLogprob *);
    char *block = mem_alloc((size_t)n * each + n_top * top_each + 1);
    Forepack__V1__TokenLogprob **list = (void *)block;
    Forepack__V1__TopLogprob **top_list = (void *)(list + n);
    Forepack__V1__TokenLogprob *items = (void *)(top_list + n_top);
    Forepack__V1__TopLogprob *tops = (void *)(items + n);
    for (int i = 0; i < n; i++) {
        list[i] = &items[i];
        forepack__v1__token_logprob__init(list[i]);
        list[i]->token_id = (uint32_t)logprobs[i].token;
        list[i]->logprob = logprobs[i].logprob;
        list[i]->rank = (uint32_t)logprobs[i].rank;
        list[i]->top = top_list;
        list[i]->n_top = (size_t)logprobs[i].n_top;
        for (int t = 0; t < logprobs[i].n_top; t++) {
            *top_list = tops++;
            forepack__v1__top_logprob__init(*top_list);
            (*top_list)->token_id = (uint32_t)logprobs[i].top_token[t];
            (*top_list)->logprob = logprobs[i].top_logprob[t];
            top_list++;
        }
    }
    return list;
}

void wire_chunk_send(struct rpc_call *call, const char *request_id, const struct answer_chunk *chunk, uint64_t mark)
{
    if (!chunk->text_bytes && !chunk->n && !chunk->n_prompt_logprobs) return;
    Forepack__V1__Chunk m = FOREPACK__V1__CHUNK__INIT;
    m.text = (ProtobufCBinaryData){chunk->text_bytes, (uint8_t *)chunk->text};
    m.token_ids = (uint32_t *)chunk->tokens; // ids are never negative
    m.n_token_ids = (size_t)chunk->n;
    m.mark = mark;
    if (chunk->logprobs) {
        m.logprobs = logprob_messages(chunk->logprobs, chunk->n);
        m.n_logprobs = (size_t)chunk->n;
    }
    if (chunk->n_prompt_logprobs) {
        m.prompt_logprobs = logprob_messages(chunk->prompt_logprobs, chunk->n_prompt_logprobs);
        m.n_prompt_logprobs = (size_t)chunk->n_prompt_logprobs;
    }
    Forepack__V1__GenerateResponse response = FOREPACK__V1__GENERATE_RESPONSE__INIT;
    response.kind_case = FOREPACK__V1__GENERATE_RESPONSE__KIND_CHUNK;
    response.chunk = &m;
    response_send(call, request_id, &response);
    free(m.logprobs);
    free(m.prompt_logprobs);
}

// --- completions

// Returns one allocation with the list and its messages. The caller frees it.
static Forepack__V1__TokenRange **range_messages(const struct token_range *ranges, int n)
{
    Forepack__V1__TokenRange **list = mem_alloc((size_t)n * (sizeof *list + sizeof(Forepack__V1__TokenRange)) + 1);
    Forepack__V1__TokenRange *items = (void *)(list + n);
    for (int i = 0; i < n; i++) {
        list[i] = &items[i];
        forepack__v1__token_range__init(list[i]);
        list[i]->first = (uint32_t)ranges[i].first;
        list[i]->last = (uint32_t)ranges[i].last;
    }
    return list;
}

static void completion_send(struct rpc_call *call, const char *request_id, enum finish_reason reason,
                            Forepack__V1__Completion *completion, enum status status, const char *message)
{
    Forepack__V1__Error error = FOREPACK__V1__ERROR__INIT;
    completion->finish_reason = (char *)finish_reason_name(reason);
    if (reason == FINISH_REASON_ERROR) {
        error.code = (uint32_t)rpc_code(status);
        error.message = (char *)message;
        completion->error = &error;
    }
    Forepack__V1__GenerateResponse response = FOREPACK__V1__GENERATE_RESPONSE__INIT;
    response.kind_case = FOREPACK__V1__GENERATE_RESPONSE__KIND_COMPLETION;
    response.completion = completion;
    response_send(call, request_id, &response);
}

static void usage_fill(const struct request_usage *usage, Forepack__V1__Usage *m)
{
    forepack__v1__usage__init(m);
    m->prompt_tokens = (uint32_t)usage->prompt_tokens;
    m->scored_tokens = (uint32_t)usage->scored_tokens;
    m->score_cached_tokens = (uint32_t)usage->score_cached_tokens;
    m->kept_tokens = (uint32_t)usage->kept_tokens;
    m->cached_tokens = (uint32_t)usage->cached_tokens;
    m->completion_tokens = (uint32_t)usage->completion_tokens;
    m->replays = (uint32_t)usage->replays;
    m->draft_tokens = (uint32_t)usage->draft_tokens;
    m->draft_accepted_tokens = (uint32_t)usage->draft_accepted_tokens;
    m->frozen_tokens = (uint32_t)usage->frozen_tokens;
    m->recalled_tokens = (uint32_t)usage->recalled_tokens;
}

static void timing_fill(const struct request *r, Forepack__V1__Timing *m)
{
    const struct request_timing *timing = &r->timing;
    forepack__v1__timing__init(m);
    m->queue_ms = (double)timing->queue_us / 1e3;
    m->score_ms = (double)timing->score_us / 1e3;
    m->pack_wait_ms = (double)timing->pack_wait_us / 1e3;
    m->prefill_ms = (double)timing->prefill_us / 1e3;
    m->ttft_ms = (double)timing->ttft_us / 1e3;
    m->total_ms = (double)timing->total_us / 1e3;
    m->predicted_whole_ms = r->predicted.whole_us / 1e3;
    m->predicted_pruned_ms = r->predicted.pruned_us / 1e3;
}

// Returns NULL if no node of the pool was asked.
static Forepack__V1__Stage *stage_fill(const struct request_stage *stage, Forepack__V1__Stage *m)
{
    if (!stage->node_id && stage->wait == STAGE_WAIT_NONE) return NULL;
    forepack__v1__stage__init(m);
    if (stage->node_id) m->node_id = stage->node_id;
    m->bin_requests = (uint32_t)stage->bin_requests;
    m->bin_rows = (uint64_t)stage->bin_rows;
    m->token_budget = (uint32_t)stage->token_budget;
    m->wait = (char *)stage_wait_name(stage->wait);
    m->waiting = (uint32_t)stage->waiting;
    return m;
}

void wire_explanation_fill(const struct request *r, bool for_operator, struct wire_explanation *m)
{
    const struct prefill *prefill = &r->spec.prefill;
    timing_fill(r, &m->timing);
    forepack__v1__stages__init(&m->stages);
    m->stages.mode = (char *)prefill_mode_name(prefill->mode);
    m->stages.quality = prefill->quality;
    m->stages.keep_rate = prefill->keep_rate;
    m->stages.limited = !for_operator;
    if (r->stages && for_operator) {
        m->stages.score = stage_fill(&r->stages[NODE_SPECULATOR], &m->of[NODE_SPECULATOR]);
        m->stages.prefill = stage_fill(&r->stages[NODE_WORKER], &m->of[NODE_WORKER]);
    }
}

void wire_prefill_format(const struct request *r, char text[WIRE_PREFILL_ROOM])
{
    text[0] = 0;
    if (r->kept) snprintf(text, WIRE_PREFILL_ROOM, r->skip ? "whole:%s" : "speculated", skip_reason_name(r->skip));
}

void wire_completion_send(struct rpc_call *call, const struct request *r, bool return_kept, enum finish_reason reason,
                          enum status status, const char *message)
{
    Forepack__V1__Usage usage;
    struct wire_explanation explanation;
    usage_fill(&r->usage, &usage);
    wire_explanation_fill(r, grpc_is_operator(call), &explanation);
    Forepack__V1__Completion completion = FOREPACK__V1__COMPLETION__INIT;
    completion.usage = &usage;
    completion.timing = &explanation.timing;
    if (r->spec.explain) completion.stages = &explanation.stages;
    if (return_kept && r->kept) {
        struct token_range *sorted;
        completion.n_kept = (size_t)request_sort_kept(r, &sorted);
        completion.kept = range_messages(sorted, (int)completion.n_kept);
        free(sorted);
    }
    char prefill[WIRE_PREFILL_ROOM];
    wire_prefill_format(r, prefill);
    completion.prefill = prefill;
    completion.keep_rate = r->keep_rate;
    completion.prefill_reason = (char *)request_rate_reason(r);
    char limit[REQUEST_LIMIT_ROOM];
    request_limit_format(r, limit);
    completion.prefill_limit = limit;
    completion_send(call, r->id, reason, &completion, status, message);
    free(completion.kept);
}

void wire_refusal_send(struct rpc_call *call, const char *request_id, enum status status, const char *message)
{
    Forepack__V1__Completion completion = FOREPACK__V1__COMPLETION__INIT;
    bool valid = utf8_valid(request_id, strlen(request_id), NULL);
    completion_send(call, valid ? request_id : "", FINISH_REASON_ERROR, &completion, status, message);
}

// --- scores

void wire_score_send(struct rpc_call *call, const struct request *r)
{
    Forepack__V1__ScoreResponse response = FOREPACK__V1__SCORE_RESPONSE__INIT;
    response.token_ids = (uint32_t *)r->spec.tokens;
    response.n_token_ids = (size_t)r->spec.n_tokens;
    response.kept = range_messages(r->kept, r->n_kept_ranges);
    response.n_kept = (size_t)r->n_kept_ranges;
    response.importance = r->importance;
    response.n_importance = r->importance ? (size_t)r->spec.n_tokens : 0;
    response.score_ms = (double)r->timing.score_us / 1e3;
    response.keep_rate = r->keep_rate;
    response.prefill_reason = (char *)request_rate_reason(r);
    reply_unary(call, &response.base);
    free(response.kept);
}

// --- compressions

static ProtobufCBinaryData text_of(const json_t *string)
{
    return (ProtobufCBinaryData){json_string_length(string), (uint8_t *)json_string_value(string)};
}

struct kept_message {
    Forepack__V1__KeptText kept;
    Forepack__V1__ByteRange *ranges, **range_list; // owned
};

static void kept_fill(const struct compress_text *text, struct kept_message *m)
{
    forepack__v1__kept_text__init(&m->kept);
    m->ranges = mem_alloc_array((size_t)text->n_kept + 1, sizeof *m->ranges);
    m->range_list = mem_alloc_array((size_t)text->n_kept + 1, sizeof *m->range_list);
    for (int k = 0; k < text->n_kept; k++) {
        m->range_list[k] = &m->ranges[k];
        forepack__v1__byte_range__init(&m->ranges[k]);
        m->ranges[k].start = (uint32_t)text->kept[k].start;
        m->ranges[k].end = (uint32_t)text->kept[k].end;
    }
    m->kept.message = (uint32_t)text->message;
    m->kept.rule = (char *)compress_rule_name(text->rule);
    m->kept.ranges = m->range_list;
    m->kept.n_ranges = (size_t)text->n_kept;
}

// Fills in the messages [n] of a chat.
static void messages_fill(const struct compression *c, Forepack__V1__Message *messages, Forepack__V1__Message **list)
{
    for (size_t i = 0; i < json_array_size(c->input); i++) {
        const json_t *message = json_array_get(c->input, i);
        list[i] = &messages[i];
        forepack__v1__message__init(list[i]);
        list[i]->role = (char *)json_string_value(json_object_get(message, "role"));
        list[i]->content = text_of(json_object_get(message, "content"));
    }
}

static void compression_send(struct rpc_call *call, const struct compression *c)
{
    Forepack__V1__CompressResponse response = FOREPACK__V1__COMPRESS_RESPONSE__INIT;
    size_t n = json_array_size(c->input);
    Forepack__V1__Message *messages = mem_alloc_array(n + 1, sizeof *messages),
                          **list = mem_alloc((n + 1) * sizeof *list);
    struct kept_message *kept = mem_alloc_array((size_t)c->n_texts + 1, sizeof *kept);
    response.kept = mem_alloc_array((size_t)c->n_texts + 1, sizeof *response.kept);
    messages_fill(c, messages, list);
    response.messages = list;
    response.n_messages = n;
    if (!n) response.text = text_of(c->input);
    for (int i = 0; i < c->n_texts; i++) {
        kept_fill(&c->texts[i], &kept[i]);
        if (c->texts[i].units.n) response.kept[response.n_kept++] = &kept[i].kept;
    }
    response.tokens_before = (uint32_t)c->tokens_before;
    response.tokens_after = (uint32_t)c->tokens_after;
    response.keep_rate = c->keep_rate;
    response.decided_by = (char *)c->decided_by;
    response.prefill_limit = (char *)c->limit;
    response.score_ms = c->score_ms;
    reply_unary(call, &response.base);
    for (int i = 0; i < c->n_texts; i++) {
        free(kept[i].ranges);
        free(kept[i].range_list);
    }
    free(kept);
    free(response.kept);
    free(messages);
    free(list);
}

void wire_compression_send(void *to, const struct compression *c, enum status status)
{
    if (status == STATUS_OK)
        compression_send(to, c);
    else
        reply_refuse(to, status);
    rpc_call_unref(to);
}
