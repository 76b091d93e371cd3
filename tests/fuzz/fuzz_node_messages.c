// SPDX-License-Identifier: Apache-2.0
// Messages of nodes into the router's core. The input is a script: nodes attach, send messages that are mostly well
// formed, and leave; clients send requests and cancel them; time passes. Whatever nodes send, every request ends
// exactly once, with tokens of the vocabulary and at most max_tokens of them. What the router sends to nodes agrees
// with what its clients have sent and received, and no account is left of requests that have ended.
#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "base/version.h"
#include "proto/unpack.h"
#include "router/core/core_state.h"
#include "router/front/node_link.h"
#include "tests/fuzz/fuzz.h"

enum { LINKS = 4, REQUESTS_MAX = 40, RESULTS_MAX = 6, TOKENS_MAX = 40, RANGES_MAX = 4, VOCAB = 100, TICKS_MAX = 1000 };
enum { PROMPT_MAX = 200, CHOICES_MAX = 4, TURNS_MAX = 3, SENT_MAX = 8, DRAFT_MAX = 70 };
enum { TAIL_TOKENS = 8, USUAL_TOKEN = 10 };
enum { UNPACKED_MAX = 1 << 20 };
enum { SECOND_US = 1000000 };

typedef Forepack__Cluster__V1__NodeMessage node_message;

// What the router has sent to a node lately, so that the node can answer it.
struct sent {
    uint64_t request;
    int n; // tokens of the prompt to score
};

struct end {
    struct node_link link; // first: the link's functions get this
    bool open, finished;
    struct sent sent[SENT_MAX]; // the latest replaces the oldest
    unsigned n_sent;
};

struct client {
    uint64_t number;
    int head, shift; // of its prompt: tokens that are the same for all clients, and what the others are
    int tokens, max_tokens, prompt_tokens, ends;
    int32_t answer[TOKENS_MAX];
    int logprobs_left; // of prompt tokens
    bool has_quality, is_drafted;
    const struct end *group; // the worker group that it was sent to last
    int advanced;            // tokens that a speculator was sent
};

static struct world {
    struct core *core;
    struct end ends[LINKS];
    struct client clients[REQUESTS_MAX];
    int n_clients;
    int64_t now_us;
} w;

// --- what the core sends

static struct client *client_of(uint64_t number)
{
    FUZZ_CHECK(number >= 1 && number <= (uint64_t)w.n_clients);
    struct client *client = &w.clients[number - 1];
    FUZZ_CHECK(!client->ends);
    return client;
}

static int32_t prompt_token(const struct client *client, int i)
{
    return (i < client->head ? i : i + client->shift) % VOCAB;
}

static void note_sent(struct end *end, uint64_t request, size_t n)
{
    end->sent[end->n_sent++ % SENT_MAX] = (struct sent){request, (int)n};
}

static void check_prompt(const struct client *client, const uint32_t *ids, size_t n)
{
    FUZZ_CHECK(n <= (size_t)client->prompt_tokens);
    for (size_t i = 0; i < n; i++)
        FUZZ_CHECK(ids[i] == (uint32_t)prompt_token(client, (int)i));
}

static void score_item_sent(struct end *end, const Forepack__Cluster__V1__ScoreItem *m)
{
    const struct client *client = client_of(m->request);
    size_t n = m->n_token_ids, whole = (size_t)client->prompt_tokens;
    check_prompt(client, m->token_ids, n);
    FUZZ_CHECK(n >= 1 && m->hold == (client->is_drafted && n == whole) && !client->tokens);
    FUZZ_CHECK(m->budget_tokens <= n && m->tail_tokens <= n / 4);
    FUZZ_CHECK(m->quality_given_case ? client->has_quality && m->quality > 0 && m->quality <= 1 && !m->budget_tokens
                                     : m->keep_rate > 0 && m->keep_rate <= 1);
    for (size_t k = 0; k < m->n_pinned; k++)
        FUZZ_CHECK(m->pinned[k]->first <= m->pinned[k]->last && m->pinned[k]->last < n);
    note_sent(end, m->request, n);
}

// Kept tokens, then those that the client has received.
static void sequence_sent(struct end *end, const Forepack__Cluster__V1__Sequence *m)
{
    struct client *client = client_of(m->request);
    bool has_token[PROMPT_MAX] = {false};
    size_t at = 0;
    for (size_t k = 0; k < m->n_kept; k++) {
        FUZZ_CHECK(m->kept[k]->last < (uint32_t)client->prompt_tokens);
        for (uint32_t i = m->kept[k]->first; i <= m->kept[k]->last; i++, at++) {
            FUZZ_CHECK(!has_token[i] && m->token_ids[at] == (uint32_t)prompt_token(client, (int)i));
            has_token[i] = true;
        }
    }
    FUZZ_CHECK(at && m->generated == (uint32_t)client->tokens && at + m->generated == m->n_token_ids);
    for (uint32_t i = 0; i < m->generated; i++)
        FUZZ_CHECK(m->token_ids[at + i] == (uint32_t)client->answer[i]);
    FUZZ_CHECK(m->prompt_tokens == (uint32_t)client->prompt_tokens && m->drafts == client->is_drafted);
    FUZZ_CHECK(m->n_draft_ids <= (client->is_drafted ? LOOK_AHEAD_MAX : 0));
    for (size_t i = 0; i < m->n_draft_ids; i++)
        FUZZ_CHECK(m->draft_ids[i] < VOCAB);
    client->group = end;
    note_sent(end, m->request, at);
}

