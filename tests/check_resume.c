// SPDX-License-Identifier: Apache-2.0
// router/core: a request that resumes an answer continues after the tokens that its client has, and ends if these are
// the whole answer. It takes the id of the running request, and is refused if other tokens could come.
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "router/core/resume.h"
#include "tests/core_case.h"
#include "tests/suite.h"

enum { PROMPT = 40, OUTPUT = 8 };

// Returns a request whose client has the tokens 0 to n - 1.
static struct client *resume_of(const char *id, int n, uint64_t mark)
{
    struct client *client = fixture_request(&f, PROMPT, OUTPUT);
    struct request *r = client->r;
    r->id = mem_string(id);
    r->spec.prefill.mode = mark && resume_mark_is_pruned(mark) ? PREFILL_REQUIRED : PREFILL_OFF;
    r->resume = (struct request_resume){.given = true, .n = n, .mark = mark};
    r->output = mem_alloc_array((size_t)n + 1, sizeof *r->output);
    r->output_capacity = n + 1;
    for (int i = 0; i < n; i++)
        r->output[i] = client->tokens[i] = i;
    client->n_tokens = n;
    return client;
}

static struct client *resume(const char *id, int n, uint64_t mark)
{
    struct client *client = resume_of(id, n, mark);
    fixture_submit(&f, client);
    fixture_advance(&f, 0);
    return client;
}

START_TEST(the_sequence_starts_with_the_resumed_tokens)
{
    struct fake_node *w = attach_worker("w");
    struct client *client = resume("a", 3, 0);
    ck_assert_int_eq(w->last_bin_rows, PROMPT + 3);
    fake_node_step(&f, w, client, 3, 2, -1);
    fake_node_step(&f, w, client, 5, 3, FINISH_REASON_LENGTH);
    ck_ended(client, FINISH_REASON_LENGTH, STATUS_OK);
    ck_counts_up(client, OUTPUT);
    ck_assert_int_eq(client->usage.completion_tokens, OUTPUT);
}
END_TEST

START_TEST(a_replay_of_a_resumed_request_sends_all_tokens)
{
    struct fake_node *w = attach_worker("w"), *other = attach_worker("other");
    struct client *client = resume("a", 3, 0);
    struct fake_node *first = fake_node_has(w, client) ? w : other, *second = first == w ? other : w;
    fake_node_step(&f, first, client, 3, 2, -1);
    fixture_detach(&f, first);
    ck_assert_int_eq(second->last_bin_rows, PROMPT + 5);
    fake_node_step(&f, second, client, 5, 3, FINISH_REASON_LENGTH);
    ck_counts_up(client, OUTPUT);
}
END_TEST

START_TEST(only_new_tokens_count_in_the_totals)
{
    struct fake_node *w = attach_worker("w");
    struct client *client = resume("a", 3, 0);
    fixture_advance(&f, SECOND);
    fake_node_step(&f, w, client, 3, 2, FINISH_REASON_STOP);
    struct core_status status = fixture_status(&f);
    ck_assert_int_eq(status.totals.completion_tokens, 2);
    ck_assert_int_eq(client->timing.ttft_us, SECOND);
    core_status_fini(&status);
}
END_TEST

START_TEST(a_whole_answer_ends_without_a_worker_group)
{
    struct fake_node *w = attach_worker("w");
    struct client *client = resume("a", OUTPUT, 0);
    ck_ended(client, FINISH_REASON_LENGTH, STATUS_OK);
    ck_assert_int_eq(client->usage.completion_tokens, OUTPUT);
    ck_assert_int_eq(client->usage.kept_tokens, PROMPT);
    struct client *stopped = resume_of("b", 2, 0);
    stopped->r->resume.is_stopped = true;
    fixture_submit(&f, stopped);
    ck_ended(stopped, FINISH_REASON_STOP, STATUS_OK);
    ck_assert_int_eq(w->bins, 0);
}
END_TEST

START_TEST(more_tokens_than_the_answer_may_have_are_refused)
{
    attach_worker("w");
    struct client *client = resume_of("a", OUTPUT + 1, 0);
    client->n_tokens = 0; // the refusal comes before the tokens are counted
    fixture_submit(&f, client);
    ck_ended(client, FINISH_REASON_ERROR, STATUS_OUT_OF_RANGE);
    ck_assert_str_eq(client->message, "resume: 9 tokens given, max_tokens is 8");
}
END_TEST

