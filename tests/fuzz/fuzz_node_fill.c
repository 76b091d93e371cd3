// SPDX-License-Identifier: Apache-2.0
#include "lib/base/version.h"
#include "tests/fuzz/fuzz_node.h"

enum { RESULTS_MAX = 6, RANGES_MAX = 4, DRAFT_MAX = 70, USUAL_TOKEN = 10 };

uint64_t node_any_request(struct fuzz_script *script)
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
    static char long_text[600]; // two bytes per character: a cut may be inside a character
    static char *const texts[] = {"", "it broke", "bad \xff\xfe", "a", "node-0", "node-1", long_text};
    for (size_t i = 1; i < sizeof long_text - 1; i++)
        long_text[i] = i % 2 ? '\xc3' : '\xa9';
    long_text[0] = 'x';
    return texts[fuzz_below(script, 7)];
}

// Fills in a calibration for the default options, unless bits of `flags` say otherwise.
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

// Fills in a Hello. Each bit of `flags` makes one field wrong or different.
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
    m->stages = more & 4 ? (uint32_t)fuzz_number(script) : 0;
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

// The parts of results that messages refer to.
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

void node_fill_begin(void)
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

// Fills in log-probabilities of the tokens that spec_fill() gives the prompt of the request, from `from` on.
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
    m->request = node_any_request(script);
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
    m->latency_us = (uint32_t)m->pairs; // also any number
}

// Fills in the results of a worker group: the usual tokens.
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
    m->request = node_any_request(script);
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

// Fills in the result of a speculator: as many of the last tokens as the rate keeps, perhaps with some of them at the
// front.
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

// Fills in a draft: the usual tokens after the tokens that the client has, or from an earlier token on.
static void draft_fill(struct fuzz_script *script, const struct end *end, int i)
{
    Forepack__Cluster__V1__Draft *m = parts.draft_list[i];
    int flags = fuzz_byte(script);
    uint64_t number = flags & 1 ? node_any_request(script) : any_sent(script, end)->request;
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

const node_message *node_message_fill(struct fuzz_script *script, int node, int kind, bool answers)
{
    static node_message m;
    static Forepack__Cluster__V1__Hello hello;
    static Forepack__Cluster__V1__Heartbeat heartbeat;
    static Forepack__Cluster__V1__ScoreResults scored;
    static Forepack__Cluster__V1__StepResults step;
    static Forepack__Cluster__V1__Drafts drafts;
    static Forepack__Cluster__V1__Draining draining;
    const struct end *end = &w.ends[node];
    forepack__cluster__v1__node_message__init(&m);
    forepack__cluster__v1__draining__init(&draining);
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
    return &m;
}