// Tokens that the client has received, each once.
static void advance_sent(struct end *end, const Forepack__Cluster__V1__Advance *m)
{
    struct client *client = client_of(m->request);
    FUZZ_CHECK(client->is_drafted && m->n_token_ids && m->from == (uint32_t)client->advanced);
    FUZZ_CHECK(m->ahead >= 1 && m->ahead <= 2 * (LOOK_AHEAD_MAX + 1));
    client->advanced += (int)m->n_token_ids;
    FUZZ_CHECK(client->advanced == client->tokens);
    for (size_t i = 0; i < m->n_token_ids; i++)
        FUZZ_CHECK(m->token_ids[i] == (uint32_t)client->answer[m->from + i]);
    check_prompt(client, m->prompt_ids, m->n_prompt_ids);
    FUZZ_CHECK(!m->n_prompt_ids || (!m->from && m->n_prompt_ids == (size_t)client->prompt_tokens));
    note_sent(end, m->request, m->n_token_ids);
}

// Guesses at tokens that the client has not received.
static void draft_sent(const struct end *end, const Forepack__Cluster__V1__Draft *m)
{
    const struct client *client = client_of(m->request);
    FUZZ_CHECK(client->is_drafted && client->group == end && !m->released);
    FUZZ_CHECK(m->from == (uint32_t)client->tokens && m->n_token_ids >= 1 && m->n_token_ids <= NODE_DRAFT_MAX);
    for (size_t i = 0; i < m->n_token_ids; i++)
        FUZZ_CHECK(m->token_ids[i] < VOCAB);
}

static void work_sent(struct end *end, enum node_role role, const Forepack__Cluster__V1__RouterMessage *message)
{
    switch (message->kind_case) {
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_SCORE_BIN:
        FUZZ_CHECK(role == NODE_SPECULATOR);
        for (size_t i = 0; i < message->score_bin->n_items; i++)
            score_item_sent(end, message->score_bin->items[i]);
        break;
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN:
        FUZZ_CHECK(role == NODE_WORKER);
        for (size_t i = 0; i < message->prefill_bin->n_sequences; i++)
            sequence_sent(end, message->prefill_bin->sequences[i]);
        break;
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_ADVANCES:
        FUZZ_CHECK(role == NODE_SPECULATOR);
        for (size_t i = 0; i < message->advances->n_advances; i++)
            advance_sent(end, message->advances->advances[i]);
        break;
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_DRAFTS:
        FUZZ_CHECK(role == NODE_WORKER && message->drafts->n_drafts);
        for (size_t i = 0; i < message->drafts->n_drafts; i++)
            draft_sent(end, message->drafts->drafts[i]);
        break;
    default: break;
    }
}

static void end_send(struct node_link *link, const Forepack__Cluster__V1__RouterMessage *message)
{
    struct end *end = (struct end *)link;
    FUZZ_CHECK(end->open);
    uint8_t *bytes = malloc(forepack__cluster__v1__router_message__get_packed_size(message));
    FUZZ_CHECK(forepack__cluster__v1__router_message__pack(message, bytes));
    free(bytes);
    if (link->node) work_sent(end, link->node->hello.role, message);
}

static void end_finish(struct node_link *link, enum status status, const char *reason)
{
    ((struct end *)link)->finished = true;
}

static const char *end_peer(const struct node_link *link)
{
    return "fuzz";
}

static const struct node_link_ops end_ops = {end_send, end_finish, end_peer};

static void ready_changed(void *user, bool ready)
{
}

static bool client_tokens(void *user, const int32_t *tokens, const struct token_logprob *logprobs, int n, int *n_used_p)
{
    struct client *client = user;
    FUZZ_CHECK(n >= 1 && !client->ends && !client->logprobs_left);
    FUZZ_CHECK(client->tokens + n <= client->max_tokens);
    for (int i = 0; i < n; i++) {
        FUZZ_CHECK(tokens[i] >= 0 && tokens[i] < VOCAB);
        client->answer[client->tokens++] = tokens[i];
    }
    *n_used_p = n;
    return tokens[n - 1] == 7; // completes a stop string
}

static void client_prompt_logprobs(void *user, const struct token_logprob *logprobs, int n)
{
    struct client *client = user;
    client->logprobs_left -= n;
    FUZZ_CHECK(n >= 1 && !client->ends && !client->tokens && client->logprobs_left >= 0);
}

// The kept tokens are of the prompt, each once.
static void check_kept(const struct client *client, const struct request *r)
{
    struct token_range *kept;
    int n_ranges = request_sort_kept(r, &kept), n = 0, next = 0;
    for (int k = 0; k < n_ranges; k++) {
        FUZZ_CHECK(kept[k].first >= next && kept[k].last >= kept[k].first);
        next = kept[k].last + 1;
        n += next - kept[k].first;
    }
    free(kept);
    FUZZ_CHECK(next <= client->prompt_tokens && n == request_kept_tokens(r));
    FUZZ_CHECK(!n_ranges || (r->keep_rate > 0 && r->keep_rate <= 1));
}

