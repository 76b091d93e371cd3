// SPDX-License-Identifier: Apache-2.0
// Conversations: the rows of earlier turns come first and are unchanged. The core composes the same rows whether
// selections are held or scored again.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "router/core/core_state.h"
#include "router/sched/estimate.h"
#include "tests/core_fixture.h"
#include "tests/suite.h"

// --- the rows alone

enum { TURNS = 4, TOKENS_MAX = 400, RANGES_MAX = 200 };

struct talk {
    struct token_range kept[TURNS + 1][RANGES_MAX];
    struct selection selections[TURNS + 1];
    struct prompt_turn turns[TURNS];
    int n_tokens;
};

static int below(int n)
{
    return rand() % n;
}

static int random_ranges(struct token_range *ranges, int n)
{
    int k = 0;
    for (int at = below(5); at < n; at += 1 + below(9)) {
        int last = at + below(7) < n ? at + below(7) : n - 1;
        if (last < at || last >= n) last = at;
        ranges[k++] = (struct token_range){at, last};
        at = last + 1;
    }
    return k;
}

static void random_talk(struct talk *talk)
{
    int at = 0;
    for (int t = 0; t < TURNS; t++) {
        talk->turns[t].end = at + 20 + below(40);
        talk->turns[t].answer_end = at = talk->turns[t].end + 1 + below(10);
    }
    talk->n_tokens = at + 20;
    for (int t = 0; t <= TURNS; t++) {
        int n = random_ranges(talk->kept[t], t < TURNS ? talk->turns[t].end : talk->n_tokens);
        talk->selections[t] = (struct selection){.kept = talk->kept[t], .n_kept = n, .keep_rate = 0.5};
    }
}

static int flat(const struct token_range *ranges, int n, int *tokens)
{
    int n_tokens = 0;
    for (int i = 0; i < n; i++)
        for (int t = ranges[i].first; t <= ranges[i].last; t++)
            tokens[n_tokens++] = t;
    return n_tokens;
}

// The rows of the prompt of turn `last`.
static struct conversation *compose(const struct talk *talk, int last)
{
    struct conversation *c = conversation_create(talk->n_tokens);
    for (int t = 0; t < last; t++) {
        conversation_add_selection(c, &talk->selections[t], t ? talk->turns[t - 1].answer_end : 0);
        conversation_add_answer(c, &talk->turns[t]);
    }
    conversation_add_selection(c, &talk->selections[last], last ? talk->turns[last - 1].answer_end : 0);
    return c;
}

static void check_rows(const struct talk *talk, int last, const int *before, int n_before, const int *rows, int n)
{
    bool has_row[TOKENS_MAX] = {false};
    int plain[TOKENS_MAX], n_plain = flat(talk->kept[last], talk->selections[last].n_kept, plain);
    int n_answer = last ? talk->turns[last - 1].answer_end - talk->turns[last - 1].end : 0;
    ck_assert_mem_eq(rows, before, (size_t)n_before * sizeof *rows);
    for (int i = 0; i < n; i++) {
        ck_cheap(!has_row[rows[i]]);
        has_row[rows[i]] = true;
        if (i > n_before + n_answer) ck_cheap(rows[i] > rows[i - 1]);
    }
    for (int i = 0; i < n_plain; i++)
        ck_cheap(has_row[plain[i]]);
    for (int i = 0; i < n_answer; i++)
        ck_cheap(has_row[talk->turns[last - 1].end + i]);
}

START_TEST(rows_of_earlier_turns_come_first_and_unchanged)
{
    for (int run = 0; run < 300; run++) {
        static struct talk talk;
        int before[TOKENS_MAX] = {0}, rows[TOKENS_MAX], n_before = 0;
        random_talk(&talk);
        for (int last = 0; last <= TURNS; last++) {
            struct conversation *c = compose(&talk, last);
            int n = flat(c->rows, c->n_rows, rows), recalled = 0;
            check_rows(&talk, last, before, n_before, rows, n);
            for (int i = c->frozen; i < n; i++)
                recalled += last && rows[i] < talk.turns[last - 1].answer_end;
            ck_assert_int_eq(c->recalled, recalled);
            ck_assert_int_eq(c->tokens, n);
            ck_assert_int_ge(c->frozen, n_before);
            memcpy(before, rows, sizeof before);
            n_before = n;
            conversation_free(c);
        }
    }
}
END_TEST

