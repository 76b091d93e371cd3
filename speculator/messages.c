// SPDX-License-Identifier: Apache-2.0
#include "speculator/messages.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/generation_wire.h"

// Numbers above INT_MAX become negative, and the checks refuse them.
void score_item_from_message(const Forepack__Cluster__V1__ScoreItem *message, struct score_item *item,
                             struct token_range **pinned_p)
{
    struct token_range *pinned = mem_alloc_array(message->n_pinned, sizeof *pinned);
    for (size_t i = 0; i < message->n_pinned; i++)
        pinned[i] = (struct token_range){(int32_t)message->pinned[i]->first, (int32_t)message->pinned[i]->last};
    *item = (struct score_item){
        .request = message->request,
        .tokens = (const int32_t *)message->token_ids,
        .n = (int)message->n_token_ids,
        .pinned = pinned,
        .n_pinned = (int)message->n_pinned,
        .tail_tokens = (int)message->tail_tokens,
        .budget_tokens = (int)message->budget_tokens,
        .want_importance = message->want_importance,
        .hold = message->hold,
        .salt = message->salt,
        .trace = message->trace,
    };
    item->prefill.min_keep_rate = message->min_keep_rate;
    prefill_from_message(&message->base, &item->prefill); // scorer_add() checks the values
    *pinned_p = pinned;
}

static Forepack__Cluster__V1__RateReason rate_reason_message(enum rate_reason reason)
{
    static const Forepack__Cluster__V1__RateReason reasons[RATE_REASON_COUNT] = {
        [RATE_FIXED] = FOREPACK__CLUSTER__V1__RATE_REASON__RATE_FIXED,
        [RATE_QUALITY] = FOREPACK__CLUSTER__V1__RATE_REASON__RATE_QUALITY,
        [RATE_UNSURE] = FOREPACK__CLUSTER__V1__RATE_REASON__RATE_UNSURE,
        [RATE_UNCALIBRATED] = FOREPACK__CLUSTER__V1__RATE_REASON__RATE_UNCALIBRATED,
    };
    return reasons[reason];
}

// Upper bounds on the memory that the router counts for a result and for each of its kept ranges
// (lib/messages/unpack.c). A range takes 48 bytes with malloc's overhead, 8 for its pointer, and up to 64 for
// protobuf-c's record of the field.
enum { RESULT_MEMORY = 1024, RANGE_MEMORY = 120 };

static size_t result_memory(const Forepack__Cluster__V1__ScoreResult *message, const char *error)
{
    return RESULT_MEMORY + RANGE_MEMORY * message->n_kept + sizeof *message->importance * message->n_importance +
           sizeof *message->draft_ids * message->n_draft_ids + (error ? strlen(error) : 0);
}

void score_outbox_add(struct score_outbox *outbox, const struct score_result *result)
{
    Forepack__Cluster__V1__ScoreResult *message = mem_alloc(sizeof *message);
    forepack__cluster__v1__score_result__init(message);
    message->request = result->request;
    if (result->error) {
        message->error = mem_string(result->error);
    } else {
        message->steps = (uint32_t)result->steps;
        message->cached_tokens = (uint32_t)result->cached_tokens;
        message->keep_rate = result->keep_rate;
        message->rate_reason = rate_reason_message(result->reason);
        message->score_us = (uint32_t)(result->score_us < UINT32_MAX ? result->score_us : UINT32_MAX);
        message->n_kept = (size_t)result->n_kept;
        message->kept = mem_alloc_array(message->n_kept, sizeof *message->kept);
        for (int i = 0; i < result->n_kept; i++) {
            Forepack__Cluster__V1__Range *range = message->kept[i] = mem_alloc(sizeof *range);
            forepack__cluster__v1__range__init(range);
            range->first = (uint32_t)result->kept[i].first;
            range->last = (uint32_t)result->kept[i].last;
        }
        message->n_draft_ids = (size_t)result->n_look_ahead;
        message->draft_ids = mem_copy(result->look_ahead, message->n_draft_ids * sizeof *message->draft_ids);
        if (result->importance) {
            message->n_importance = (size_t)result->n;
            message->importance = mem_copy(result->importance, message->n_importance * sizeof(float));
        }
    }
    MEM_GROW(outbox->results, outbox->n, outbox->capacity);
    outbox->results[outbox->n++] = message;
    outbox->memory += result_memory(message, result->error);
}