static void client_done(void *user, const struct request *r, enum finish_reason reason, enum status status,
                        const char *message)
{
    struct client *client = user;
    const struct request_usage *u = &r->usage;
    FUZZ_CHECK(!client->ends++ && u->completion_tokens == client->tokens);
    FUZZ_CHECK((reason == FINISH_REASON_STOP || reason == FINISH_REASON_LENGTH) == (status == STATUS_OK));
    FUZZ_CHECK(utf8_valid(message, strlen(message), NULL) && (status == STATUS_OK) == !*message);
    FUZZ_CHECK(u->cached_tokens <= client->prompt_tokens + client->max_tokens);
    FUZZ_CHECK(u->draft_accepted_tokens >= 0 && u->draft_accepted_tokens <= u->draft_tokens);
    FUZZ_CHECK(u->draft_accepted_tokens <= u->completion_tokens);
    FUZZ_CHECK(u->frozen_tokens >= 0 && u->recalled_tokens >= 0 &&
               u->frozen_tokens + u->recalled_tokens <= u->kept_tokens);
    check_kept(client, r);
}

// --- clients

static void turn_fill(struct fuzz_script *script, struct prompt_turn *turn)
{
    turn->n_pinned = fuzz_below(script, 3);
    turn->pinned = mem_alloc_array((size_t)turn->n_pinned, sizeof *turn->pinned);
    for (int k = 0; k < turn->n_pinned; k++) {
        int32_t first = fuzz_byte(script) % turn->end, last = first + fuzz_byte(script) % 8;
        turn->pinned[k] = (struct token_range){first, last < turn->end ? last : turn->end - 1};
    }
}

// Finished turns, of which the first may be a beginning that others share.
static void turns_fill(struct fuzz_script *script, struct request_spec *spec)
{
    int n = 1 + fuzz_below(script, TURNS_MAX), end = 0;
    spec->turns = mem_alloc_array((size_t)n, sizeof *spec->turns);
    for (int t = 0; t < n; t++) {
        struct prompt_turn turn = {.end = end + 1 + fuzz_byte(script) % 60};
        turn.answer_end = turn.end + fuzz_byte(script) % 20;
        if (t && turn.answer_end == turn.end) turn.answer_end++;
        if (turn.answer_end >= spec->n_tokens) return;
        end = turn.answer_end;
        turn_fill(script, &turn);
        spec->turns[spec->n_turns++] = turn;
    }
}

static void quality_fill(struct fuzz_script *script, struct prefill *prefill)
{
    static const double qualities[] = {0.5, 0.9, 0.99, 1};
    int byte = fuzz_byte(script);
    prefill->quality = qualities[byte % 4];
    if (byte & 4) prefill->keep_rate = 1;  // where no calibration applies, all tokens are kept
    if (byte & 8) prefill->look_ahead = 4; // other options than those of the calibration
}

static void more_fill(struct fuzz_script *script, struct request_spec *spec)
{
    int flags = fuzz_byte(script);
    if (flags & 1) quality_fill(script, &spec->prefill);
    if (flags & 2) spec->prefill.drafts = DRAFTS_OFF;
    if (flags & 4) turns_fill(script, spec);
    if (flags & 8) spec->prefill.conversation = false;
    if (flags & 16) spec->prefill.chunk_tokens = fuzz_below(script, 40);
    if (flags & 32) spec->prefill.keep_rate = 1 / (1.0 + fuzz_byte(script));
    if (flags & 64) spec->sampling.repetition_penalty = 1.5; // pruned tokens are sent, too
    if (!(flags & 128) || spec->score_only || spec->sampling.prompt_logprobs >= 0) return;
    spec->want_importance = true;
}

static void spec_fill(struct fuzz_script *script, struct client *client, struct request *r)
{
    int flags;
    client->prompt_tokens = 1 + fuzz_below(script, PROMPT_MAX);
    r->id = mem_format("r%d", fuzz_below(script, 50));
    r->spec.n_tokens = client->prompt_tokens;
    r->spec.tokens = mem_alloc_array((size_t)r->spec.n_tokens, sizeof *r->spec.tokens);
    client->head = fuzz_byte(script);
    client->shift = (int)client->number;
    for (int i = 0; i < r->spec.n_tokens; i++)
        r->spec.tokens[i] = prompt_token(client, i);
    sampling_defaults(&r->spec.sampling);
    prefill_defaults(&r->spec.prefill);
    r->spec.sampling.max_tokens = client->max_tokens;
    r->spec.prefill.mode = (enum prefill_mode)fuzz_below(script, 4);
    flags = fuzz_byte(script);
    if (flags % 16 == 5) {
        r->spec.sampling.prompt_logprobs = 1;
        r->spec.prefill.mode = PREFILL_OFF;
        client->logprobs_left = r->spec.n_tokens - 1;
    }
    r->spec.score_only = r->spec.want_importance = flags % 8 == 7;
    r->spec.priority = flags / 8 % 3 - 1;
    r->spec.tenant = flags & 32 ? mem_string("t") : NULL;
    r->spec.arrived_us = w.now_us;
    r->spec.ttft_deadline_us = flags & 64 ? w.now_us + SECOND_US : INT64_MAX;
    if (flags & 128) more_fill(script, &r->spec);
}

static void client_submit(struct client *client, struct request *r)
{
    r->number = r->sched.number = client->number; // not the process's next one: the same for the same input
    client->has_quality = r->spec.prefill.quality > 0;
    client->is_drafted = request_is_drafted(r);
    r->sink = (struct request_sink){client_tokens, client_prompt_logprobs, client_done, client};
    request_set_state(r, REQUEST_TOKENISED);
    core_submit(w.core, r, w.now_us);
}

static void request_submit(struct fuzz_script *script)
{
    if (w.n_clients == REQUESTS_MAX) return;
    struct client *client = &w.clients[w.n_clients];
    struct request *r = request_create();
    *client = (struct client){.number = (uint64_t)++w.n_clients, .max_tokens = 1 + fuzz_below(script, 30)};
    spec_fill(script, client, r);
    client_submit(client, r);
}

