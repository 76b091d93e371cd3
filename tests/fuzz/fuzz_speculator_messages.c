// SPDX-License-Identifier: Apache-2.0
// Messages of a router into a speculator (fuzz_role.h): prompts to score and advances of answers, mostly well formed.
// Each bit of a byte makes one part of an item wrong or different. Every prompt is answered once. Drafts equal the
// model's answers. Held prompts take no more than their share of the KV blocks.
#include "tests/fuzz/fuzz_role.h"

enum { RANGES_MAX = 4, ADVANCES_MAX = 4, ADVANCE_TOKENS_MAX = 16, ANSWER_MAX = 1024, ASKED_MAX = 2048 };
enum { CALIBRATED_LOOK_AHEAD = 8, CALIBRATED_TAIL = 128 }; // as in sim/calibrations.c

typedef Forepack__Cluster__V1__ScoreItem item_message;
typedef Forepack__Cluster__V1__Advance advance_message;

// --- messages to the speculator

// A request since the last cancel of its number. Only `results_max` also counts earlier messages.
static struct asked {
    uint64_t request;
    int results_max, results_min; // results still to come
    bool is_used;                 // a prompt was sent
    bool is_unclear;              // several prompts, or an answer with two tokens in one place: its drafts are unknown
    bool has_quality;
    uint32_t prompt[FUZZ_CONTEXT], n_prompt;
    uint32_t answer[ANSWER_MAX], n; // tokens of the answer that the speculator was sent
} asked[ASKED_MAX];
static int n_asked;

static struct asked *asked_find(uint64_t request)
{
    for (int i = 0; i < n_asked; i++)
        if (asked[i].request == request) return &asked[i];
    return NULL;
}

static struct asked *asked_add(uint64_t request)
{
    struct asked *a = asked_find(request);
    if (a) return a;
    FUZZ_CHECK(n_asked < ASKED_MAX);
    a = &asked[n_asked++];
    *a = (struct asked){.request = request};
    return a;
}

static void asked_forget(struct asked *a, bool with_results)
{
    *a = (struct asked){.request = a->request, .results_max = with_results ? 0 : a->results_max};
}

static void asked_set_prompt(struct asked *a, const uint32_t *tokens, size_t n)
{
    a->is_unclear |= a->is_used || n > FUZZ_CONTEXT;
    a->is_used = true;
    a->n_prompt = (uint32_t)(n < FUZZ_CONTEXT ? n : FUZZ_CONTEXT);
    if (n) memcpy(a->prompt, tokens, a->n_prompt * sizeof *tokens);
}

static void item_sent(const item_message *m)
{
    struct asked *a = asked_add(m->request);
    asked_set_prompt(a, m->token_ids, m->n_token_ids);
    a->has_quality = m->quality_given_case;
    a->results_max++;
    a->results_min++;
}

// Records an advance. The speculator drops a prompt whose advance is wrong, so only right ones count.
static void advance_sent(const advance_message *m)
{
    struct asked *a = asked_add(m->request);
    bool is_same = a->is_used && m->n_prompt_ids && m->n_prompt_ids == a->n_prompt &&
                   !memcmp(m->prompt_ids, a->prompt, a->n_prompt * sizeof *a->prompt);
    if (m->n_prompt_ids && !is_same) asked_set_prompt(a, m->prompt_ids, m->n_prompt_ids);
    if (m->from > a->n) return;
    for (size_t i = 0; i < m->n_token_ids; i++) {
        size_t at = m->from + i;
        bool is_known = at < a->n;
        a->is_unclear |=
            m->token_ids[i] >= FUZZ_VOCAB || at >= ANSWER_MAX || (is_known && a->answer[at] != m->token_ids[i]);
        if (a->is_unclear) return;
        if (!is_known) a->answer[a->n++] = m->token_ids[i];
    }
}

static void handle(void *service, router_message *message)
{
    if (message->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_SCORE_BIN)
        for (size_t i = 0; i < message->score_bin->n_items; i++)
            item_sent(message->score_bin->items[i]);
    if (message->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_ADVANCES)
        for (size_t i = 0; i < message->advances->n_advances; i++)
            advance_sent(message->advances->advances[i]);
    speculator_role.handle(service, message);
    if (message->kind_case != FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_CANCEL) return;
    for (size_t i = 0; i < message->cancel->n_requests; i++) {
        struct asked *a = asked_find(message->cancel->requests[i]);
        if (a) asked_forget(a, false); // the refusal of an item may still arrive
    }
}

