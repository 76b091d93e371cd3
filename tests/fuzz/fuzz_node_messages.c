// SPDX-License-Identifier: Apache-2.0
// Messages of nodes into the router's core. The input is a script: nodes attach, send messages that are mostly well
// formed, and leave; clients send requests and cancel them; time passes. Whatever nodes send, every request ends
// exactly once, with tokens of the vocabulary and at most max_tokens of them.
#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "base/version.h"
#include "proto/unpack.h"
#include "router/front/node_link.h"
#include "tests/fuzz/fuzz.h"

enum { LINKS = 4, REQUESTS_MAX = 40, RESULTS_MAX = 6, TOKENS_MAX = 40, RANGES_MAX = 4, VOCAB = 100, TICKS_MAX = 1000 };
enum { PROMPT_MAX = 200 };
enum { UNPACKED_MAX = 1 << 20 };
enum { SECOND_US = 1000000 };

typedef Forepack__Cluster__V1__NodeMessage node_message;

struct end {
    struct node_link link; // first: the link's functions get this
    bool open, finished;
};

struct client {
    uint64_t number;
    int tokens, max_tokens, prompt_tokens, ends;
    int logprobs_left; // of prompt tokens
};

static struct world {
    struct core *core;
    struct end ends[LINKS];
    struct client clients[REQUESTS_MAX];
    int n_clients;
    int64_t now_us;
} w;

// --- what the core sends

static void end_send(struct node_link *link, const Forepack__Cluster__V1__RouterMessage *message)
{
    FUZZ_CHECK(((struct end *)link)->open);
    uint8_t *bytes = malloc(forepack__cluster__v1__router_message__get_packed_size(message));
    FUZZ_CHECK(forepack__cluster__v1__router_message__pack(message, bytes));
    free(bytes);
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
    for (int i = 0; i < n; i++)
        FUZZ_CHECK(tokens[i] >= 0 && tokens[i] < VOCAB);
    client->tokens += n;
    FUZZ_CHECK(client->tokens <= client->max_tokens);
    *n_used_p = n;
    return tokens[n - 1] == 7; // completes a stop string
}

static void client_prompt_logprobs(void *user, const struct token_logprob *logprobs, int n)
{
    struct client *client = user;
    client->logprobs_left -= n;
    FUZZ_CHECK(n >= 1 && !client->ends && !client->tokens && client->logprobs_left >= 0);
}

static void client_done(void *user, const struct request *r, enum finish_reason reason, enum status status,
                        const char *message)
{
    struct client *client = user;
    int kept = 0;
    FUZZ_CHECK(!client->ends++ && r->usage.completion_tokens == client->tokens);
    FUZZ_CHECK((reason == FINISH_REASON_STOP || reason == FINISH_REASON_LENGTH) == (status == STATUS_OK));
    FUZZ_CHECK(utf8_valid(message, strlen(message), NULL) && (status == STATUS_OK) == !*message);
    for (int k = 0; k < r->n_kept_ranges; k++) {
        FUZZ_CHECK(r->kept[k].first >= (k ? r->kept[k - 1].last + 1 : 0) && r->kept[k].last >= r->kept[k].first);
        kept += r->kept[k].last - r->kept[k].first + 1;
    }
    FUZZ_CHECK(kept <= client->prompt_tokens && r->usage.cached_tokens <= client->prompt_tokens + client->max_tokens);
}

// --- clients

static void request_submit(struct fuzz_script *script)
{
    if (w.n_clients == REQUESTS_MAX) return;
    struct client *client = &w.clients[w.n_clients];
    struct request *r = request_create();
    uint64_t number = (uint64_t)++w.n_clients;
    *client = (struct client){.number = number, .max_tokens = 1 + fuzz_below(script, 30)};
    client->prompt_tokens = 1 + fuzz_below(script, PROMPT_MAX);
    r->number = r->sched.number = number; // not the process's next one: the same for the same input
    r->id = mem_format("r%d", fuzz_below(script, 50));
    r->spec.n_tokens = client->prompt_tokens;
    r->spec.tokens = mem_alloc_array((size_t)r->spec.n_tokens, sizeof *r->spec.tokens);
    int head = fuzz_byte(script);
    for (int i = 0; i < r->spec.n_tokens; i++)
        r->spec.tokens[i] = (i < head ? i : i + (int)number) % VOCAB;
    sampling_defaults(&r->spec.sampling);
    prefill_defaults(&r->spec.prefill);
    r->spec.sampling.max_tokens = client->max_tokens;
    r->spec.prefill.mode = (enum prefill_mode)fuzz_below(script, 4);
    int flags = fuzz_byte(script);
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
    r->sink = (struct request_sink){client_tokens, client_prompt_logprobs, client_done, client};
    request_set_state(r, REQUEST_TOKENISED);
    core_submit(w.core, r, w.now_us);
}

// --- messages of nodes