// Choices of one prompt, which share its score.
static void choices_submit(struct fuzz_script *script)
{
    struct request *choices[CHOICES_MAX] = {request_create()};
    int n = 2 + fuzz_below(script, CHOICES_MAX - 1), from = w.n_clients;
    if (from + n > REQUESTS_MAX) n = 1;
    struct client first = {.number = (uint64_t)from + 1, .max_tokens = 1 + fuzz_below(script, 30)};
    spec_fill(script, &first, choices[0]);
    for (int i = 1; i < n; i++) {
        choices[i] = request_create();
        request_copy_spec(choices[0], choices[i]);
        choices[i]->score_with = first.number;
    }
    if (from == REQUESTS_MAX) {
        request_free(choices[0]);
        return;
    }
    for (int i = 0; i < n; i++) {
        w.clients[w.n_clients++] = first;
        w.clients[from + i].number = first.number + (uint64_t)i;
        client_submit(&w.clients[from + i], choices[i]);
    }
}

// --- messages of nodes

static uint64_t any_request(struct fuzz_script *script)
{
    int byte = fuzz_byte(script);
    return byte < 200 && w.n_clients ? w.clients[byte % w.n_clients].number : fuzz_number(script);
}

static const struct sent *any_sent(struct fuzz_script *script, const struct end *end)
{
    static const struct sent none = {0, 1};
    unsigned n = end->n_sent < SENT_MAX ? end->n_sent : SENT_MAX, back = fuzz_byte(script);
    return n ? &end->sent[(end->n_sent - 1 - back % n) % SENT_MAX] : &none;
}

static char *any_text(struct fuzz_script *script)
{
    static char long_text[600]; // two bytes a character: a cut may be inside one
    static char *const texts[] = {"", "it broke", "bad \xff\xfe", "a", "node-0", "node-1", long_text};
    for (size_t i = 1; i < sizeof long_text - 1; i++)
        long_text[i] = i % 2 ? '\xc3' : '\xa9';
    long_text[0] = 'x';
    return texts[fuzz_below(script, 7)];
}

// For the default options, unless bits of `flags` say otherwise.
static void calibration_fill(struct fuzz_script *script, int flags, Forepack__Cluster__V1__Hello *m)
{
    static Forepack__Cluster__V1__Calibration calibration;
    struct prefill options;
    prefill_defaults(&options);
    forepack__cluster__v1__calibration__init(&calibration);
    calibration.fingerprint = flags & 1 ? fuzz_number(script) : 9;
    calibration.main_fingerprint = flags & 2 ? fuzz_number(script) : 5;
    calibration.look_ahead = flags & 4 ? (uint32_t)fuzz_number(script) : (uint32_t)options.look_ahead;
    calibration.chunk_tokens = flags & 8 ? (int32_t)fuzz_number(script) : options.chunk_tokens;
    calibration.pool_window = flags & 16 ? (uint32_t)fuzz_number(script) : (uint32_t)options.pool_window;
    calibration.tail_tokens = flags & 32 ? (uint32_t)fuzz_number(script) : TAIL_TOKENS;
    m->calibration = flags & 64 ? NULL : &calibration;
    m->prefix_cache = !(flags & 128);
}

// Each bit of `flags` makes one field wrong or different.
static void hello_fill(struct fuzz_script *script, int node, Forepack__Cluster__V1__Hello *m)
{
    static char *const ids[LINKS] = {"node-0", "node-1", "node-2", "node-3"};
    static uint32_t eos_ids[] = {2};
    int flags = fuzz_byte(script), more = flags & 128 ? fuzz_byte(script) : 0;
    forepack__cluster__v1__hello__init(m);
    m->node_id = flags & 1 ? any_text(script) : ids[node];
    m->role = flags & 2  ? (Forepack__Cluster__V1__Role)fuzz_number(script)
              : node % 2 ? FOREPACK__CLUSTER__V1__ROLE__ROLE_SPECULATOR
                         : FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER;
    m->host = m->version = m->backend = m->dtype = m->kv_dtype = "x";
    if (more & 1) m->host = any_text(script);
    if (more & 2) m->dtype = any_text(script);
    m->ranks = more & 4 ? (uint32_t)fuzz_number(script) : 1;
    m->model_fingerprint = more & 8 ? fuzz_number(script) : 5;
    m->tokenizer_fingerprint = more & 16 ? fuzz_number(script) : 77;
    m->vocab_size = more & 32 ? (uint32_t)fuzz_number(script) : VOCAB;
    m->protocol = more & 64 ? (uint32_t)fuzz_number(script) : CLUSTER_PROTOCOL_VERSION;
    m->instance = more & 128 ? fuzz_number(script) : (uint64_t)node + 1;
    m->context_tokens = flags & 4 ? (uint32_t)fuzz_number(script) : 256;
    m->token_budget = flags & 8 ? (uint32_t)fuzz_number(script) : 128;
    m->block_tokens = 16;
    m->kv_blocks = flags & 16 ? (uint32_t)fuzz_number(script) : 64;
    m->max_seqs = flags & 32 ? (uint32_t)fuzz_number(script) : 8;
    if (flags & 64) m->block_tokens = (uint32_t)fuzz_number(script);
    m->eos_token_ids = eos_ids;
    m->n_eos_token_ids = 1;
    calibration_fill(script, flags & 128 ? fuzz_byte(script) : 0, m);
}