// If no keep rate is sure enough, the prompt is computed as if it had no turns.
START_TEST(a_selection_of_all_tokens_has_the_order_of_the_prompt)
{
    static struct talk talk;
    random_talk(&talk);
    talk.kept[TURNS][0] = (struct token_range){0, talk.n_tokens - 1};
    talk.selections[TURNS] = (struct selection){.kept = talk.kept[TURNS], .n_kept = 1, .reason = RATE_UNSURE};
    struct conversation *c = compose(&talk, TURNS);
    ck_assert_int_eq(c->n_rows, 1);
    ck_assert_int_eq(c->rows[0].first, 0);
    ck_assert_int_eq(c->rows[0].last, talk.n_tokens - 1);
    ck_assert_int_eq(c->tokens, talk.n_tokens);
    ck_assert_int_eq(c->recalled, 0);
    conversation_free(c);
}
END_TEST

// --- in the core

enum { TURN = 50, ANSWER = 10 }; // tokens of a turn, its answer included

static struct fixture f;
static struct fake_node *w, *s;

static void setup_talk(void)
{
    fixture_init(&f);
    f.options.selection_bytes = 1 << 16;
    f.options.min_tokens = 60;
    fixture_start(&f);
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    w = fixture_attach(&f, &hello);
    hello = fixture_hello(NODE_SPECULATOR, "s");
    s = fixture_attach(&f, &hello);
}

// Returns the question after `n_turns` finished turns.
static struct client *question(int n_turns)
{
    struct client *client = fixture_request(&f, TURN * n_turns + TURN - ANSWER, 4);
    struct request_spec *spec = &client->r->spec;
    for (int i = 0; i < spec->n_tokens; i++)
        spec->tokens[i] = 3 + i;
    spec->prefill.mode = PREFILL_ON;
    spec->n_turns = n_turns;
    spec->turns = mem_alloc_array((size_t)n_turns, sizeof *spec->turns);
    for (int t = 0; t < n_turns; t++)
        spec->turns[t] = (struct prompt_turn){.end = TURN * t + TURN - ANSWER, .answer_end = TURN * t + TURN};
    return client;
}

static void submit(struct client *client)
{
    fixture_submit(&f, client);
    fixture_advance(&f, 0);
}

// The speculator keeps the last five tokens of each prompt. Of a prompt with three turns it also keeps the first five.
static void score(struct client *client)
{
    int end = request_score_prompt(client->r).n_tokens;
    struct token_range kept[2] = {{0, 4}, {end - 5, end - 1}};
    int skip = end < 2 * TURN;
    ck_assert(fake_node_has(s, client));
    ck_assert_int_eq(sched_request_rows(&client->r->sched), end);
    fake_node_forget(s, client->number);
    core_scored(f.c, s->node,
                &(struct score_result){.request = client->number, .kept = kept + skip, .n_kept = 2 - skip}, f.now_us);
    fixture_advance(&f, 0);
}

// Returns how often the speculator is asked before the worker group has the request.
static int visits(struct client *client)
{
    int n = 0;
    submit(client);
    for (; !fake_node_has(w, client); n++)
        score(client);
    return n;
}

static const struct token_range third_rows[] = {{35, 49}, {85, 99}, {0, 4}, {135, 139}};

static void check_third(const struct client *client)
{
    ck_assert_int_eq(client->n_kept, 4);
    ck_assert_mem_eq(client->kept, third_rows, sizeof third_rows);
    ck_assert_int_eq(client->usage.kept_tokens, 40);
    ck_assert_int_eq(client->usage.frozen_tokens, 30);
    ck_assert_int_eq(client->usage.recalled_tokens, 5);
}

static void finish(struct client *client)
{
    fake_node_step(&f, w, client, 500, 4, FINISH_REASON_LENGTH);
    ck_assert_int_eq(client->ends, 1);
}

