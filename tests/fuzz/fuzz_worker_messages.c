// SPDX-License-Identifier: Apache-2.0
// Sends a router's messages to a worker group (fuzz_role.h): mostly well-formed sequences and drafts. Each bit of a
// byte makes one part of a sequence wrong or different. Checks that every sequence ends once, with at most max_tokens
// tokens of the vocabulary. The script runs again with no drafts, which must give the same tokens.
#include "tests/fuzz/fuzz_role.h"

enum { RANGES_MAX = 4, BIAS_MAX = 3, DRAFT_MAX = 70, DRAFTS_MAX = 4, QUOTE_MAX = 32, RECORDS_MAX = 2048 };

typedef Forepack__Cluster__V1__Sequence sequence_message;
typedef Forepack__Cluster__V1__SequenceResult result_message;

// --- messages to the group, and its answers

static struct record {
    uint64_t request;
    bool refused, live;
    bool finished; // the group has ended the request
    Forepack__Cluster__V1__Finish finish;
    uint32_t prompt[FUZZ_CONTEXT], n_prompt; // kept tokens
    uint32_t tokens[FUZZ_CONTEXT], n;        // new tokens
    uint32_t generated, max_tokens;          // tokens generated earlier; limit that includes these tokens
    uint32_t next_logprob;                   // index of the next prompt log-probability; n_prompt: none is to come
    bool has_logprobs;
    uint64_t content;      // content of the KV entry before the next token
    uint32_t position;     // position of the next token
} records[2][RECORDS_MAX]; // runs with drafts; runs with no drafts

static struct {
    bool drafts;          // this run has drafts
    bool had_drafts;      // there were some drafts
    int n[2];             // number of records
    struct record *added; // set while the group handles its sequence
} w;

static struct record *record_find(uint64_t request)
{
    struct record *list = records[!w.drafts];
    for (int i = w.n[!w.drafts]; i--;)
        if (list[i].live && list[i].request == request) return &list[i];
    return NULL;
}

// Sets the content of the KV entries of all its tokens. The value does not matter if the message is malformed.
static void record_set_content(struct record *r, const sequence_message *m)
{
    size_t at = 0, n = m->n_token_ids - m->generated;
    r->content = ANSWER_START;
    r->position = m->prompt_tokens;
    for (size_t k = 0; k < m->n_kept; k++)
        for (uint32_t p = m->kept[k]->first; p <= m->kept[k]->last && at < n; p++, at++)
            r->content = fuzz_content(r->content, &m->token_ids[at], 1, p);
    if (!m->n_kept) r->content = fuzz_content(r->content, m->token_ids, n, 0);
    r->content = fuzz_content(r->content, m->token_ids + n, m->generated, r->position);
    r->position += m->generated;
}

static struct record record_of(const sequence_message *m)
{
    struct record r = {.request = m->request, .generated = m->generated, .live = true};
    if (m->generated >= m->n_token_ids || !m->sampling) return r; // it will be refused
    size_t n = m->n_token_ids - m->generated;
    bool wants_prompt = m->sampling->prompt_logprobs_given_case;
    record_set_content(&r, m);
    r.n_prompt = (uint32_t)(n < FUZZ_CONTEXT ? n : FUZZ_CONTEXT);
    memcpy(r.prompt, m->token_ids, r.n_prompt * sizeof *r.prompt);
    r.max_tokens =
        m->sampling->max_tokens ? m->sampling->max_tokens : 1; // a request for no token gets one all the same
    r.next_logprob = wants_prompt ? m->prompt_logprobs_from : r.n_prompt;
    r.has_logprobs = m->sampling->logprobs >= 0;
    return r;
}

static void handle_sequence(void *service, const router_message *message, size_t i)
{
    Forepack__Cluster__V1__PrefillBin bin = *message->prefill_bin;
    router_message single = *message;
    sequence_message *m = bin.sequences[i];
    const struct record *before = record_find(m->request);
    bin.sequences += i;
    bin.n_sequences = 1;
    single.prefill_bin = &bin;
    w.had_drafts |= m->drafts || m->n_draft_ids;
    if (!w.drafts) m->drafts = m->n_draft_ids = 0;
    FUZZ_CHECK(w.n[!w.drafts] < RECORDS_MAX);
    w.added = &records[!w.drafts][w.n[!w.drafts]++];
    *w.added = record_of(m);
    worker_role.handle(service, &single);
    FUZZ_CHECK(w.added->refused || !before);
    w.added = NULL;
}