static void heartbeat_fill(struct fuzz_script *script, Forepack__Cluster__V1__Heartbeat *m)
{
    forepack__cluster__v1__heartbeat__init(m);
    m->kv_blocks_free = (uint32_t)fuzz_number(script);
    m->running = (uint32_t)fuzz_number(script);
    m->waiting = (uint32_t)fuzz_number(script);
    m->progress = fuzz_number(script);
    m->last_bin = fuzz_number(script);
    m->preemptions = fuzz_number(script);
    m->held_prompts = (uint32_t)fuzz_number(script);
    m->held_kv_blocks = (uint32_t)fuzz_number(script);
}

// The parts of results, which messages refer to.
static struct parts {
    uint32_t tokens[RESULTS_MAX][TOKENS_MAX], top_ids[2];
    uint32_t draft_ids[DRAFT_MAX], usual_ids[TOKENS_MAX + DRAFT_MAX];
    float importance[256], top_logprobs[2];
    Forepack__Cluster__V1__TokenLogprob logprob, *logprobs[TOKENS_MAX];
    Forepack__Cluster__V1__Range ranges[RESULTS_MAX][RANGES_MAX], *range_list[RESULTS_MAX][RANGES_MAX];
    Forepack__Cluster__V1__SequenceResult sequences[RESULTS_MAX], *sequence_list[RESULTS_MAX];
    Forepack__Cluster__V1__ScoreResult scores[RESULTS_MAX], *score_list[RESULTS_MAX];
    Forepack__Cluster__V1__Draft drafts[RESULTS_MAX], *draft_list[RESULTS_MAX];
} parts;

static void parts_clear(void)
{
    memset(&parts, 0, sizeof parts);
    for (size_t i = 0; i < sizeof parts.usual_ids / sizeof *parts.usual_ids; i++)
        parts.usual_ids[i] = USUAL_TOKEN;
    for (int i = 0; i < RESULTS_MAX; i++) {
        for (int k = 0; k < RANGES_MAX; k++)
            parts.range_list[i][k] = &parts.ranges[i][k];
        parts.sequence_list[i] = &parts.sequences[i];
        parts.score_list[i] = &parts.scores[i];
        parts.draft_list[i] = &parts.drafts[i];
    }
}

static void logprobs_fill(struct fuzz_script *script, Forepack__Cluster__V1__SequenceResult *m)
{
    Forepack__Cluster__V1__TokenLogprob *logprob = &parts.logprob;
    forepack__cluster__v1__token_logprob__init(logprob);
    logprob->token_id = (uint32_t)fuzz_number(script);
    logprob->logprob = (float)fuzz_real(script);
    logprob->n_top_ids = (size_t)fuzz_below(script, 3);
    logprob->n_top_logprobs = (size_t)fuzz_below(script, 3);
    logprob->top_ids = parts.top_ids;
    logprob->top_logprobs = parts.top_logprobs;
    for (int i = 0; i < TOKENS_MAX; i++)
        parts.logprobs[i] = logprob;
    m->n_logprobs = m->n_token_ids + (size_t)(fuzz_byte(script) > 250);
    if (m->n_logprobs > TOKENS_MAX) m->n_logprobs = TOKENS_MAX;
    m->logprobs = parts.logprobs;
}

// Of the tokens that spec_fill() gives the prompt of the request, from `from` on.
static void prompt_logprobs_fill(struct fuzz_script *script, Forepack__Cluster__V1__SequenceResult *m)
{
    static Forepack__Cluster__V1__TokenLogprob logprobs[PROMPT_MAX], *list[PROMPT_MAX];
    int head = fuzz_byte(script), flags = fuzz_byte(script);
    uint32_t shift = 0;
    m->prompt_logprobs = list;
    m->n_prompt_logprobs = (size_t)(1 + fuzz_below(script, PROMPT_MAX));
    m->prompt_logprobs_from = flags & 1 ? (uint32_t)fuzz_number(script) : 1;
    if (flags & 2) m->n_token_ids = 0;
    if (m->request - 1 < (uint64_t)w.n_clients) shift = (uint32_t)w.clients[m->request - 1].shift;
    for (uint32_t i = 0; i < m->n_prompt_logprobs; i++) {
        uint32_t at = m->prompt_logprobs_from + i;
        list[i] = &logprobs[i];
        forepack__cluster__v1__token_logprob__init(list[i]);
        list[i]->token_id = (at < (uint32_t)head ? at : at + shift) % VOCAB;
        list[i]->rank = at;
    }
}

static void sequence_fill(struct fuzz_script *script, int i)
{
    Forepack__Cluster__V1__SequenceResult *m = parts.sequence_list[i];
    int flags = fuzz_byte(script);
    forepack__cluster__v1__sequence_result__init(m);
    m->request = any_request(script);
    m->n_token_ids = flags & 1 ? (size_t)fuzz_below(script, TOKENS_MAX) : 1;
    m->token_ids = parts.tokens[i];
    for (size_t k = 0; k < m->n_token_ids; k++)
        m->token_ids[k] = flags & 2 ? (uint32_t)fuzz_number(script) : (uint32_t)(10 + k);
    if (flags & 4) m->finish = (Forepack__Cluster__V1__Finish)fuzz_below(script, 6);
    if (flags & 8) m->error = any_text(script);
    if (flags & 16) m->cached_tokens = (uint32_t)fuzz_number(script);
    if (flags & 32) logprobs_fill(script, m);
    if (flags & 64) prompt_logprobs_fill(script, m);
    if (flags & 128) m->draft_tokens = (uint32_t)fuzz_number(script);
    if (flags & 128) m->draft_accepted_tokens = (uint32_t)fuzz_number(script);
}