void score_outbox_message(const struct score_outbox *outbox, Forepack__Cluster__V1__ScoreResults *message)
{
    forepack__cluster__v1__score_results__init(message);
    message->results = outbox->results;
    message->n_results = (size_t)outbox->n;
}

void score_outbox_clear(struct score_outbox *outbox)
{
    for (int i = 0; i < outbox->n; i++)
        forepack__cluster__v1__score_result__free_unpacked(outbox->results[i], NULL);
    free(outbox->results);
    *outbox = (struct score_outbox){0};
}

// `memory` stays an upper bound.
void score_outbox_drop_link(struct score_outbox *outbox, int link)
{
    int n = 0;
    for (int i = 0; i < outbox->n; i++) {
        if (link_id_link(outbox->results[i]->request) == link)
            forepack__cluster__v1__score_result__free_unpacked(outbox->results[i], NULL);
        else
            outbox->results[n++] = outbox->results[i];
    }
    outbox->n = n;
}

// --- drafts

static int int_of(uint32_t number)
{
    return number < INT_MAX ? (int)number : INT_MAX;
}

struct score_advance score_advance_from_message(const Forepack__Cluster__V1__Advance *message)
{
    return (struct score_advance){
        .request = message->request,
        .from = int_of(message->from),
        .tokens = (const int32_t *)message->token_ids, // a number above INT32_MAX becomes negative and is refused
        .n = (int)message->n_token_ids,
        .ahead = int_of(message->ahead),
        .prompt = (const int32_t *)message->prompt_ids, // numbers above INT32_MAX: as for token_ids
        .n_prompt = (int)message->n_prompt_ids,
        .salt = message->salt,
    };
}

static Forepack__Cluster__V1__Draft *outbox_append(struct draft_outbox *outbox, uint64_t request)
{
    Forepack__Cluster__V1__Draft *message = mem_alloc(sizeof *message);
    forepack__cluster__v1__draft__init(message);
    message->request = request;
    MEM_GROW(outbox->drafts, outbox->n, outbox->capacity);
    outbox->drafts[outbox->n++] = message;
    return message;
}

void draft_outbox_add(struct draft_outbox *outbox, const struct score_draft *draft)
{
    Forepack__Cluster__V1__Draft *message = outbox_append(outbox, draft->request);
    message->from = (uint32_t)draft->from;
    message->n_token_ids = (size_t)draft->n;
    message->token_ids = mem_copy(draft->tokens, message->n_token_ids * sizeof *message->token_ids);
}

void draft_outbox_add_released(struct draft_outbox *outbox, uint64_t request)
{
    outbox_append(outbox, request)->released = true;
}

void draft_outbox_message(const struct draft_outbox *outbox, Forepack__Cluster__V1__Drafts *message)
{
    forepack__cluster__v1__drafts__init(message);
    message->drafts = outbox->drafts;
    message->n_drafts = (size_t)outbox->n;
}

void draft_outbox_clear(struct draft_outbox *outbox)
{
    for (int i = 0; i < outbox->n; i++)
        forepack__cluster__v1__draft__free_unpacked(outbox->drafts[i], NULL);
    free(outbox->drafts);
    *outbox = (struct draft_outbox){0};
}

void draft_outbox_drop_link(struct draft_outbox *outbox, int link)
{
    int n = 0;
    for (int i = 0; i < outbox->n; i++) {
        if (link_id_link(outbox->drafts[i]->request) == link)
            forepack__cluster__v1__draft__free_unpacked(outbox->drafts[i], NULL);
        else
            outbox->drafts[n++] = outbox->drafts[i];
    }
    outbox->n = n;
}