static void dropped(void)
{
    for (int i = 0; i < n_asked; i++)
        asked_forget(&asked[i], true);
}

// --- messages of the speculator

// Checks that the draft tokens are the model's answer from token `from` on.
static void check_guesses(const struct asked *a, uint32_t from, const uint32_t *ids, size_t n)
{
    uint32_t right[LOOK_AHEAD_MAX];
    FUZZ_CHECK(n <= LOOK_AHEAD_MAX);
    for (size_t i = 0; i < n; i++)
        FUZZ_CHECK(ids[i] < FUZZ_VOCAB && ids[i] != TOKEN_EOS);
    if (a->is_unclear || !n) return;
    FUZZ_CHECK(a->is_used && from <= a->n && a->n_prompt + from + n <= FUZZ_CONTEXT + 1);
    uint64_t content = fuzz_content(ANSWER_START, a->prompt, a->n_prompt, 0);
    fuzz_answer(fuzz_content(content, a->answer, from, a->n_prompt), a->n_prompt + from, right, n);
    FUZZ_CHECK(!memcmp(ids, right, n * sizeof *ids));
}

static void check_score(const struct asked *a, const Forepack__Cluster__V1__ScoreResult *m)
{
    bool keeps_all = m->rate_reason == FOREPACK__CLUSTER__V1__RATE_REASON__RATE_UNSURE ||
                     m->rate_reason == FOREPACK__CLUSTER__V1__RATE_REASON__RATE_UNCALIBRATED;
    uint32_t next = 0;
    FUZZ_CHECK(m->n_kept >= 1 && m->keep_rate > 0 && m->keep_rate <= 1 && m->steps >= 1 && m->steps <= LOOK_AHEAD_MAX);
    for (size_t k = 0; k < m->n_kept; k++) {
        FUZZ_CHECK(m->kept[k]->first >= next && m->kept[k]->last >= m->kept[k]->first);
        next = m->kept[k]->last + 2; // not adjacent
    }
    for (size_t i = 0; i < m->n_importance; i++)
        FUZZ_CHECK(isfinite(m->importance[i]));
    check_guesses(a, 0, m->draft_ids, m->n_draft_ids);
    FUZZ_CHECK(m->n_draft_ids <= m->steps && next - 1 <= FUZZ_CONTEXT);
    if (a->is_unclear) return;
    FUZZ_CHECK(next - 1 <= a->n_prompt && (!m->n_importance || m->n_importance == a->n_prompt));
    FUZZ_CHECK(a->has_quality == (m->rate_reason != FOREPACK__CLUSTER__V1__RATE_REASON__RATE_FIXED));
    if (keeps_all) FUZZ_CHECK(m->keep_rate == 1 && m->n_kept == 1 && next - 1 == a->n_prompt);
}

static void scores_sent(const Forepack__Cluster__V1__ScoreResults *scored)
{
    FUZZ_CHECK(scored->rows <= FUZZ_ROWS);
    for (size_t i = 0; i < scored->n_results; i++) {
        const Forepack__Cluster__V1__ScoreResult *m = scored->results[i];
        struct asked *a = asked_find(m->request);
        FUZZ_CHECK(a && a->results_max > 0);
        a->results_max--;
        if (a->results_min) a->results_min--;
        if (!*m->error) check_score(a, m);
    }
}

static void drafts_sent(const Forepack__Cluster__V1__Drafts *drafts)
{
    for (size_t i = 0; i < drafts->n_drafts; i++) {
        const Forepack__Cluster__V1__Draft *m = drafts->drafts[i];
        const struct asked *a = asked_find(m->request);
        FUZZ_CHECK(a && m->released == !m->n_token_ids);
        check_guesses(a, m->from, m->token_ids, m->n_token_ids);
    }
}

static void sent(const node_message *message)
{
    if (message->kind_case == FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_SCORED) {
        scores_sent(message->scored);
    } else {
        FUZZ_CHECK(message->kind_case == FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_DRAFTS);
        drafts_sent(message->drafts);
    }
}