static void step_fill(struct fuzz_script *script, Forepack__Cluster__V1__StepResults *m)
{
    static const uint32_t draft_lengths[] = {0, 1, 4, UINT32_MAX};
    int byte = fuzz_byte(script);
    forepack__cluster__v1__step_results__init(m);
    m->n_results = (size_t)byte % (RESULTS_MAX + 1);
    m->draft_length = draft_lengths[byte / (RESULTS_MAX + 1) % 4];
    m->results = parts.sequence_list;
    for (int i = 0; i < (int)m->n_results; i++)
        sequence_fill(script, i);
    m->step_us = (uint32_t)fuzz_number(script);
    m->rows = (uint32_t)fuzz_number(script);
    m->pairs = fuzz_number(script);
}

// What the worker group would send: the usual tokens.
static void sequence_answer(struct fuzz_script *script, const struct end *end, int i)
{
    Forepack__Cluster__V1__SequenceResult *m = parts.sequence_list[i];
    uint32_t flags = fuzz_byte(script), accepted = flags % 4;
    forepack__cluster__v1__sequence_result__init(m);
    m->request = any_sent(script, end)->request;
    m->n_token_ids = 1 + accepted;
    m->token_ids = parts.usual_ids;
    m->draft_accepted_tokens = accepted;
    m->draft_tokens = accepted + flags / 4 % 4;
    if (flags >= 224) m->finish = FOREPACK__CLUSTER__V1__FINISH__FINISH_STOP;
}

static void step_answer(struct fuzz_script *script, const struct end *end, Forepack__Cluster__V1__StepResults *m)
{
    forepack__cluster__v1__step_results__init(m);
    m->n_results = 1 + (size_t)fuzz_below(script, RESULTS_MAX);
    m->results = parts.sequence_list;
    m->step_us = 1000;
    m->draft_length = 4;
    for (int i = 0; i < (int)m->n_results; i++) {
        sequence_answer(script, end, i);
        m->rows += 1 + m->results[i]->draft_tokens;
    }
    m->pairs = m->rows * UINT64_C(50);
}

static void choice_fill(struct fuzz_script *script, Forepack__Cluster__V1__ScoreResult *m)
{
    m->keep_rate = fuzz_real(script);
    m->rate_reason = (Forepack__Cluster__V1__RateReason)fuzz_number(script);
    m->steps = m->score_us = (uint32_t)fuzz_number(script);
}

static void look_ahead_fill(struct fuzz_script *script, Forepack__Cluster__V1__ScoreResult *m)
{
    m->draft_ids = parts.draft_ids;
    m->n_draft_ids = (size_t)fuzz_below(script, DRAFT_MAX + 1);
    parts.draft_ids[0] = (uint32_t)fuzz_number(script);
}

static void score_fill(struct fuzz_script *script, int i)
{
    Forepack__Cluster__V1__ScoreResult *m = parts.score_list[i];
    int flags = fuzz_byte(script);
    forepack__cluster__v1__score_result__init(m);
    m->request = any_request(script);
    m->n_kept = (size_t)fuzz_below(script, RANGES_MAX + 1);
    m->kept = parts.range_list[i];
    for (size_t k = 0; k < m->n_kept; k++) {
        Forepack__Cluster__V1__Range *range = m->kept[k];
        forepack__cluster__v1__range__init(range);
        range->first = flags & 1 ? (uint32_t)fuzz_number(script) : (uint32_t)(20 * k);
        range->last = flags & 1 ? (uint32_t)fuzz_number(script) : (uint32_t)(20 * k + 5);
    }
    m->importance = parts.importance;
    if (flags & 2) m->n_importance = fuzz_byte(script);
    if (flags & 4) m->importance[0] = (float)fuzz_real(script);
    if (flags & 8) m->error = any_text(script);
    if (flags & 16) m->cached_tokens = (uint32_t)fuzz_number(script);
    if (flags & 32) choice_fill(script, m);
    if (flags & 64) look_ahead_fill(script, m);
}

// What the speculator would send: so many of the last tokens as the rate keeps, perhaps a part of them at the front.
static void score_answer(struct fuzz_script *script, const struct end *end, int i)
{
    static const double rates[] = {0.3, 0.05, 0.6, 1};
    Forepack__Cluster__V1__ScoreResult *m = parts.score_list[i];
    const struct sent *sent = any_sent(script, end);
    int flags = fuzz_byte(script);
    uint32_t n = (uint32_t)sent->n, budget = (uint32_t)prefill_keep_budget(sent->n, rates[flags % 4]), front = 0;
    forepack__cluster__v1__score_result__init(m);
    if (flags & 4 && budget < n) front = budget / 2;
    m->request = sent->request;
    m->kept = parts.range_list[i];
    m->n_kept = front ? 2 : 1;
    for (int k = 0; k < 2; k++)
        forepack__cluster__v1__range__init(m->kept[k]);
    if (front) m->kept[0]->last = front - 1;
    m->kept[m->n_kept - 1]->first = n - budget + front;
    m->kept[m->n_kept - 1]->last = n - 1;
    m->keep_rate = rates[flags % 4];
    m->rate_reason = flags & 8 && m->keep_rate == 1 ? FOREPACK__CLUSTER__V1__RATE_REASON__RATE_UNSURE
                                                    : FOREPACK__CLUSTER__V1__RATE_REASON__RATE_QUALITY;
    m->importance = parts.importance;
    m->n_importance = n;
    m->draft_ids = parts.usual_ids;
    m->n_draft_ids = (size_t)flags / 16 % 8;
    m->steps = 8;
}