START_TEST(a_resumed_request_takes_the_id_of_a_running_one)
{
    struct fake_node *w = attach_worker("w");
    struct client *running = resume("a", 0, 0), *other = resume("b", 0, 0);
    struct client *client = resume("a", 1, 0);
    ck_ended(running, FINISH_REASON_CANCELLED, STATUS_CANCELLED);
    ck_assert_int_eq(other->ends, 0);
    struct client *plain = resume_of("a", 0, 0);
    plain->r->resume.given = false;
    fixture_submit(&f, plain);
    ck_ended(plain, FINISH_REASON_ERROR, STATUS_EXISTS);
    fake_node_step(&f, w, client, 1, 1, FINISH_REASON_STOP);
    ck_ended(client, FINISH_REASON_STOP, STATUS_OK);
}
END_TEST

START_TEST(another_owner_keeps_its_request)
{
    attach_worker("w");
    struct client *running = resume_of("a", 0, 0), *client = resume_of("a", 1, 0);
    running->r->spec.owner = 1;
    client->r->spec.owner = 2;
    fixture_submit(&f, running);
    fixture_submit(&f, client);
    ck_assert_int_eq(running->ends, 0);
}
END_TEST

// Returns the mark of a pruned request that keeps tokens 0 to `last`.
static uint64_t mark_of_kept(int last)
{
    struct token_range kept[] = {{0, last}};
    struct request r = {.kept = kept, .n_kept_ranges = 1, .spec.n_tokens = PROMPT};
    return resume_mark(&r, 5);
}

START_TEST(other_kept_tokens_are_refused)
{
    struct fake_node *w = attach_worker("w"), *s = attach_speculator("s");
    struct client *same = resume("a", 1, mark_of_kept(9)), *other = resume("b", 1, mark_of_kept(9));
    fake_node_score(&f, s, same, 0, 9);
    ck_assert(fake_node_has(w, same));
    ck_assert_int_eq(w->last_bin_rows, 10 + 1);
    fake_node_score(&f, s, other, 0, 11);
    ck_ended(other, FINISH_REASON_ERROR, STATUS_MISMATCH);
}
END_TEST

START_TEST(a_mark_tells_what_the_tokens_depend_on)
{
    int32_t prompt[] = {1, 2, 3};
    struct sampling s;
    sampling_defaults(&s);
    s.temperature = 0;
    s.seed = 1;
    uint64_t greedy = resume_basis(prompt, 3, &s);
    s.seed = 2;
    ck_assert_uint_eq(resume_basis(prompt, 3, &s), greedy); // greedy answers have no seed
    s.temperature = 1;
    uint64_t sampled = resume_basis(prompt, 3, &s);
    s.seed = 3;
    ck_assert_uint_ne(resume_basis(prompt, 3, &s), sampled);
    prompt[2] = 4;
    s.temperature = 0;
    ck_assert_uint_ne(resume_basis(prompt, 3, &s), greedy);
    ck_assert(resume_mark_is_pruned(mark_of_kept(9)));
    ck_assert(!resume_mark_is_pruned(mark_of_kept(PROMPT - 1)));
    ck_assert_uint_ne(mark_of_kept(9), mark_of_kept(10));
    struct token_range whole = {0, PROMPT - 1};
    struct request r = {.kept = &whole, .n_kept_ranges = 1, .spec.n_tokens = PROMPT};
    ck_assert_uint_ne(resume_mark(&r, 5), resume_mark(&r, 6));
}
END_TEST

SUITE("resume")
{
    FIXTURE(setup, teardown);
    TEST(the_sequence_starts_with_the_resumed_tokens);
    TEST(a_replay_of_a_resumed_request_sends_all_tokens);
    TEST(only_new_tokens_count_in_the_totals);
    TEST(a_whole_answer_ends_without_a_worker_group);
    TEST(more_tokens_than_the_answer_may_have_are_refused);
    TEST(a_resumed_request_takes_the_id_of_a_running_one);
    TEST(another_owner_keeps_its_request);
    TEST(other_kept_tokens_are_refused);
    TEST(a_mark_tells_what_the_tokens_depend_on);
}
