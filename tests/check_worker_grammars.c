// SPDX-License-Identifier: Apache-2.0
// A worker group compiles grammars while it computes passes: sequences without a grammar continue, equal grammars are
// compiled once, and a sequence may end, or all may be dropped, at any time.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "tests/fake_llguidance.h"
#include "tests/suite.h"
#include "tests/tiny_model.h"
#include "worker/service.h"

typedef Forepack__Cluster__V1__Sequence sequence_message;

enum { IDS = 16, PROMPT = 6, OUTPUT = 4, POOL = 64, CHOICES = 4 };

struct world {
    char *dir;
    struct comm *comm;
    struct engine *engine;
    struct grammar_library *grammars;
    struct service *service;
    int tokens[IDS], ends[IDS];
    char error[256];
    Forepack__Cluster__V1__Finish finish; // of the last sequence that failed
    int compiled;                         // grammars before the test

    pthread_mutex_t mutex; // guards `woken`
    pthread_cond_t changed;
    bool woken;
};

static void receive(void *arg, const Forepack__Cluster__V1__NodeMessage *message)
{
    struct world *w = arg;
    for (size_t i = 0; i < message->step->n_results; i++) {
        const Forepack__Cluster__V1__SequenceResult *r = message->step->results[i];
        ck_assert_int_eq(w->ends[r->request], 0);
        w->tokens[r->request] += (int)r->n_token_ids;
        w->ends[r->request] += r->finish != FOREPACK__CLUSTER__V1__FINISH__FINISH_NONE;
        if (r->finish < FOREPACK__CLUSTER__V1__FINISH__FINISH_ERROR) continue;
        w->finish = r->finish;
        strncpy(w->error, r->error, sizeof w->error - 1);
    }
}

static void wake(void *arg)
{
    struct world *w = arg;
    pthread_mutex_lock(&w->mutex);
    w->woken = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}

static void open_grammars(struct world *w, const struct tiny_model *spec)
{
    struct tokenizer *tokenizer;
    ck_assert_int_eq(tokenizer_open(w->dir, &tokenizer), STATUS_OK);
    int32_t eos = 0;
    enum status status = grammar_library_open(FAKE_LLGUIDANCE, tokenizer, spec->vocab_size, &eos, 1, &w->grammars);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
    tokenizer_free(tokenizer);
    service_set_grammars(w->service, w->grammars, wake);
}

static struct world *open_world(void)
{
    log_setup("test", LOG_ERROR);
    struct world *w = calloc(1, sizeof *w);
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->changed, NULL);
    struct tiny_model spec = tiny_model_spec("llama3");
    spec.tokenizer = true;
    if (spec.vocab_size < TINY_TOKENIZER_SIZE) spec.vocab_size = TINY_TOKENIZER_SIZE;
    w->dir = tiny_model_temp(&spec);
    ck_assert_int_eq(comm_open_self(&w->comm), STATUS_OK);
    struct model_options options = {.dir = w->dir,
                                    .backend = "cpu",
                                    .dtype = "f32",
                                    .threads = 1,
                                    .max_rows = 64,
                                    .max_seqs = 8,
                                    .n_kv_blocks = POOL};
    ck_assert_msg(engine_open(&options, w->comm, &w->engine) == STATUS_OK, "%s", status_message());
    struct scheduler_limits limits = {.token_budget = 64, .max_seqs = 8, .context_tokens = 64, .kv_blocks = POOL};
    ck_assert_int_eq(service_create(w->engine, &limits, receive, w, &w->service), STATUS_OK);
    open_grammars(w, &spec);
    w->compiled = fake_llguidance_compiled();
    return w;
}

static void close_world(struct world *w)
{
    service_free(w->service);
    ck_assert_int_eq(fake_llguidance_matchers(), 0);
    grammar_library_free(w->grammars);
    engine_close(w->engine);
    w->comm->ops->close(w->comm);
    tiny_model_remove(w->dir);
    pthread_mutex_destroy(&w->mutex);
    pthread_cond_destroy(&w->changed);
    free(w);
}