static void scores_answer(struct fuzz_script *script, const struct end *end, Forepack__Cluster__V1__ScoreResults *m)
{
    forepack__cluster__v1__score_results__init(m);
    m->n_results = 1 + (size_t)fuzz_below(script, RESULTS_MAX);
    m->results = parts.score_list;
    for (int i = 0; i < (int)m->n_results; i++)
        score_answer(script, end, i);
    m->pass_us = 1000;
    m->rows = 100;
    m->pairs = 5000;
}

static void scores_fill(struct fuzz_script *script, Forepack__Cluster__V1__ScoreResults *m)
{
    forepack__cluster__v1__score_results__init(m);
    m->n_results = (size_t)fuzz_below(script, RESULTS_MAX + 1);
    m->results = parts.score_list;
    for (int i = 0; i < (int)m->n_results; i++)
        score_fill(script, i);
    m->pass_us = (uint32_t)fuzz_number(script);
    m->rows = (uint32_t)fuzz_number(script);
    m->pairs = fuzz_number(script);
}

// The usual tokens behind those that the client has, or from earlier ones on.
static void draft_fill(struct fuzz_script *script, const struct end *end, int i)
{
    Forepack__Cluster__V1__Draft *m = parts.draft_list[i];
    int flags = fuzz_byte(script);
    uint64_t number = flags & 1 ? any_request(script) : any_sent(script, end)->request;
    uint32_t tokens = number - 1 < (uint64_t)w.n_clients ? (uint32_t)w.clients[number - 1].tokens : 0;
    uint32_t back = flags & 2 ? fuzz_byte(script) % 8u : 0;
    forepack__cluster__v1__draft__init(m);
    if (back > tokens) back = tokens;
    m->request = number;
    m->from = flags & 4 ? (uint32_t)fuzz_number(script) : tokens - back;
    m->n_token_ids = flags & 8 ? (size_t)fuzz_below(script, DRAFT_MAX + 1) : back + 3;
    m->token_ids = flags & 16 ? parts.draft_ids : parts.usual_ids;
    if (flags & 16) parts.draft_ids[0] = (uint32_t)fuzz_number(script);
    m->released = flags & 32;
}

static void drafts_fill(struct fuzz_script *script, const struct end *end, Forepack__Cluster__V1__Drafts *m)
{
    forepack__cluster__v1__drafts__init(m);
    m->n_drafts = (size_t)fuzz_below(script, RESULTS_MAX + 1);
    m->drafts = parts.draft_list;
    for (int i = 0; i < (int)m->n_drafts; i++)
        draft_fill(script, end, i);
}

// --- the script

static void end_close(struct end *end)
{
    node_link_closed(&end->link, w.core, w.now_us);
    end->open = false;
}

// Packed and unpacked again, as between a node and the router.
static void bytes_handle(struct end *end, const uint8_t *bytes, size_t n)
{
    if (!end->open)
        *end = (struct end){.link = {.ops = &end_ops, .heartbeat_ms = 1000, .tail_tokens = TAIL_TOKENS}, .open = true};
    node_message *m = proto_unpack(&forepack__cluster__v1__node_message__descriptor, bytes, n, UNPACKED_MAX, NULL);
    if (m) node_link_handle(&end->link, w.core, m, w.now_us);
    if (m) forepack__cluster__v1__node_message__free_unpacked(m, NULL);
    if (!m) end_close(end);
}

static void message_handle(struct end *end, const node_message *m)
{
    size_t n = forepack__cluster__v1__node_message__get_packed_size(m);
    uint8_t *bytes = malloc(n + 1);
    forepack__cluster__v1__node_message__pack(m, bytes);
    bytes_handle(end, bytes, n);
    free(bytes);
}

// `answers`: as a node would that has read what it was sent.
static void message_send(struct fuzz_script *script, int node, int kind, bool answers)
{
    struct end *end = &w.ends[node];
    node_message m = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    Forepack__Cluster__V1__Hello hello;
    Forepack__Cluster__V1__Heartbeat heartbeat;
    Forepack__Cluster__V1__ScoreResults scored;
    Forepack__Cluster__V1__StepResults step;
    Forepack__Cluster__V1__Drafts drafts;
    Forepack__Cluster__V1__Draining draining = FOREPACK__CLUSTER__V1__DRAINING__INIT;
    m.kind_case = (Forepack__Cluster__V1__NodeMessage__KindCase)kind;
    switch (kind) {
    case FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HELLO: hello_fill(script, node, m.hello = &hello); break;
    case FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HEARTBEAT: heartbeat_fill(script, m.heartbeat = &heartbeat); break;
    case FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_SCORED:
        m.scored = &scored;
        answers ? scores_answer(script, end, &scored) : scores_fill(script, &scored);
        break;
    case FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP:
        m.step = &step;
        answers ? step_answer(script, end, &step) : step_fill(script, &step);
        break;
    case FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_DRAFTS: drafts_fill(script, end, m.drafts = &drafts); break;
    default: m.draining = &draining;
    }
    message_handle(end, &m);
}

// --- accounts