static void end_request(uint64_t request)
{
    struct record *r = record_find(request);
    if (r) r->live = false;
}

// Handles a bin sequence by sequence, so that the refused sequence is known.
static void handle(void *service, router_message *message)
{
    if (message->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN) {
        for (size_t i = 0; i < message->prefill_bin->n_sequences; i++)
            handle_sequence(service, message, i);
        return;
    }
    bool is_draft = message->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_DRAFTS;
    w.had_drafts |= is_draft;
    if (is_draft && !w.drafts) return;
    worker_role.handle(service, message);
    if (message->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_CANCEL)
        for (size_t i = 0; i < message->cancel->n_requests; i++)
            end_request(message->cancel->requests[i]);
}

static void dropped(void)
{
    for (int i = 0; i < w.n[!w.drafts]; i++)
        records[!w.drafts][i].live = false;
}

static void check_logprobs(struct record *r, const result_message *m)
{
    FUZZ_CHECK(m->n_logprobs == (r->has_logprobs ? m->n_token_ids : 0));
    for (size_t i = 0; i < m->n_logprobs; i++)
        FUZZ_CHECK(m->logprobs[i]->token_id == m->token_ids[i]);
    FUZZ_CHECK(!m->n_prompt_logprobs || m->prompt_logprobs_from == r->next_logprob);
    FUZZ_CHECK(m->n_prompt_logprobs <= r->n_prompt - r->next_logprob);
    for (size_t i = 0; i < m->n_prompt_logprobs; i++)
        FUZZ_CHECK(m->prompt_logprobs[i]->token_id == r->prompt[r->next_logprob++]);
    FUZZ_CHECK(r->next_logprob == r->n_prompt || (!m->n_token_ids && !m->finish));
}

static void check_result(struct record *r, const result_message *m)
{
    bool failed = m->finish == FOREPACK__CLUSTER__V1__FINISH__FINISH_ERROR;
    FUZZ_CHECK(failed == (*m->error != 0) && (m->n_token_ids || m->n_prompt_logprobs || m->finish));
    FUZZ_CHECK(r->generated + r->n + m->n_token_ids <= r->max_tokens);
    FUZZ_CHECK(m->draft_accepted_tokens <= m->draft_tokens && m->draft_accepted_tokens <= m->n_token_ids);
    FUZZ_CHECK(m->n_token_ids <= m->draft_accepted_tokens + 1 && (w.drafts || !m->draft_tokens));
    for (size_t i = 0; i < m->n_token_ids; i++) {
        FUZZ_CHECK(m->token_ids[i] < FUZZ_VOCAB);
        r->content = fuzz_content(r->content, &m->token_ids[i], 1, r->position++);
        r->tokens[r->n++] = m->token_ids[i];
    }
    if (m->finish == FOREPACK__CLUSTER__V1__FINISH__FINISH_LENGTH) FUZZ_CHECK(r->generated + r->n == r->max_tokens);
    if (!failed) check_logprobs(r, m);
    r->finish = m->finish;
    r->finished = m->finish;
    r->live = !m->finish;
}

static void sent(const node_message *message)
{
    FUZZ_CHECK(message->kind_case == FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP);
    const Forepack__Cluster__V1__StepResults *step = message->step;
    FUZZ_CHECK(step->rows <= FUZZ_ROWS && step->draft_length <= LOOK_AHEAD_MAX);
    for (size_t i = 0; i < step->n_results; i++) {
        const result_message *m = step->results[i];
        struct record *r = w.added ? w.added : record_find(m->request);
        FUZZ_CHECK(r && r->request == m->request);
        if (w.added) {
            FUZZ_CHECK(m->finish == FOREPACK__CLUSTER__V1__FINISH__FINISH_ERROR && *m->error && !m->n_token_ids);
            r->refused = true;
            r->live = false;
        } else {
            check_result(r, m);
        }
    }
}

