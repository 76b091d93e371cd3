// SPDX-License-Identifier: Apache-2.0
// Scores that are reused. A prompt that arrives again with the same options is not scored again. A prompt is scored if
// it differs in anything that the selection depends on.
#include <stdio.h>

#include "lib/base/mem.h"
#include "router/core/core_state.h"
#include "tests/core_case.h"
#include "tests/heap.h"
#include "tests/suite.h"

enum { PROMPT = 100, KEEP_FIRST = 10, KEEP_LAST = 39 };

static struct node_hello speculator_hello(const char *id)
{
    return fixture_hello(NODE_SPECULATOR, id);
}

// A request that asks for speculation, with the document of PROMPT tokens.
static struct client *question(void)
{
    struct client *client = fixture_request(&f, PROMPT, 4);
    for (int i = 0; i < PROMPT; i++)
        client->r->spec.tokens[i] = 3 + i;
    client->r->spec.prefill.mode = PREFILL_ON;
    return client;
}

static void submit(struct client *client)
{
    fixture_submit(&f, client);
    fixture_advance(&f, 0);
}

// Scores and answers the document once.
static void score_document(struct fake_node *s, struct fake_node *w)
{
    struct client *client = question();
    submit(client);
    ck_assert(fake_node_has(s, client));
    fake_node_score(&f, s, client, KEEP_FIRST, KEEP_LAST);
    finish(w, client);
    ck_assert_int_eq(client->usage.scored_tokens, PROMPT);
    ck_assert_int_eq(client->usage.score_cached_tokens, 0);
}

static uint64_t scores_reused(void)
{
    struct core_status status = fixture_status(&f);
    uint64_t reused = status.totals.scores_reused;
    core_status_fini(&status);
    return reused;
}

static void setup_cache(void)
{
    fixture_init(&f);
    f.options.selection_bytes = 1 << 16;
    fixture_start(&f);
}

START_TEST(a_prompt_that_comes_again_is_not_scored_again)
{
    struct fake_node *w = attach_worker("w"), *s = attach_speculator("s");
    score_document(s, w);
    struct client *again = question();
    submit(again);
    ck_assert(fake_node_has(w, again));
    ck_assert_int_eq(s->bins, 1);
    ck_assert(w->last_bin_rows == KEEP_LAST - KEEP_FIRST + 1);
    finish(w, again);
    ck_assert_int_eq(again->n_kept, 1);
    ck_assert_int_eq(again->kept[0].first, KEEP_FIRST);
    ck_assert_int_eq(again->kept[0].last, KEEP_LAST);
    ck_assert_int_eq(again->skip, SKIP_NONE);
    ck_assert_int_eq(again->usage.scored_tokens, PROMPT);
    ck_assert_int_eq(again->usage.score_cached_tokens, PROMPT);
    ck_assert_int_eq(again->timing.score_us, 0);
    ck_assert_uint_eq(scores_reused(), 1);
}
END_TEST

// No draft is sent if the request wants none.
START_TEST(a_reused_score_brings_its_draft)
{
    struct fake_node *w = attach_worker("w"), *s = attach_speculator("s");
    struct client *first = question();
    first->r->spec.prefill.drafts = _i ? DRAFTS_OFF : DRAFTS_AUTO;
    submit(first);
    fake_node_forget(s, first->number);
    struct token_range kept = {KEEP_FIRST, KEEP_LAST};
    const int32_t draft[3] = {5, 6, 7};
    const struct score_result result = {
        .request = first->number, .kept = &kept, .n_kept = 1, .draft = draft, .n_draft = 3};
    core_scored(f.c, s->node, &result, f.now_us);
    fixture_advance(&f, 0);
    ck_assert_int_eq(first->r->n_draft, _i ? 0 : 3);
    finish(w, first);
    for (enum draft_mode mode = DRAFTS_AUTO; mode <= DRAFTS_OFF; mode++) {
        struct client *again = question();
        again->r->spec.prefill.drafts = mode;
        submit(again);
        ck_assert_int_eq(again->r->usage.score_cached_tokens, PROMPT);
        ck_assert_int_eq(again->r->n_draft, mode == DRAFTS_OFF ? 0 : 3);
        if (mode == DRAFTS_AUTO) ck_assert_mem_eq(again->r->draft, draft, sizeof draft);
        finish(w, again);
    }
}
END_TEST