static const char *check(const struct role_load *load, const struct scenario_node *plan)
{
    if (load->held_kv_blocks > plan->draft_blocks) return "held prompts have more KV blocks than their share";
    if (!plan->draft_blocks && load->held_prompts) return "a prompt is held without a share";
    return load->held_kv_blocks && !load->held_prompts ? "KV blocks are held without a prompt" : NULL;
}

// Ends all requests, and checks that nothing is held afterwards.
static void ended(void *service)
{
    Forepack__Cluster__V1__Cancel m = FOREPACK__CLUSTER__V1__CANCEL__INIT;
    router_message message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_CANCEL;
    message.cancel = &m;
    m.n_requests = 1;
    for (int i = 0; i < n_asked; i++) {
        FUZZ_CHECK(!asked[i].results_min);
        m.requests = &asked[i].request;
        speculator_role.handle(service, &message);
    }
}

// --- prompts to score

static struct item {
    item_message item;
    Forepack__Cluster__V1__Range ranges[RANGES_MAX], *range_list[RANGES_MAX];
    uint32_t tokens[FUZZ_TOKENS_MAX];
} items[FUZZ_ITEMS_MAX];

static void pinned_fill(struct fuzz_script *script, struct item *item)
{
    item->item.pinned = item->range_list;
    item->item.n_pinned = (size_t)fuzz_below(script, RANGES_MAX + 1);
    for (size_t i = 0; i < item->item.n_pinned; i++) {
        item->range_list[i] = &item->ranges[i];
        forepack__cluster__v1__range__init(&item->ranges[i]);
        item->ranges[i].first = (uint32_t)fuzz_number(script);
        item->ranges[i].last = (uint32_t)fuzz_number(script);
    }
}

static void quality_fill(struct fuzz_script *script, item_message *m, bool is_calibrated)
{
    static const double qualities[] = {0.5, 0.9, 0.95, 0.99, 1, 0.1};
    int byte = fuzz_byte(script);
    m->quality_given_case = FOREPACK__CLUSTER__V1__SCORE_ITEM__QUALITY_GIVEN_QUALITY;
    m->quality = byte < 240 ? qualities[byte % 6] : fuzz_real(script);
    if (!is_calibrated) return;
    m->look_ahead = CALIBRATED_LOOK_AHEAD;
    m->tail_tokens = (uint32_t)prefill_tail_tokens(CALIBRATED_TAIL, (int)m->n_token_ids);
}

// Bits of the last byte choose salt, hold, quality, the calibration's options with it, budget, bound of
// the keep rate and trace.
static void more_fill(struct fuzz_script *script, item_message *m)
{
    int flags = fuzz_byte(script);
    m->salt = flags & 1;
    m->hold = flags & 2;
    if (flags & 4) quality_fill(script, m, flags & 8);
    if (flags & 16) m->budget_tokens = (uint32_t)fuzz_number(script);
    if (flags & 64) m->min_keep_rate = fuzz_real(script);
    if (flags & 32) m->trace = "4bf92f3577b34da6a3ce929d0e0e4736";
}

static void item_fill(struct fuzz_script *script, struct item *item)
{
    item_message *m = &item->item;
    int flags = fuzz_byte(script);
    forepack__cluster__v1__score_item__init(m);
    m->request = fuzz_byte(script) % FUZZ_IDS;
    m->token_ids = item->tokens;
    m->n_token_ids = fuzz_tokens(script, item->tokens);
    m->keep_rate = flags & 1 ? fuzz_real(script) : 0.3;
    m->look_ahead = flags & 2 ? (uint32_t)fuzz_number(script) : 4;
    m->chunk_tokens = flags & 4 ? (int32_t)fuzz_number(script) : CHUNK_TOKENS_AUTO;
    m->pool_window = flags & 8 ? (uint32_t)fuzz_number(script) : 13;
    if (flags & 16) pinned_fill(script, item);
    m->tail_tokens = flags & 32 ? (uint32_t)fuzz_number(script) : 4;
    m->want_importance = flags & 64;
    m->paper_exact = flags & 128;
    more_fill(script, m);
}

