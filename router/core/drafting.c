// SPDX-License-Identifier: Apache-2.0
#include "router/core/drafting.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"

// A prompt that was not scored is drafted only if at least this many tokens are left to generate.
enum { UNREAD_ANSWER_MIN = 16 };
enum { MESSAGE_TOKENS = 1 << 20 }; // most tokens of several advances in one message; nodes refuse over 64 MiB

// Limit of a request's drafts that are sent to its worker group between two advances. The group handles every draft
// before its next pass. A speculator sends at most 7 drafts for an advance (1, 2, 4 .. 64 guesses), and late drafts for
// the previous advance may arrive too.
enum { DRAFTS_MAX = 16 };

// --- which speculator holds the prompt

void core_drafting_held(struct request *r, struct core_node *node)
{
    if (!request_is_drafted(r)) return;
    r->drafting = (struct request_drafting){.node = node, .next = node->drafted};
    if (node->drafted) node->drafted->drafting.prev = r;
    node->drafted = r;
    node->n_drafted++;
}

// Removes the request from the speculator that holds its prompt.
static void drafting_leave(struct request *r)
{
    struct request_drafting *d = &r->drafting;
    if (!d->node) return;
    *(d->prev ? &d->prev->drafting.next : &d->node->drafted) = d->next;
    if (d->next) d->next->drafting.prev = d->prev;
    d->node->n_drafted--;
    *d = (struct request_drafting){.is_over = true};
}

void core_drafting_ended(struct core *c, struct request *r)
{
    struct core_node *node = r->drafting.node;
    if (!node) return;
    drafting_leave(r);
    c->ops.send_cancel(node->link, &r->number, 1);
}

void core_drafting_node_gone(struct core_node *node)
{
    while (node->drafted)
        drafting_leave(node->drafted);
    free(node->advanced);
    node->advanced = NULL;
    node->n_advanced = node->advanced_capacity = 0;
}

// Returns the speculator that holds the fewest prompts to draft, or NULL. Considers only speculators that have nothing
// to score and a context long enough for this prompt.
static struct core_node *idle_speculator(const struct core *c, const struct request *r)
{
    struct core_node *best = NULL;
    if (waiting_set_count(&c->waiting[NODE_SPECULATOR])) return NULL;
    for (struct core_node *node = core_first_node(c); node; node = core_node_next(node)) {
        bool fits = node->hello.role == NODE_SPECULATOR && !node->sched.draining &&
                    !node->sched.account.requests.count && r->spec.n_tokens < node->hello.context_tokens;
        if (fits && (!best || node->n_drafted < best->n_drafted)) best = node;
    }
    return best;
}

// Assigns the prompt to an idle speculator and returns the speculator. Returns NULL if no speculator is idle, or if the
// rest of the answer is too short. The answer is then never drafted.
static struct core_node *give_to_idle_speculator(const struct core *c, struct request *r)
{
    bool is_long = r->spec.sampling.max_tokens - r->usage.completion_tokens >= UNREAD_ANSWER_MIN;
    struct core_node *node = is_long ? idle_speculator(c, r) : NULL;
    if (node) core_drafting_held(r, node);
    r->drafting.is_unread = node;
    r->drafting.is_over = !node;
    return node;
}

// --- advances

// Returns how many tokens to guess. A draft must reach beyond the tokens of the pass that runs meanwhile, so it is
// longer than the group's draft length.
static int tokens_ahead(const struct request *r)
{
    return r->account.node ? 2 * (r->account.node->draft_length + 1) : 0;
}

void core_drafting_advanced(struct core *c, struct request *r)
{
    struct core_node *node = r->drafting.node;
    if (!request_is_drafted(r) || r->drafting.is_over || r->account.node->draft_length < 1) return;
    if (!node) node = give_to_idle_speculator(c, r);
    if (!node) return;
    MEM_GROW(node->advanced, node->n_advanced, node->advanced_capacity);
    node->advanced[node->n_advanced++] = r->number;
    c->advances_wait = true;
}

// Collects the advances of a node. A request may have ended meanwhile, or may be in the list twice.
static int collect_advances(const struct core *c, struct core_node *node, struct draft_advance *advances)
{
    int n = 0;
    for (int i = 0; i < node->n_advanced; i++) {
        struct request *r = request_table_find(&c->table, node->advanced[i]);
        if (!r || r->drafting.node != node || r->drafting.n_sent == r->usage.completion_tokens) continue;
        advances[n++] = (struct draft_advance){r, r->drafting.n_sent, tokens_ahead(r), r->drafting.is_unread};
        r->drafting.n_sent = r->usage.completion_tokens;
        r->drafting.n_drafts = 0;
        r->drafting.is_unread = false;
    }
    node->n_advanced = 0;
    return n;
}