// Under auto the time of scoring decides. A known score takes no time.
START_TEST(a_known_selection_is_used_under_auto_and_under_required)
{
    struct fake_node *w = attach_worker("w"), *s = attach_speculator("s");
    score_document(s, w);
    for (enum prefill_mode mode = PREFILL_AUTO; mode <= PREFILL_REQUIRED; mode++) {
        struct client *again = question();
        again->r->spec.prefill.mode = mode;
        submit(again);
        ck_assert(fake_node_has(w, again));
        ck_assert_int_eq(w->last_bin_rows, mode == PREFILL_OFF ? PROMPT : KEEP_LAST - KEEP_FIRST + 1);
        finish(w, again);
    }
    ck_assert(s->bins == 1);
}
END_TEST

static void change_tokens(struct request_spec *spec)
{
    spec->tokens[PROMPT - 1]++;
}

static void change_length(struct request_spec *spec)
{
    spec->n_tokens--;
}

static void change_keep_rate(struct request_spec *spec)
{
    spec->prefill.keep_rate = 0.5;
}

static void change_chunks(struct request_spec *spec)
{
    spec->prefill.chunk_tokens = 16;
}

static void change_look_ahead(struct request_spec *spec)
{
    spec->prefill.look_ahead = 4;
}

static void change_window(struct request_spec *spec)
{
    spec->prefill.pool_window = 1;
}

static void change_paper(struct request_spec *spec)
{
    spec->prefill.paper_exact = true;
}

static void change_salt(struct request_spec *spec)
{
    spec->prefix_salt = 9;
}

static void change_pinned(struct request_spec *spec)
{
    spec->pinned = mem_alloc(sizeof *spec->pinned);
    spec->pinned[0] = (struct token_range){1, 2};
    spec->n_pinned = 1;
}

// Importance is not held.
static void want_importance(struct request_spec *spec)
{
    spec->want_importance = true;
}

static void (*const changes[])(struct request_spec *spec) = {
    change_tokens, change_length, change_keep_rate, change_chunks, change_look_ahead,
    change_window, change_paper,  change_salt,      change_pinned, want_importance};

START_TEST(another_prompt_policy_or_tenant_is_scored)
{
    struct fake_node *w = attach_worker("w"), *s = attach_speculator("s");
    score_document(s, w);
    struct client *other = question();
    changes[_i](&other->r->spec);
    submit(other);
    ck_assert(fake_node_has(s, other));
    ck_assert(!fake_node_has(w, other));
    ck_assert_uint_eq(scores_reused(), 0);
}
END_TEST

// A selection holds for any speculator of the same model and arithmetic, and for no other.
// Attaches a speculator whose calibration is for the worker groups' model and the default options.
static struct fake_node *calibrated_speculator(const char *id)
{
    struct node_hello hello = speculator_hello(id);
    struct prefill prefill;
    prefill_defaults(&prefill);
    hello.calibration = (struct node_calibration){.fingerprint = 9,
                                                  .main_fingerprint = hello.model_fingerprint,
                                                  .look_ahead = prefill.look_ahead,
                                                  .chunk_tokens = prefill.chunk_tokens,
                                                  .pool_window = prefill.pool_window,
                                                  .tail_tokens = f.options.tail_tokens};
    return fixture_attach(&f, &hello);
}

static struct client *question_with_quality(void)
{
    struct client *client = question();
    client->r->spec.prefill.quality = 0.9;
    submit(client);
    return client;
}