static const router_message *bin_make(struct fuzz_script *script)
{
    static router_message message;
    static Forepack__Cluster__V1__ScoreBin bin;
    static item_message *list[FUZZ_ITEMS_MAX];
    forepack__cluster__v1__router_message__init(&message);
    forepack__cluster__v1__score_bin__init(&bin);
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_SCORE_BIN;
    message.score_bin = &bin;
    bin.n_items = (size_t)fuzz_below(script, FUZZ_ITEMS_MAX + 1);
    bin.items = list;
    for (size_t i = 0; i < bin.n_items; i++) {
        item_fill(script, &items[i]);
        list[i] = &items[i].item;
    }
    return &message;
}

// --- advances of answers

static struct advance {
    advance_message advance;
    uint32_t tokens[2 * ADVANCE_TOKENS_MAX], prompt[FUZZ_TOKENS_MAX];
} advances[ADVANCES_MAX];

// Fills in tokens from m->from on: first tokens that the speculator was told, then tokens of its draft, then other
// tokens.
static void advance_tokens(struct fuzz_script *script, const struct asked *a, struct advance *advance)
{
    advance_message *m = &advance->advance;
    uint64_t content = fuzz_content(ANSWER_START, a->prompt, a->n_prompt, 0);
    size_t known = a->n - m->from, more = fuzz_byte(script), right = more / 16;
    more = 1 + more % 16;
    if (known > ADVANCE_TOKENS_MAX) known = ADVANCE_TOKENS_MAX;
    if (right > more) right = more;
    memcpy(advance->tokens, a->answer + m->from, known * sizeof *a->answer);
    m->token_ids = advance->tokens;
    m->n_token_ids = known + more;
    fuzz_answer(fuzz_content(content, a->answer, a->n, a->n_prompt), a->n_prompt + a->n, m->token_ids + known, right);
    for (size_t i = right; i < more; i++)
        m->token_ids[known + i] = TOKEN_FIRST + (uint32_t)i;
}

// Fills in the prompt of a request that was not scored, or is no longer held. It comes with every generated token.
static void advance_prompt(struct fuzz_script *script, const struct asked *a, struct advance *advance)
{
    advance_message *m = &advance->advance;
    m->from = 0;
    m->prompt_ids = advance->prompt;
    m->n_prompt_ids = a->n_prompt;
    memcpy(advance->prompt, a->prompt, sizeof a->prompt);
    if (!a->is_used) m->n_prompt_ids = fuzz_tokens(script, advance->prompt);
}

static void advance_fill(struct fuzz_script *script, struct advance *advance)
{
    static const struct asked none;
    advance_message *m = &advance->advance;
    int flags = fuzz_byte(script);
    forepack__cluster__v1__advance__init(m);
    m->request = (uint64_t)flags % FUZZ_IDS;
    const struct asked *a = asked_find(m->request);
    if (!a) a = &none;
    m->ahead = fuzz_byte(script);
    m->salt = m->ahead & 1;
    m->from = a->n;
    if (flags & 8) advance_prompt(script, a, advance);
    advance_tokens(script, a, advance);
    if (flags & 16) m->from = (uint32_t)fuzz_number(script);
    if (flags & 32) m->ahead = (uint32_t)fuzz_number(script);
    if (flags & 64) advance->tokens[0] = (uint32_t)fuzz_number(script);
    if (flags & 128) m->n_token_ids = 0;
}

static const router_message *advances_make(struct fuzz_script *script)
{
    static router_message message;
    static Forepack__Cluster__V1__Advances all;
    static advance_message *list[ADVANCES_MAX];
    forepack__cluster__v1__router_message__init(&message);
    forepack__cluster__v1__advances__init(&all);
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_ADVANCES;
    message.advances = &all;
    all.n_advances = (size_t)fuzz_below(script, ADVANCES_MAX + 1);
    all.advances = list;
    for (size_t i = 0; i < all.n_advances; i++) {
        advance_fill(script, &advances[i]);
        list[i] = &advances[i].advance;
    }
    return &message;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct fuzz_role role = {&speculator_role, NODE_SPECULATOR, bin_make, advances_make, handle, sent,
                                   dropped,          check,           ended};
    struct fuzz_script script = {data, size};
    memset(items, 0, sizeof items);
    memset(advances, 0, sizeof advances);
    n_asked = 0;
    fuzz_role_run(&role, &script);
    return 0;
}
