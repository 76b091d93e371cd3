// SPDX-License-Identifier: Apache-2.0
#include "engine/link_messages.h"

#include <stdlib.h>

#include "lib/base/mem.h"

typedef Forepack__Cluster__V1__NodeMessage node_message;
typedef Forepack__Cluster__V1__RouterMessage router_message;

// --- from the router

static bool number_receive(int link, uint64_t *number)
{
    const bool fits = *number == link_id_number(*number);
    *number = link_id_make(link, link_id_number(*number));
    return fits;
}

bool link_message_receive(int link, router_message *m)
{
    bool fit = true;
    switch (m->kind_case) {
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_SCORE_BIN:
        for (size_t i = 0; i < m->score_bin->n_items; i++)
            fit &= number_receive(link, &m->score_bin->items[i]->request);
        break;
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN:
        for (size_t i = 0; i < m->prefill_bin->n_sequences; i++)
            fit &= number_receive(link, &m->prefill_bin->sequences[i]->request);
        break;
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_CANCEL:
        for (size_t i = 0; i < m->cancel->n_requests; i++)
            fit &= number_receive(link, &m->cancel->requests[i]);
        break;
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_ADVANCES:
        for (size_t i = 0; i < m->advances->n_advances; i++)
            fit &= number_receive(link, &m->advances->advances[i]->request);
        break;
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_DRAFTS:
        for (size_t i = 0; i < m->drafts->n_drafts; i++)
            fit &= number_receive(link, &m->drafts->drafts[i]->request);
        break;
    default: break;
    }
    return fit;
}

// --- to the router

// Copies the entries of `from` whose requests are of the link to `items`, and their addresses to `list`. `n` gets their
// number. The entries have the member `request`.
#define PART_FILL(part, type, link, from, n_from, to, n_to)                                                            \
    do {                                                                                                               \
        type *items = (part)->items = mem_alloc_array((n_from), sizeof *items);                                        \
        type **list = (part)->list = mem_alloc_array((n_from), sizeof *list);                                          \
        (n_to) = 0;                                                                                                    \
        for (size_t i = 0; i < (n_from); i++) {                                                                        \
            if (link_id_link((from)[i]->request) != (link)) continue;                                                  \
            items[n_to] = *(from)[i];                                                                                  \
            items[n_to].request = link_id_number(items[n_to].request);                                                 \
            list[n_to] = &items[n_to];                                                                                 \
            (n_to)++;                                                                                                  \
        }                                                                                                              \
        (to) = list;                                                                                                   \
    } while (0)

// Returns how many decode rows and draft rows of a pass had results of other links.
static uint32_t other_rows(int link, const Forepack__Cluster__V1__StepResults *step)
{
    uint32_t rows = 0;
    for (size_t i = 0; i < step->n_results; i++) {
        if (link_id_link(step->results[i]->request) != link) rows += 1 + step->results[i]->draft_tokens;
    }
    return rows;
}

bool link_part_make(int link, const node_message *message, struct link_part *part)
{
    part->items = part->list = NULL;
    part->message = *message;
    switch (message->kind_case) {
    case FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP:
        part->step = *message->step;
        PART_FILL(part, Forepack__Cluster__V1__SequenceResult, link, message->step->results, message->step->n_results,
                  part->step.results, part->step.n_results);
        part->step.other_rows = other_rows(link, message->step);
        part->message.step = &part->step;
        return part->step.n_results || part->step.step_us;
    case FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_SCORED:
        part->scored = *message->scored;
        PART_FILL(part, Forepack__Cluster__V1__ScoreResult, link, message->scored->results, message->scored->n_results,
                  part->scored.results, part->scored.n_results);
        part->message.scored = &part->scored;
        return part->scored.n_results || part->scored.pass_us;
    case FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_DRAFTS:
        part->drafts = *message->drafts;
        PART_FILL(part, Forepack__Cluster__V1__Draft, link, message->drafts->drafts, message->drafts->n_drafts,
                  part->drafts.drafts, part->drafts.n_drafts);
        part->message.drafts = &part->drafts;
        return part->drafts.n_drafts;
    default: return true;
    }
}

void link_part_free(struct link_part *part)
{
    free(part->items);
    free(part->list);
}
