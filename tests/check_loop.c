// SPDX-License-Identifier: Apache-2.0
// router/loop: posts of several threads, in order; the core's deadlines; stopping. Run this test under
// -fsanitize=thread too.
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "router/core/loop.h"
#include "tests/suite.h"

enum { THREADS = 4, POSTS = 5000, VOCAB = 100 };

static struct core *core;
static struct loop *loop;
static struct core_node *node;
// Used by the loop's thread only, except the atomics.
static int seen[THREADS], submitted, bins;
static atomic_int ended;

static void take_bin(void *link, uint64_t bin, struct request *const *requests, int n)
{
    bins++;
}

static void take_cancel(void *link, const uint64_t *numbers, int n)
{
}

static void take_drain(void *link)
{
}

static void lose_node(void *link, const char *reason)
{
    node = NULL;
}

static void take_ready(void *user, bool ready)
{
}

static bool take_tokens(void *user, const int32_t *tokens, const struct token_logprob *logprobs, int n, int *n_used_p)
{
    return false;
}

static void take_end(void *user, const struct request *r, enum finish_reason reason, enum status status,
                     const char *message)
{
    atomic_fetch_add(&ended, 1);
}

static void setup(void)
{
    log_setup("test", LOG_ERROR);
    struct core_options options = {.max_queue_requests = 1 << 20,
                                   .max_queue_tokens = 1 << 30,
                                   .max_wait_us = 1000,
                                   .score_timeout_us = 1000000,
                                   .worker_grace_us = 1000000,
                                   .heartbeat_us = 3600000000,
                                   .bins_ahead = 2,
                                   .tokenizer_fingerprint = 1,
                                   .vocab_size = VOCAB};
    struct core_ops ops = {.send_score_bin = take_bin,
                           .send_prefill_bin = take_bin,
                           .send_cancel = take_cancel,
                           .send_drain = take_drain,
                           .node_lost = lose_node,
                           .ready_changed = take_ready};
    core = core_create(&options, &ops);
    loop = loop_start(core);
}

static void attach(struct core *c, void *arg, int64_t now_us)
{
    struct node_hello hello = {.node_id = "w",
                               .role = NODE_WORKER,
                               .ranks = 1,
                               .stages = 1,
                               .tokenizer_fingerprint = 1,
                               .vocab_size = VOCAB,
                               .context_tokens = 100,
                               .token_budget = 64,
                               .block_tokens = 16,
                               .kv_blocks = 1000,
                               .max_seqs = 64};
    ck_assert_int_eq(core_attach(c, &hello, &node, now_us, &node), STATUS_OK);
}

static struct request *request_for(int64_t ttft_deadline_us)
{
    struct request *r = request_create();
    r->spec.tokens = mem_alloc_array(1, sizeof *r->spec.tokens);
    r->spec.n_tokens = 1;
    r->spec.sampling.max_tokens = 1;
    r->spec.prefill.mode = PREFILL_OFF;
    r->spec.arrived_us = clock_now_us();
    r->spec.ttft_deadline_us = ttft_deadline_us;
    r->sink.tokens = take_tokens;
    r->sink.done = take_end;
    request_set_state(r, REQUEST_TOKENISED);
    return r;
}

static void submit(struct core *c, void *arg, int64_t now_us)
{
    submitted++;
    core_submit(c, arg, now_us);
}

static void count(struct core *c, void *arg, int64_t now_us)
{
    int thread = (int)((intptr_t)arg / POSTS), number = (int)((intptr_t)arg % POSTS);
    ck_assert_int_eq(number, seen[thread]); // the posts of each thread are in order
    seen[thread]++;
}

static void *post_many(void *arg)
{
    for (intptr_t i = 0; i < POSTS; i++) {
        loop_post(loop, count, (void *)((intptr_t)arg * POSTS + i));
        if (i % 10 == 0) loop_post(loop, submit, request_for(INT64_MAX));
    }
    return NULL;
}

START_TEST(posts_of_several_threads_run_once_and_in_order)
{
    pthread_t threads[THREADS];
    loop_post(loop, attach, NULL);
    for (intptr_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, post_many, (void *)i), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    loop_stop(loop); // runs the remaining posts
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(seen[i], POSTS);
    ck_assert_int_eq(submitted, THREADS * POSTS / 10);
    ck_assert_int_ge(bins, 1);
    core_free(core);
    ck_assert_int_eq(atomic_load(&ended), submitted);
}
END_TEST

static void post_again(struct core *c, void *arg, int64_t now_us)
{
    if (++seen[0] < 100) loop_post(loop, post_again, NULL);
}

START_TEST(a_post_may_post)
{
    loop_post(loop, post_again, NULL);
    loop_stop(loop);
    ck_assert_int_eq(seen[0], 100);
    core_free(core);
}
END_TEST

START_TEST(the_thread_wakes_for_the_cores_deadlines)
{
    loop_post(loop, attach, NULL);
    loop_post(loop, submit, request_for(clock_now_us() + 20000));
    int64_t give_up_us = clock_now_us() + 60 * (int64_t)1000000;
    while (!atomic_load(&ended) && clock_now_us() < give_up_us)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); // between two polls
    ck_assert_int_eq(atomic_load(&ended), 1);                    // without a post: the deadline woke the thread
    loop_stop(loop);
    core_free(core);
}
END_TEST

SUITE("loop")
{
    FIXTURE(setup, NULL);
    TEST(posts_of_several_threads_run_once_and_in_order);
    TEST(a_post_may_post);
    TEST(the_thread_wakes_for_the_cores_deadlines);
}