START_TEST(keep_rates_are_counted_for_each_request_with_a_quality)
{
    struct fake_node *w = attach_worker("w"), *s = calibrated_speculator("s");
    struct client *first = question_with_quality();
    ck_assert(fake_node_has(s, first));
    struct token_range kept = {KEEP_FIRST, KEEP_LAST};
    fake_node_forget(s, first->number);
    core_scored(f.c, s->node,
                &(struct score_result){
                    .request = first->number, .kept = &kept, .n_kept = 1, .keep_rate = 0.2, .reason = RATE_QUALITY},
                f.now_us);
    fixture_advance(&f, 0);
    finish(w, first);
    struct client *again = question_with_quality();
    finish(w, again);
    ck_assert_uint_eq(scores_reused(), 1);
    ck_assert_uint_eq(histogram_count(&f.c->ledger.measures.keep_rate), 2);
}
END_TEST

START_TEST(a_selection_belongs_to_the_model_of_its_speculator)
{
    struct fake_node *w = attach_worker("w"), *s = attach_speculator("s");
    score_document(s, w);
    fixture_detach(&f, s);
    struct client *none = question();
    submit(none);
    ck_assert_int_eq(none->r->skip, SKIP_NO_NODE);
    finish(w, none);

    attach_speculator("same");
    struct client *same = question();
    submit(same);
    ck_assert(fake_node_has(w, same));
    finish(w, same);

    struct node_hello hello = speculator_hello("other");
    hello.model_fingerprint = 6;
    struct fake_node *other = fixture_attach(&f, &hello);
    struct client *mixed = question(); // either of the two could have scored it
    submit(mixed);
    ck_assert_int_eq(mixed->r->state, REQUEST_SCORING);
    fixture_detach(&f, other);
    struct client *back = question();
    submit(back);
    ck_assert_int_eq(back->r->usage.score_cached_tokens, PROMPT);
}
END_TEST

START_TEST(a_speculator_with_other_arithmetic_scores_again)
{
    struct fake_node *w = attach_worker("w"), *s = attach_speculator("s");
    score_document(s, w);
    fixture_detach(&f, s);
    struct node_hello hello = speculator_hello("s");
    snprintf(hello.dtype, sizeof hello.dtype, "bf16");
    s = fixture_attach(&f, &hello);
    struct client *again = question();
    submit(again);
    ck_assert(fake_node_has(s, again));
}
END_TEST

// --- another question on the same document

enum { DOCUMENT = 400, QUESTION = 40 };

static struct client *document_question(int document, int question)
{
    struct client *client = fixture_request(&f, DOCUMENT + QUESTION, 4);
    for (int i = 0; i < DOCUMENT + QUESTION; i++)
        client->r->spec.tokens[i] = 3 + i + 100 * (i < DOCUMENT ? document : 5 + question);
    client->r->spec.prefill.mode = PREFILL_ON;
    return client;
}

static struct fake_node *caching_speculator(const char *id)
{
    struct node_hello hello = speculator_hello(id);
    hello.prefix_cache = true;
    return fixture_attach(&f, &hello);
}

// The speculator that has read a document gets all questions on it in one bin, which counts only the rows of the
// questions. Other documents go to other speculators.
START_TEST(questions_go_to_the_speculator_that_has_read_their_document)
{
    attach_worker("w");
    struct fake_node *s[2] = {caching_speculator("s0"), caching_speculator("s1")};
    struct fake_node *reader[2];
    for (int document = 0; document < 2; document++) {
        struct client *first = document_question(document, 0);
        submit(first);
        reader[document] = fake_node_has(s[0], first) ? s[0] : s[1];
        ck_assert(fake_node_has(reader[document], first));
        ck_assert_int_eq(first->r->account.rows, DOCUMENT + QUESTION);
        if (document) fake_node_score(&f, reader[0], fixture_find(&f, first->number - 1), 0, 9);
        if (document) fake_node_score(&f, reader[1], first, 0, 9);
    }
    ck_assert(reader[0] != reader[1]);
    for (int document = 0; document < 2; document++) {
        struct client *questions[4];
        for (int i = 0; i < 4; i++)
            fixture_submit(&f, questions[i] = document_question(document, 1 + i));
        fixture_advance(&f, 0);
        for (int i = 0; i < 4; i++) {
            ck_assert(fake_node_has(reader[document], questions[i]));
            ck_assert_int_eq(questions[i]->r->account.rows, QUESTION); // the document consists of full blocks
        }
        ck_assert_int_eq(reader[document]->last_bin_items, 4);
    }
}
END_TEST