START_TEST(each_turn_is_scored_once)
{
    for (int n = 0; n < 3; n++) {
        struct client *client = question(n);
        ck_assert_int_eq(visits(client), 1);
        finish(client);
        ck_assert_int_eq(client->usage.scored_tokens, TURN * n + TURN - ANSWER);
        if (n == 2) check_third(client);
    }
    struct client *again = question(2);
    ck_assert_int_eq(visits(again), 0);
    finish(again);
    check_third(again);
    ck_assert_int_eq(again->usage.score_cached_tokens, again->usage.scored_tokens);
}
END_TEST

// The rows do not depend on which selections are held. After a start of the router none are.
START_TEST(turns_that_are_not_held_are_scored_in_order)
{
    struct client *client = question(2);
    ck_assert_int_eq(visits(client), 3);
    finish(client);
    check_third(client);
    ck_assert_int_eq(client->usage.scored_tokens, 40 + 90 + 140);
}
END_TEST

START_TEST(nothing_after_an_edit_is_reused)
{
    static const struct {
        int token, visits;
    } edits[] = {{3, 3}, {45, 2}, {60, 2}, {95, 1}, {120, 1}};
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        struct client *first = question(2);
        visits(first);
        finish(first);
        struct client *client = question(2);
        client->r->spec.tokens[edits[i].token] = 900 + (int)i;
        ck_assert_int_eq(visits(client), edits[i].visits);
        finish(client);
    }
}
END_TEST

static void no_conversation(struct request_spec *spec)
{
    spec->prefill.conversation = false;
}

static void only_the_paper(struct request_spec *spec)
{
    spec->prefill.paper_exact = true;
}

START_TEST(a_conversation_may_be_switched_off)
{
    struct client *client = question(2);
    (_i ? no_conversation : only_the_paper)(&client->r->spec);
    ck_assert_int_eq(visits(client), 1);
    finish(client);
    ck_assert_int_eq(client->n_kept, 2);
    ck_assert_int_eq(client->usage.frozen_tokens + client->usage.recalled_tokens, 0);
}
END_TEST

// A turn that `auto` kept whole because it was short had all rows.
START_TEST(a_short_turn_is_whole_under_auto)
{
    struct client *client = question(2);
    client->r->spec.prefill.mode = PREFILL_AUTO;
    ck_assert_int_eq(visits(client), 2);
    finish(client);
    ck_assert_int_eq(client->kept[0].first, 0);
    ck_assert_int_eq(client->kept[0].last, TURN - 1);
    ck_assert_int_eq(client->usage.recalled_tokens, 0);
}
END_TEST

START_TEST(the_whole_prompt_is_kept_without_a_speculator)
{
    struct client *client = question(2);
    submit(client);
    score(client);
    fixture_detach(&f, s);
    ck_assert(fake_node_has(w, client));
    ck_assert_int_eq(client->r->usage.kept_tokens, client->r->spec.n_tokens);
    finish(client);
    ck_assert_int_eq(client->skip, SKIP_LOST);
}
END_TEST

// A selection depends on the rows of earlier turns. It is not held if another speculator chose these rows.
START_TEST(selections_after_another_speculators_rows_are_not_held)
{
    struct client *client = question(2);
    client->r->spec.prefill.mode = PREFILL_REQUIRED;
    submit(client);
    score(client);
    struct node_hello hello = fixture_hello(NODE_SPECULATOR, "t");
    strcpy(hello.version, "1");
    struct fake_node *other = fixture_attach(&f, &hello);
    fixture_detach(&f, s);
    fixture_advance(&f, 0);
    s = other;
    score(client);
    score(client);
    ck_assert(fake_node_has(w, client));
    finish(client);
    client = question(2);
    ck_assert_int_eq(visits(client), 3);
    finish(client);
    ck_assert_int_eq(visits(question(2)), 0);
}
END_TEST