static const char *check(const struct role_load *load, const struct scenario_node *plan)
{
    return load->kv_blocks_free < 0 || load->kv_blocks_free > plan->kv_blocks ? "wrong count of free KV blocks" : NULL;
}

static void ended(void *service)
{
    for (int i = 0; i < w.n[!w.drafts]; i++)
        FUZZ_CHECK(!records[!w.drafts][i].live);
}

// Compares both runs. A sequence may be refused in only one run, because an earlier sequence with the same number had
// not ended there.
static void compare_runs(void)
{
    FUZZ_CHECK(w.n[0] == w.n[1]);
    for (int i = 0; i < w.n[0]; i++) {
        const struct record *with = &records[0][i], *without = &records[1][i];
        if (with->refused || without->refused) continue;
        uint32_t n = with->n < without->n ? with->n : without->n;
        FUZZ_CHECK(!memcmp(with->tokens, without->tokens, n * sizeof *with->tokens));
        if (with->finished && without->finished) FUZZ_CHECK(with->n == without->n && with->finish == without->finish);
    }
}

// --- sequences

static struct item {
    sequence_message sequence;
    Forepack__Cluster__V1__Sampling sampling;
    Forepack__Cluster__V1__Range ranges[RANGES_MAX], *range_list[RANGES_MAX];
    uint32_t tokens[FUZZ_TOKENS_MAX], penalty_ids[FUZZ_TOKENS_MAX], bias_ids[BIAS_MAX], stop_ids[2];
    uint32_t draft_ids[DRAFT_MAX];
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
    sequence_message *m = &item->sequence;
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

// Makes two ranges with pruned tokens between them, in either order, as in a prompt or in a conversation.
static void kept_prune(struct fuzz_script *script, struct item *item)
{
    sequence_message *m = &item->sequence;
    uint32_t kept = (uint32_t)m->n_token_ids - m->generated, gap = fuzz_byte(script) % 32u, turned = gap & 1;
    uint32_t first = fuzz_byte(script) % FUZZ_TOKENS_MAX;
    if (m->generated > m->n_token_ids || first + 1 >= kept) return;
    item->ranges[turned] = item->ranges[!turned] = item->ranges[0];
    item->ranges[turned].first = 0;
    item->ranges[turned].last = first;
    item->ranges[!turned].first = first + 1 + gap;
    item->ranges[!turned].last = kept - 1 + gap;
    m->n_kept = 2;
    m->prompt_tokens = kept + gap;
}

// Makes the prompt begin with the model's answers at the positions where the position alone decides (sim/answers.h), so
// that prompt lookup finds them.
static void quote_fill(struct item *item)
{
    sequence_message *m = &item->sequence;
    for (uint32_t i = 0; i < m->n_token_ids && i < QUOTE_MAX; i++)
        fuzz_answer(fuzz_content(0, m->token_ids, 1, m->prompt_tokens - 1 + i), 0, &m->token_ids[i], 1);
}

// Fills in a draft: the right tokens, then other ones.
static size_t guess(struct fuzz_script *script, const struct record *r, uint32_t ids[DRAFT_MAX])
{
    size_t n = fuzz_byte(script) % (DRAFT_MAX + 1u), right = n;
    int wrong = fuzz_byte(script);
    if (wrong) right = (size_t)wrong % DRAFT_MAX;
    fuzz_answer(r->content, r->position, ids, right < n ? right : n);
    for (size_t i = right; i < n; i++)
        ids[i] = wrong == 255 ? (uint32_t)fuzz_number(script) : (uint32_t)(i + (size_t)wrong) % FUZZ_VOCAB;
    return n;
}

static void grammar_fill(struct fuzz_script *script, Forepack__Cluster__V1__Sampling *m)
{
    static char *const texts[] = {"9 7", "30 3", "2 2", "0 5", "5 1", "", "x", "4 -3"};
    int byte = fuzz_byte(script);
    m->grammar = texts[byte % 8];
    m->grammar_kind = byte < 240 ? FOREPACK__CLUSTER__V1__GRAMMAR_KIND__GRAMMAR_REGEX
                                 : (Forepack__Cluster__V1__GrammarKind)fuzz_number(script);
}

static void more_fill(struct fuzz_script *script, struct item *item)
{
    sequence_message *m = &item->sequence;
    Forepack__Cluster__V1__Sampling *sampling = &item->sampling;
    int flags = fuzz_byte(script);
    if (flags & 1) kept_prune(script, item);
    if (flags & 2) quote_fill(item);
    m->drafts = flags & 4;
    if (flags & 8) grammar_fill(script, sampling);
    if (flags & 16) {
        sampling->prompt_logprobs_given_case = FOREPACK__CLUSTER__V1__SAMPLING__PROMPT_LOGPROBS_GIVEN_PROMPT_LOGPROBS;
        sampling->prompt_logprobs = (uint32_t)fuzz_number(script);
        m->prompt_logprobs_from = flags & 1 ? (uint32_t)fuzz_number(script) : 1;
    }
    if (flags & 32) sampling->min_p = fuzz_real(script);
    if (flags & 64) sampling->seed = fuzz_number(script);
    if (!(flags & 128)) return;
    struct record r = record_of(m);
    m->n_draft_ids = guess(script, &r, m->draft_ids = item->draft_ids);
}

static void sequence_fill(struct fuzz_script *script, struct item *item)
{
    sequence_message *m = &item->sequence;
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
    if (flags & 32) more_fill(script, item);
}

static const router_message *bin_make(struct fuzz_script *script)
{
    static router_message message;
    static Forepack__Cluster__V1__PrefillBin bin;
    static sequence_message *list[FUZZ_ITEMS_MAX];
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

// --- drafts

// Fills in a draft of the tokens that the group generates next, perhaps with some that it has generated.
static void draft_fill(struct fuzz_script *script, Forepack__Cluster__V1__Draft *m,
                       uint32_t ids[FUZZ_CONTEXT + DRAFT_MAX])
{
    int flags = fuzz_byte(script);
    forepack__cluster__v1__draft__init(m);
    m->request = (uint64_t)flags % FUZZ_IDS;
    struct record none = {.content = ANSWER_START}, *r = record_find(m->request);
    if (!r) r = &none;
    uint32_t back = flags & 8 ? fuzz_byte(script) : 0;
    if (back > r->n) back = r->n;
    memcpy(ids, r->tokens + r->n - back, back * sizeof *ids);
    m->from = flags & 16 ? (uint32_t)fuzz_number(script) : r->generated + r->n - back;
    m->token_ids = ids;
    m->n_token_ids = back + guess(script, r, ids + back);
    m->released = flags & 32;
}

static const router_message *drafts_make(struct fuzz_script *script)
{
    static router_message message;
    static Forepack__Cluster__V1__Drafts drafts;
    static Forepack__Cluster__V1__Draft list_items[DRAFTS_MAX], *list[DRAFTS_MAX];
    static uint32_t ids[DRAFTS_MAX][FUZZ_CONTEXT + DRAFT_MAX];
    forepack__cluster__v1__router_message__init(&message);
    forepack__cluster__v1__drafts__init(&drafts);
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_DRAFTS;
    message.drafts = &drafts;
    drafts.n_drafts = (size_t)fuzz_below(script, DRAFTS_MAX + 1);
    drafts.drafts = list;
    for (size_t i = 0; i < drafts.n_drafts; i++)
        draft_fill(script, list[i] = &list_items[i], ids[i]);
    return &message;
}

static void run(const uint8_t *data, size_t size, bool drafts)
{
    const struct fuzz_role role = {&worker_role, NODE_WORKER, bin_make, drafts_make, handle,
                                   sent,         dropped,     check,    ended};
    struct fuzz_script script = {data, size};
    memset(items, 0, sizeof items);
    w.drafts = drafts;
    fuzz_role_run(&role, &script);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    memset(&w, 0, sizeof w);
    run(data, size, true);
    if (!w.had_drafts) return 0;
    run(data, size, false);
    compare_runs();
    return 0;
}