static void check_node(const struct core_node *node)
{
    const struct node_account *account = &node->sched.account;
    int n_drafted = 0, n = 0;
    for (const struct request *r = node->drafted; r; r = r->drafting.next, n_drafted++)
        FUZZ_CHECK(r->drafting.node == node && request_is_drafted(r) && !w.clients[r->number - 1].ends);
    for (const struct sched_request *r = account->requests.first; r; r = r->next, n++)
        FUZZ_CHECK(request_of(r)->account.node == node && !w.clients[r->number - 1].ends);
    FUZZ_CHECK(n_drafted == node->n_drafted && n == account->requests.count);
    FUZZ_CHECK(node->draft_length >= 0 && node->draft_length <= LOOK_AHEAD_MAX);
    if (n) return;
    FUZZ_CHECK(!account->bins && !account->bin_tokens && !account->kv_blocks && !account->requests_in_bins);
}

static void check_accounts(void)
{
    const struct core *c = w.core;
    int n = 0;
    for (const struct core_node *node = core_first_node(c); node; node = core_node_next(node))
        check_node(node);
    for (int i = 0; i < w.n_clients; i++)
        n += !w.clients[i].ends;
    FUZZ_CHECK(n == c->table.count);
    if (n) return;
    FUZZ_CHECK(!c->timers.count && !c->ledger.running && !c->view.reservation.request);
    for (int k = 0; k < QUEUE_CLASSES; k++)
        FUZZ_CHECK(!c->ledger.waiting[k].requests && !c->ledger.waiting[k].tokens);
    FUZZ_CHECK(!c->waiting[NODE_SPECULATOR].tenants.n && !c->waiting[NODE_WORKER].tenants.n);
}

// Ends the streams that the core has finished and runs the due work of the core.
static void settle(void)
{
    int ticks = 0;
    do {
        for (int i = 0; i < LINKS; i++)
            if (w.ends[i].open && w.ends[i].finished) end_close(&w.ends[i]);
        FUZZ_CHECK(ticks++ < TICKS_MAX);
        core_tick(w.core, w.now_us);
    } while (core_next_deadline_us(w.core) <= w.now_us);
}

// False: it is no action.
static bool act_more(struct fuzz_script *script, int node, int action)
{
    switch (action) {
    case 0: choices_submit(script); return true;
    case 10:
    case 13: message_send(script, node, FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_DRAFTS, true); return true;
    case 11:
    case 12: message_send(script, node, FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_SCORED, true); return true;
    case 14:
    case 15: message_send(script, node, FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP, true); return true;
    default: return false;
    }
}

static void act(struct fuzz_script *script)
{
    int action = fuzz_byte(script), node = action / 16 % LINKS;
    if (action / 64 == 3 && act_more(script, node, action % 16)) return;
    struct end *end = &w.ends[node];
    switch (action % 16) {
    case 0: request_submit(script); break;
    case 1: core_cancel(w.core, any_request(script), w.now_us); break;
    case 2: core_abort(w.core, "r1", 0, w.now_us); break;
    case 3: w.now_us += 1000 * (int64_t)fuzz_byte(script); break;
    case 4: w.now_us += SECOND_US * (int64_t)fuzz_below(script, 8); break;
    case 5:
        if (end->open) end_close(end);
        break;
    case 6: {
        struct fuzz_script bytes = fuzz_part(script, fuzz_byte(script));
        bytes_handle(end, bytes.at, bytes.left);
        break;
    }
    case 7: message_send(script, node, FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_DRAINING, false); break;
    case 8:
    case 9: message_send(script, node, FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HELLO, false); break;
    case 10: message_send(script, node, FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HEARTBEAT, false); break;
    case 11:
    case 12: message_send(script, node, FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_SCORED, false); break;
    default: message_send(script, node, FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP, false);
    }
}

static struct core *core_open(void)
{
    const struct core_options options = {
        .max_queue_requests = 30,
        .max_queue_tokens = 3000,
        .queue_reserve_percent = 10,
        .max_wait_us = SECOND_US,
        .score_timeout_us = 2 * SECOND_US,
        .stall_us = 5 * SECOND_US,
        .eject_us = 10 * SECOND_US,
        .worker_grace_us = 5 * SECOND_US,
        .heartbeat_us = SECOND_US,
        .min_tokens = 16,
        .tail_tokens = TAIL_TOKENS,
        .selection_bytes = 1 << 14,
        .bins_ahead = 2,
        .tokenizer_fingerprint = 77,
        .vocab_size = VOCAB,
        .hash_key = {1, 2},
    };
    struct core_ops ops = {.ready_changed = ready_changed};
    node_link_core_ops(&ops);
    return core_create(&options, &ops);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_script script = {data, size};
    struct core_status status;
    log_setup("fuzz", LOG_ERROR);
    memset(&w, 0, sizeof w);
    parts_clear();
    w.now_us = 100 * SECOND_US;
    w.core = core_open();
    while (script.left) {
        act(&script);
        settle();
        check_accounts();
    }
    core_get_status(w.core, &status);
    const struct core_totals *totals = &status.totals;
    FUZZ_CHECK(status.waiting >= 0 && status.running >= 0 && status.waiting_tokens >= 0 && status.n_nodes <= LINKS);
    FUZZ_CHECK(totals->draft_accepted_tokens <= totals->draft_tokens);
    FUZZ_CHECK(totals->draft_accepted_tokens <= totals->completion_tokens);
    core_status_fini(&status);
    for (int i = 0; size % 2 && i < w.n_clients; i++) // or all end with the core
        core_cancel(w.core, w.clients[i].number, w.now_us);
    check_accounts();
    core_free(w.core);
    for (int i = 0; i < w.n_clients; i++)
        FUZZ_CHECK(w.clients[i].ends == 1);
    return 0;
}