// Sends a sequence. It has no grammar if `grammar` is NULL.
static void send_sequence(struct world *w, uint64_t id, const char *grammar)
{
    uint32_t tokens[PROMPT] = {(uint32_t)id, 1, 2, 3, 4, 5};
    Forepack__Cluster__V1__Sampling sampling = FOREPACK__CLUSTER__V1__SAMPLING__INIT;
    sampling.max_tokens = OUTPUT;
    sampling.top_p = sampling.repetition_penalty = 1;
    sampling.ignore_eos = !grammar;
    sampling.logprobs = -1;
    if (grammar) {
        sampling.grammar_kind = FOREPACK__CLUSTER__V1__GRAMMAR_KIND__GRAMMAR_REGEX;
        sampling.grammar = (char *)grammar;
    }
    sequence_message sequence = FOREPACK__CLUSTER__V1__SEQUENCE__INIT, *sequences[] = {&sequence};
    sequence.request = id;
    sequence.n_token_ids = sequence.prompt_tokens = PROMPT;
    sequence.token_ids = tokens;
    sequence.sampling = &sampling;
    Forepack__Cluster__V1__PrefillBin bin = FOREPACK__CLUSTER__V1__PREFILL_BIN__INIT;
    bin.n_sequences = 1;
    bin.sequences = sequences;
    Forepack__Cluster__V1__RouterMessage message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN;
    message.prefill_bin = &bin;
    service_handle(w->service, &message);
    ck_assert_msg(!w->ends[id], "%s", w->error);
}

static void cancel(struct world *w, uint64_t id)
{
    Forepack__Cluster__V1__Cancel body = FOREPACK__CLUSTER__V1__CANCEL__INIT;
    body.n_requests = 1;
    body.requests = &id;
    Forepack__Cluster__V1__RouterMessage message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_CANCEL;
    message.cancel = &body;
    service_handle(w->service, &message);
}

static void step(struct world *w)
{
    ck_assert_msg(service_step(w->service) == STATUS_OK, "%s", status_message());
}

static void await_wake(struct world *w)
{
    pthread_mutex_lock(&w->mutex);
    while (!w->woken)
        pthread_cond_wait(&w->changed, &w->mutex);
    w->woken = false;
    pthread_mutex_unlock(&w->mutex);
}

// Runs steps until no work is left. Like the worker it sleeps until it is woken when a step has no work.
static void run_dry(struct world *w)
{
    while (service_busy(w->service)) {
        if (!service_ready(w->service)) await_wake(w);
        step(w);
    }
    struct scheduler_load load = service_get_load(w->service);
    ck_assert_int_eq(load.kv_blocks_free, POOL);
    ck_assert_int_eq(load.running, 0);
    ck_assert_int_eq(load.waiting, 0);
}

static void check_done(const struct world *w, int id)
{
    ck_assert_int_eq(w->tokens[id], OUTPUT);
    ck_assert_int_eq(w->ends[id], 1);
}

START_TEST(other_sequences_do_not_wait_for_a_grammar)
{
    struct world *w = open_world();
    fake_llguidance_hold(true);
    send_sequence(w, 1, "a");
    send_sequence(w, 2, NULL);
    fake_llguidance_await_compile();
    ck_assert_int_eq(service_get_load(w->service).waiting, 2);
    while (!w->ends[2])
        step(w);
    check_done(w, 2);
    ck_assert(service_busy(w->service));
    ck_assert(!service_ready(w->service));
    ck_assert_int_eq(w->tokens[1], 0);
    ck_assert_int_eq(service_get_load(w->service).waiting, 1);
    fake_llguidance_hold(false);
    run_dry(w);
    check_done(w, 1);
    close_world(w);
}
END_TEST