static int64_t advance_tokens(const struct draft_advance *advance)
{
    const struct request *r = advance->request;
    return (int64_t)r->usage.completion_tokens - advance->from + (advance->with_prompt ? r->spec.n_tokens : 0);
}

static void send_in_messages(const struct core *c, struct core_node *node, const struct draft_advance *advances, int n)
{
    for (int first = 0, end; first < n; first = end) {
        int64_t tokens = advance_tokens(&advances[first]);
        for (end = first + 1; end < n; end++) {
            tokens += advance_tokens(&advances[end]);
            if (tokens > MESSAGE_TOKENS) break;
        }
        c->ops.send_advances(node->link, advances + first, end - first);
    }
}

void core_drafting_flush(struct core *c)
{
    if (!c->advances_wait) return;
    c->advances_wait = false;
    for (struct core_node *node = core_first_node(c); node; node = core_node_next(node)) {
        if (!node->n_advanced) continue;
        struct draft_advance *advances = mem_alloc_array((size_t)node->n_advanced, sizeof *advances);
        send_in_messages(c, node, advances, collect_advances(c, node, advances));
        free(advances);
    }
}

// --- drafts

// Returns why the draft is invalid, or NULL if it is valid.
static const char *draft_error(const struct core *c, const struct request *r, const struct node_draft *draft)
{
    if (r->drafting.n_drafts >= DRAFTS_MAX) return "over 16 drafts came for the tokens that were sent last";
    if (draft->n < 1 || draft->n > NODE_DRAFT_MAX) return "a draft has 1 to 64 tokens";
    if (draft->from < 0 || draft->from > r->drafting.n_sent) return "a draft begins after the tokens that were sent";
    for (int i = 0; i < draft->n; i++)
        if (draft->tokens[i] < 0 || draft->tokens[i] >= c->options.vocab_size)
            return "a token is outside the vocabulary";
    return NULL;
}

// Returns the tokens of the draft that are still to be generated. Returns none if an earlier token was generated
// differently.
static struct node_draft draft_rest(const struct request *r, const struct node_draft *draft)
{
    struct node_draft rest = *draft;
    int known = r->usage.completion_tokens - draft->from, same = known < draft->n ? known : draft->n;
    bool is_wrong = same && memcmp(draft->tokens, r->output + draft->from, (size_t)same * sizeof *draft->tokens) != 0;
    rest.from += same;
    rest.tokens += same;
    rest.n = is_wrong ? 0 : draft->n - same;
    return rest;
}

// Returns the request of a draft, if the node holds its prompt and a worker group runs it. Returns NULL if the request
// ended, or lost its node, while the draft was on its way.
static struct request *request_of_draft(struct core *c, const struct core_node *node, const struct node_draft *draft)
{
    struct request *r = request_table_find(&c->table, draft->request);
    if (!r || r->drafting.node != node) return NULL;
    if (draft->released) {
        r->drafting.is_over = true; // drafting.node stays: the node is still told when the request ends
        return NULL;
    }
    if (!r->account.node || (r->state != REQUEST_PREFILL && r->state != REQUEST_DECODE)) return NULL;
    const char *error = draft_error(c, r, draft);
    if (!error) return r;
    log_event_limited(LOG_WARN, "draft_refused", LOG_REQUEST(r->number), LOG_FIELD("node", node->hello.node_id),
                      LOG_FIELD("reason", error));
    return NULL;
}

void core_drafts(struct core *c, struct core_node *node, const struct node_draft *drafts, int n, int64_t now_us)
{
    struct node_draft *rest = mem_alloc_array((size_t)n, sizeof *rest);
    struct core_node *group = NULL; // the worker group of the drafts in `rest`
    int n_rest = 0;
    node->heard_us = now_us;
    for (int i = 0; i < n; i++) {
        struct request *r = request_of_draft(c, node, &drafts[i]);
        if (!r) continue;
        if (group != r->account.node && n_rest) {
            c->ops.send_drafts(group->link, rest, n_rest);
            n_rest = 0;
        }
        group = r->account.node;
        rest[n_rest] = draft_rest(r, &drafts[i]);
        if (!rest[n_rest].n) continue;
        r->drafting.n_drafts++;
        n_rest++;
    }
    if (n_rest) c->ops.send_drafts(group->link, rest, n_rest);
    free(rest);
}

void core_draft_length(struct core_node *node, int length)
{
    node->draft_length = length < 0 ? 0 : length < LOOK_AHEAD_MAX ? length : LOOK_AHEAD_MAX;
}