// A client pins the same ranges in up to 128 turns.
START_TEST(pinned_ranges_of_turns_count_in_the_queue)
{
    struct client *client = question(2);
    ck_assert_int_eq(request_queue_tokens(client->r), client->r->spec.n_tokens);
    for (int t = 0; t < 2; t++) {
        struct prompt_turn *turn = &client->r->spec.turns[t];
        turn->pinned = mem_alloc_array(100, sizeof *turn->pinned);
        turn->n_pinned = 100;
        memset(turn->pinned, 0, 100 * sizeof *turn->pinned);
    }
    ck_assert_int_eq(request_queue_tokens(client->r), client->r->spec.n_tokens + 400);
    visits(client);
    finish(client);
}
END_TEST

// --- a beginning that other prompts share

enum { DOCUMENT = 60 };

// A question about a document of DOCUMENT tokens. Each has other tokens.
static struct client *question_about(int number, int n_tokens)
{
    struct client *client = fixture_request(&f, DOCUMENT + n_tokens, 4);
    struct request_spec *spec = &client->r->spec;
    for (int i = 0; i < spec->n_tokens; i++)
        spec->tokens[i] = i < DOCUMENT ? 3 + i : 500 + 50 * number + i - DOCUMENT;
    spec->prefill.mode = PREFILL_ON;
    spec->prefill.shared_tokens = DOCUMENT;
    spec->n_turns = 1;
    spec->turns = mem_alloc(sizeof *spec->turns);
    *spec->turns = (struct prompt_turn){.end = DOCUMENT, .answer_end = DOCUMENT};
    return client;
}

static void score_about(struct client *client, int n_tokens, int budget, const struct token_range *kept, int n_kept)
{
    ck_assert(fake_node_has(s, client));
    ck_assert_int_eq(request_score_prompt(client->r).n_tokens, n_tokens);
    ck_assert_int_eq(request_budget_tokens(client->r), budget);
    fake_node_forget(s, client->number);
    core_scored(f.c, s->node,
                &(struct score_result){.request = client->number, .kept = (struct token_range *)kept, .n_kept = n_kept},
                f.now_us);
    fixture_advance(&f, 0);
}

static const struct token_range of_document[] = {{10, 19}, {50, 59}}, of_question[] = {{10, 19}, {30, 34}, {50, 64}};

static void check_about(struct client *client)
{
    static const struct token_range rows[] = {{10, 19}, {50, 59}, {30, 34}, {60, 64}};
    finish(client);
    ck_assert_int_eq(client->n_kept, 4);
    ck_assert_mem_eq(client->kept, rows, sizeof rows);
    ck_assert_int_eq(client->usage.frozen_tokens, 20);
    ck_assert_int_eq(client->usage.recalled_tokens, 5);
}

// Each question spends an additional third of the document's budget on recalled tokens.
START_TEST(each_question_has_the_rows_of_the_document)
{
    struct client *first = question_about(0, 5), *second = question_about(1, 5);
    submit(first);
    score_about(first, DOCUMENT, 0, of_document, 2);
    score_about(first, DOCUMENT + 5, 5 + DOCUMENT / 3, of_question, 3);
    check_about(first);
    submit(second);
    score_about(second, DOCUMENT + 5, 5 + DOCUMENT / 3, of_question, 3);
    check_about(second);
}
END_TEST

// Under a quality, and by chunks, the keep rate applies to the whole prompt.
START_TEST(a_budget_that_is_not_divided_is_that_of_the_prompt)
{
    struct client *client = question_about(0, 5);
    client->r->spec.prefill.chunk_tokens = 4;
    submit(client);
    score_about(client, DOCUMENT, 0, of_document, 2);
    score_about(client, DOCUMENT + 5, 0, of_question, 3);
    check_about(client);
}
END_TEST

// --- what a turn is expected to cost

enum { PASS_US = 1000, ROW_US = 10 };

static struct fake_node *attach_with_cache(enum node_role role, const char *id)
{
    struct node_hello hello = fixture_hello(role, id);
    hello.prefix_cache = true;
    struct fake_node *node = fixture_attach(&f, &hello);
    for (int i = 0; i < 200; i++) {
        int64_t rows = 1 << i % 10, pairs = rows * (i % 3 * 200) + rows * (rows + 1) / 2;
        core_passed(f.c, node->node, &(struct pass_cost){rows, pairs, PASS_US + ROW_US * rows, false}, f.now_us);
    }
    return node;
}