// --- the cache alone

static const struct hash_key key = {1, 2};

static struct selection_key key_of(const struct selection_cache *cache, int32_t token)
{
    struct request_spec spec = {.tokens = &token, .n_tokens = 1};
    prefill_defaults(&spec.prefill);
    return selection_key_make(cache, &spec, &(struct score_prompt){.n_tokens = 1}, NULL, 0, false);
}

static bool has(struct selection_cache *cache, int32_t token)
{
    struct selection_key k = key_of(cache, token);
    struct selection found;
    if (!selection_cache_find(cache, &k, 1, &found)) return false;
    ck_assert_int_eq(found.n_kept, 1);
    ck_assert_int_eq(found.kept[0].first, token);
    return true;
}

static void add(struct selection_cache *cache, int32_t token)
{
    struct selection_key k = key_of(cache, token);
    struct token_range kept = {token, token};
    selection_cache_add(cache, &k, 1, &(struct selection){.kept = &kept, .n_kept = 1});
}

START_TEST(the_selection_used_longest_ago_is_evicted_first)
{
    enum { BYTES = 4096, MANY = 1000, ROOM = 4096 }; // ROOM: the table of the cache, and what the heap adds to an entry
    size_t before = heap_bytes();
    struct selection_cache *cache = selection_cache_create(BYTES, &key);
    int n = 0;
    for (int32_t token = 0; token < MANY; token++) {
        add(cache, token);
        ck_assert(has(cache, 0)); // used repeatedly, so it stays
        ck_assert_uint_le(heap_bytes() - before, BYTES + ROOM);
    }
    for (int32_t token = 0; token < MANY; token++)
        n += has(cache, token);
    ck_assert_int_gt(n, 10);
    ck_assert_int_lt(n, MANY);
    ck_assert(has(cache, MANY - 1));
    ck_assert(has(cache, MANY - n + 1));
    add(cache, 0); // replaces its earlier entry
    ck_assert(has(cache, 0));
    ck_assert_uint_le(heap_bytes() - before, BYTES + ROOM);
    selection_cache_free(cache);
}
END_TEST

START_TEST(a_selection_larger_than_the_cache_is_not_held)
{
    struct token_range kept[32] = {{0, 0}};
    struct selection_cache *cache = selection_cache_create(128, &key);
    struct selection_key k = key_of(cache, 3);
    struct selection found;
    selection_cache_add(cache, &k, 1, &(struct selection){.kept = kept, .n_kept = 32});
    ck_assert(!selection_cache_find(cache, &k, 1, &found));
    selection_cache_free(cache);
}
END_TEST

SUITE("selection_cache")
{
    FIXTURE(setup_cache, teardown);
    TEST(a_prompt_that_comes_again_is_not_scored_again);
    LOOP(a_reused_score_brings_its_draft, 0, 2);
    TEST(a_known_selection_is_used_under_auto_and_under_required);
    EACH(another_prompt_policy_or_tenant_is_scored, changes);
    TEST(keep_rates_are_counted_for_each_request_with_a_quality);
    TEST(a_selection_belongs_to_the_model_of_its_speculator);
    TEST(a_speculator_with_other_arithmetic_scores_again);
    TEST(questions_go_to_the_speculator_that_has_read_their_document);
    TEST(the_selection_used_longest_ago_is_evicted_first);
    TEST(a_selection_larger_than_the_cache_is_not_held);
}