static uint64_t any_request(struct fuzz_script *script)
{
    int byte = fuzz_byte(script);
    return byte < 200 && w.n_clients ? w.clients[byte % w.n_clients].number : fuzz_number(script);
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

// Each bit of `flags` makes one field wrong or different.
static void hello_fill(struct fuzz_script *script, int node, Forepack__Cluster__V1__Hello *m)
{
    static char *const ids[LINKS] = {"node-0", "node-1", "node-2", "node-3"};
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
    m->prefix_cache = true;
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
    float importance[256], top_logprobs[2];
    Forepack__Cluster__V1__TokenLogprob logprob, *logprobs[TOKENS_MAX];
    Forepack__Cluster__V1__Range ranges[RESULTS_MAX][RANGES_MAX], *range_list[RESULTS_MAX][RANGES_MAX];
    Forepack__Cluster__V1__SequenceResult sequences[RESULTS_MAX], *sequence_list[RESULTS_MAX];
    Forepack__Cluster__V1__ScoreResult scores[RESULTS_MAX], *score_list[RESULTS_MAX];
} parts;

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

// Of the tokens that request_submit() gives the prompt of the request, from `from` on.
static void prompt_logprobs_fill(struct fuzz_script *script, Forepack__Cluster__V1__SequenceResult *m)
{
    static Forepack__Cluster__V1__TokenLogprob logprobs[PROMPT_MAX], *list[PROMPT_MAX];
    int head = fuzz_byte(script), flags = fuzz_byte(script);
    m->prompt_logprobs = list;
    m->n_prompt_logprobs = (size_t)(1 + fuzz_below(script, PROMPT_MAX));
    m->prompt_logprobs_from = flags & 1 ? (uint32_t)fuzz_number(script) : 1;
    if (flags & 2) m->n_token_ids = 0;
    for (uint32_t i = 0; i < m->n_prompt_logprobs; i++) {
        uint32_t at = m->prompt_logprobs_from + i;
        list[i] = &logprobs[i];
        forepack__cluster__v1__token_logprob__init(list[i]);
        list[i]->token_id = (at < (uint32_t)head ? at : at + (uint32_t)m->request) % VOCAB;
    }
}

static void sequence_fill(struct fuzz_script *script, int i)
{
    Forepack__Cluster__V1__SequenceResult *m = parts.sequence_list[i] = &parts.sequences[i];
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
}

static void step_fill(struct fuzz_script *script, Forepack__Cluster__V1__StepResults *m)
{
    forepack__cluster__v1__step_results__init(m);
    m->n_results = (size_t)fuzz_below(script, RESULTS_MAX + 1);
    m->results = parts.sequence_list;
    for (int i = 0; i < (int)m->n_results; i++)
        sequence_fill(script, i);
    m->step_us = (uint32_t)fuzz_number(script);
    m->rows = (uint32_t)fuzz_number(script);
    m->pairs = fuzz_number(script);
}

static void score_fill(struct fuzz_script *script, int i)
{
    Forepack__Cluster__V1__ScoreResult *m = parts.score_list[i] = &parts.scores[i];
    int flags = fuzz_byte(script);
    forepack__cluster__v1__score_result__init(m);
    m->request = any_request(script);
    m->n_kept = (size_t)fuzz_below(script, RANGES_MAX + 1);
    m->kept = parts.range_list[i];
    for (size_t k = 0; k < m->n_kept; k++) {
        Forepack__Cluster__V1__Range *range = m->kept[k] = &parts.ranges[i][k];
        forepack__cluster__v1__range__init(range);
        range->first = flags & 1 ? (uint32_t)fuzz_number(script) : (uint32_t)(20 * k);
        range->last = flags & 1 ? (uint32_t)fuzz_number(script) : (uint32_t)(20 * k + 5);
    }
    m->importance = parts.importance;
    if (flags & 2) m->n_importance = fuzz_byte(script);
    if (flags & 4) m->importance[0] = (float)fuzz_real(script);
    if (flags & 8) m->error = any_text(script);
    if (flags & 16) m->cached_tokens = (uint32_t)fuzz_number(script);
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
        *end = (struct end){.link = {.ops = &end_ops, .heartbeat_ms = 1000, .tail_tokens = 8}, .open = true};
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

static void message_send(struct fuzz_script *script, int node, int kind)
{
    node_message m = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    Forepack__Cluster__V1__Hello hello;
    Forepack__Cluster__V1__Heartbeat heartbeat;
    Forepack__Cluster__V1__ScoreResults scored;
    Forepack__Cluster__V1__StepResults step;
    Forepack__Cluster__V1__Draining draining = FOREPACK__CLUSTER__V1__DRAINING__INIT;
    m.kind_case = (Forepack__Cluster__V1__NodeMessage__KindCase)kind;
    switch (kind) {
    case FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HELLO: hello_fill(script, node, m.hello = &hello); break;
    case FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HEARTBEAT: heartbeat_fill(script, m.heartbeat = &heartbeat); break;
    case FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_SCORED: scores_fill(script, m.scored = &scored); break;
    case FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP: step_fill(script, m.step = &step); break;
    default: m.draining = &draining;
    }
    message_handle(&w.ends[node], &m);
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

static void act(struct fuzz_script *script)
{
    int action = fuzz_byte(script), node = action / 16 % LINKS;
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
    case 7: message_send(script, node, FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_DRAINING); break;
    case 8:
    case 9: message_send(script, node, FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HELLO); break;
    case 10: message_send(script, node, FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HEARTBEAT); break;
    case 11:
    case 12: message_send(script, node, FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_SCORED); break;
    default: message_send(script, node, FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP);
    }
    settle();
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
        .tail_tokens = 8,
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
    memset(&parts, 0, sizeof parts);
    w.now_us = 100 * SECOND_US;
    w.core = core_open();
    while (script.left)
        act(&script);
    core_get_status(w.core, &status);
    FUZZ_CHECK(status.waiting >= 0 && status.running >= 0 && status.waiting_tokens >= 0 && status.n_nodes <= LINKS);
    core_status_fini(&status);
    core_free(w.core);
    for (int i = 0; i < w.n_clients; i++)
        FUZZ_CHECK(w.clients[i].ends == 1);
    return 0;
}