static void setup_costs(void)
{
    fixture_init(&f);
    f.options.selection_bytes = 1 << 16;
    f.options.tail_tokens = 0;
    fixture_start(&f);
    w = attach_with_cache(NODE_WORKER, "w");
    s = attach_with_cache(NODE_SPECULATOR, "s");
}

// Occupies the speculator, so that the next request is estimated while it waits.
static struct client *submit_other(void)
{
    struct client *client = fixture_request(&f, TURN, 4);
    client->r->spec.prefill.mode = PREFILL_ON;
    submit(client);
    return client;
}

static void finish_other(struct client *client)
{
    score(client);
    finish(client);
}

// Returns the predicted time of the request alone: its score and the prefill of the kept tokens.
static double own_us(const struct client *client)
{
    struct estimate estimate;
    ck_assert(estimate_first_token(&f.c->view, &client->r->sched, true, f.now_us, &estimate));
    return estimate.own_us;
}

static void check_own_us(const struct client *client, int score_rows, int scores, int prefill_rows)
{
    double steps = client->r->spec.prefill.look_ahead, look_ahead_us = (steps * scores - 1) * (PASS_US + ROW_US);
    double us = PASS_US + ROW_US * score_rows + look_ahead_us + PASS_US + ROW_US * prefill_rows;
    ck_assert_msg(fabs(own_us(client) - us) < 5 * ROW_US, "estimated %.0f us, expected %.0f us", own_us(client), us);
}

// Rows of earlier turns are in the worker group's prefix cache, and the keep rate is that of the new turn. Both
// speculators and groups have cached blocks of 16.
START_TEST(rows_of_earlier_turns_are_expected_in_the_cache)
{
    for (int n = 0; n < 2; n++) {
        struct client *client = question(n);
        visits(client);
        finish(client);
    }
    struct client *other = submit_other(), *client = question(2);
    submit(client);
    ck_assert_int_eq(client->r->sched.frozen.rows, 30);
    check_own_us(client, 140 - 80, 1, 30 - 16 + 12);
    finish_other(other);
    score(client);
    finish(client);
}
END_TEST

// Answers will have rows, and each turn whose selection is not held is scored separately.
START_TEST(turns_that_are_not_held_are_expected_to_be_scored)
{
    struct client *other = submit_other(), *client = question(2);
    submit(client);
    check_own_us(client, TURN - ANSWER, 3, 2 * ANSWER + (int)(0.3 * 3 * (TURN - ANSWER)));
    finish_other(other);
    while (!fake_node_has(w, client))
        score(client);
    finish(client);
}
END_TEST

static void teardown(void)
{
    fixture_stop(&f);
}

SUITE("conversation")
{
    TCASE("rows");
    TEST(rows_of_earlier_turns_come_first_and_unchanged);
    TEST(a_selection_of_all_tokens_has_the_order_of_the_prompt);

    TCASE("core");
    FIXTURE(setup_talk, teardown);
    TEST(each_turn_is_scored_once);
    TEST(turns_that_are_not_held_are_scored_in_order);
    TEST(nothing_after_an_edit_is_reused);
    LOOP(a_conversation_may_be_switched_off, 0, 2);
    TEST(a_short_turn_is_whole_under_auto);
    TEST(the_whole_prompt_is_kept_without_a_speculator);
    TEST(pinned_ranges_of_turns_count_in_the_queue);
    TEST(selections_after_another_speculators_rows_are_not_held);
    TEST(each_question_has_the_rows_of_the_document);
    TEST(a_budget_that_is_not_divided_is_that_of_the_prompt);

    TCASE("costs");
    FIXTURE(setup_costs, teardown);
    TEST(rows_of_earlier_turns_are_expected_in_the_cache);
    TEST(turns_that_are_not_held_are_expected_to_be_scored);
}