START_TEST(equal_grammars_that_wait_together_are_compiled_once)
{
    struct world *w = open_world();
    fake_llguidance_hold(true);
    send_sequence(w, 0, "a");
    fake_llguidance_await_compile();
    for (uint64_t id = 1; id < CHOICES; id++) {
        send_sequence(w, id, "a");
        send_sequence(w, CHOICES + id, "b");
    }
    fake_llguidance_hold(false);
    run_dry(w);
    for (int id = 0; id < 2 * CHOICES; id++)
        if (id != CHOICES) check_done(w, id);
    ck_assert_int_eq(fake_llguidance_compiled() - w->compiled, 2);
    close_world(w);
}
END_TEST

START_TEST(a_refused_grammar_ends_its_sequences_alone)
{
    struct world *w = open_world();
    fake_llguidance_hold(true);
    send_sequence(w, 0, "bad");
    fake_llguidance_await_compile();
    send_sequence(w, 1, "good");
    send_sequence(w, 2, "bad");
    fake_llguidance_hold(false);
    run_dry(w);
    check_done(w, 1);
    ck_assert_int_eq(w->ends[0], 1);
    ck_assert_int_eq(w->tokens[0], 0);
    ck_assert_int_eq(w->ends[2], 1);
    ck_assert_int_eq(w->tokens[2], 0);
    ck_assert_str_eq(w->error, "the grammar is bad");
    close_world(w);
}
END_TEST

START_TEST(a_dead_end_is_a_fault_of_the_grammar)
{
    struct world *w = open_world();
    send_sequence(w, 0, "dead end");
    send_sequence(w, 1, "good");
    run_dry(w);
    check_done(w, 1);
    ck_assert_int_eq(w->tokens[0], 1);
    ck_assert_int_eq(w->ends[0], 1);
    ck_assert_int_eq(w->finish, FOREPACK__CLUSTER__V1__FINISH__FINISH_GRAMMAR);
    ck_assert_str_eq(w->error,
                     "structured output: after 1 tokens the grammar has a dead end: the answer is not complete, but "
                     "no token may follow");
    close_world(w);
}
END_TEST

START_TEST(a_cancelled_sequence_has_no_results)
{
    struct world *w = open_world();
    fake_llguidance_hold(true);
    send_sequence(w, 0, "a");
    fake_llguidance_await_compile();
    send_sequence(w, 1, "b");
    send_sequence(w, 2, "a");
    cancel(w, 0); // its grammar is being compiled
    cancel(w, 1); // waits
    cancel(w, 1);
    ck_assert_int_eq(service_get_load(w->service).waiting, 1);
    fake_llguidance_hold(false);
    await_wake(w);
    cancel(w, 2); // its matcher is ready, but the service has not used it yet
    ck_assert(!service_busy(w->service));
    step(w);
    for (int id = 0; id < 3; id++)
        ck_assert_int_eq(w->ends[id], 0);
    ck_assert_int_eq(fake_llguidance_compiled() - w->compiled, 1);
    close_world(w);
}
END_TEST

// A router that was lost sends the same requests again.
START_TEST(dropped_sequences_may_come_again)
{
    struct world *w = open_world();
    fake_llguidance_hold(true);
    send_sequence(w, 0, "a");
    fake_llguidance_await_compile();
    send_sequence(w, 1, "b");
    service_drop_link(w->service, 0);
    ck_assert(!service_busy(w->service));
    send_sequence(w, 0, "a");
    send_sequence(w, 1, "b");
    fake_llguidance_hold(false);
    run_dry(w);
    check_done(w, 0);
    check_done(w, 1);
    send_sequence(w, 2, "c"); // the service ends with a grammar that waits, is being compiled or is ready
    close_world(w);
}
END_TEST

SUITE("worker grammars")
{
    TIMEOUT(60);
    TEST(other_sequences_do_not_wait_for_a_grammar);
    TEST(equal_grammars_that_wait_together_are_compiled_once);
    TEST(a_refused_grammar_ends_its_sequences_alone);
    TEST(a_dead_end_is_a_fault_of_the_grammar);
    TEST(a_cancelled_sequence_has_no_results);
    TEST(dropped_sequences_may_come_again);
}
