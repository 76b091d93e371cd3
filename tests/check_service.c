// SPDX-License-Identifier: Apache-2.0
// A worker group as the router sees it: its answers to valid and invalid sequences, through packed messages.
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "tests/suite.h"
#include "tests/tiny_model.h"
#include "worker/service.h"

typedef Forepack__Cluster__V1__NodeMessage node_message;
typedef Forepack__Cluster__V1__RouterMessage router_message;
typedef Forepack__Cluster__V1__Sequence sequence_message;
typedef Forepack__Cluster__V1__SequenceResult result_message;

enum { IDS = 32, TOKENS = 64, POOL = 40 };

struct seen {
    uint32_t tokens[TOKENS];
    int n, n_logprobs, n_top;
    Forepack__Cluster__V1__Finish finish;
    char error[256];
};

struct world {
    char *dir;
    struct comm *comm;
    struct engine *engine;
    struct service *service;
    struct seen seen[IDS];
    int messages, results, rows;
};

static void take_result(struct world *w, const result_message *r)
{
    ck_assert_uint_lt(link_id_number(r->request), IDS);
    struct seen *s = &w->seen[link_id_number(r->request)];
    ck_assert_int_eq(s->finish, FOREPACK__CLUSTER__V1__FINISH__FINISH_NONE);
    for (size_t i = 0; i < r->n_token_ids; i++) {
        ck_assert_int_lt(s->n, TOKENS);
        s->tokens[s->n++] = r->token_ids[i];
    }
    for (size_t i = 0; i < r->n_logprobs; i++) {
        ck_assert_uint_eq(r->logprobs[i]->token_id, r->token_ids[i]);
        ck_assert_uint_eq(r->logprobs[i]->n_top_ids, r->logprobs[i]->n_top_logprobs);
        s->n_top = (int)r->logprobs[i]->n_top_ids;
        if (s->n_top) ck_assert(r->logprobs[i]->top_logprobs[0] >= r->logprobs[i]->logprob);
        s->n_logprobs++;
    }
    s->finish = r->finish;
    strncpy(s->error, r->error, sizeof s->error - 1);
}

// Packs and unpacks the message, as when it is sent to the router.
static void receive(void *arg, const node_message *message)
{
    struct world *w = arg;
    size_t size = forepack__cluster__v1__node_message__get_packed_size(message);
    uint8_t *bytes = malloc(size);
    forepack__cluster__v1__node_message__pack(message, bytes);
    node_message *copy = forepack__cluster__v1__node_message__unpack(NULL, size, bytes);
    free(bytes);
    ck_assert_ptr_nonnull(copy);
    ck_assert_int_eq(copy->kind_case, FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP);
    w->messages++;
    w->results += (int)copy->step->n_results;
    w->rows += (int)copy->step->rows;
    for (size_t i = 0; i < copy->step->n_results; i++)
        take_result(w, copy->step->results[i]);
    forepack__cluster__v1__node_message__free_unpacked(copy, NULL);
}

static struct world *open_world(void)
{
    log_setup("test", LOG_ERROR);
    struct world *w = calloc(1, sizeof *w);
    struct tiny_model spec = tiny_model_spec("llama");
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
    struct scheduler_limits limits = {.token_budget = 64, .max_seqs = 8, .context_tokens = 200, .kv_blocks = POOL};
    ck_assert_int_eq(service_create(w->engine, &limits, receive, w, &w->service), STATUS_OK);
    return w;
}

static void close_world(struct world *w)
{
    service_free(w->service);
    engine_close(w->engine);
    w->comm->ops->close(w->comm);
    tiny_model_remove(w->dir);
    free(w);
}

// ---- messages, allocated as protobuf-c does ----

static sequence_message *make_sequence(uint64_t id, int n_tokens, int max_tokens)
{
    sequence_message *m = mem_alloc(sizeof *m);
    forepack__cluster__v1__sequence__init(m);
    m->request = id;
    m->n_token_ids = (size_t)n_tokens;
    m->token_ids = mem_alloc_array((size_t)n_tokens + 1, sizeof *m->token_ids);
    for (int i = 0; i < n_tokens; i++)
        m->token_ids[i] = (uint32_t)(id * 7 + (uint64_t)i * 5) % 250;
    m->prompt_tokens = (uint32_t)n_tokens;
    m->n_kept = 1;
    m->kept = mem_alloc(sizeof *m->kept);
    m->kept[0] = mem_alloc(sizeof **m->kept);
    forepack__cluster__v1__range__init(m->kept[0]);
    m->kept[0]->last = (uint32_t)n_tokens - 1;
    m->sampling = mem_alloc(sizeof *m->sampling);
    forepack__cluster__v1__sampling__init(m->sampling);
    m->sampling->max_tokens = (uint32_t)max_tokens;
    m->sampling->top_p = 1;
    m->sampling->repetition_penalty = 1;
    m->sampling->ignore_eos = true;
    m->sampling->logprobs = -1;
    return m;
}

static void send_bin(struct world *w, sequence_message **sequences, size_t n)
{
    router_message message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    Forepack__Cluster__V1__PrefillBin bin = FOREPACK__CLUSTER__V1__PREFILL_BIN__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN;
    message.prefill_bin = &bin;
    bin.n_sequences = n;
    bin.sequences = sequences;
    service_handle(w->service, &message);
    for (size_t i = 0; i < n; i++)
        forepack__cluster__v1__sequence__free_unpacked(sequences[i],
                                                       NULL); // the service must not use them after the call
}

static void cancel(struct world *w, uint64_t id)
{
    router_message message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    Forepack__Cluster__V1__Cancel body = FOREPACK__CLUSTER__V1__CANCEL__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_CANCEL;
    message.cancel = &body;
    body.n_requests = 1;
    body.requests = &id;
    service_handle(w->service, &message);
}

static void run_dry(struct world *w)
{
    for (int i = 0; i < 10000 && service_busy(w->service); i++)
        ck_assert_int_eq(service_step(w->service), STATUS_OK);
    ck_assert(!service_busy(w->service));
    ck_assert_int_eq(service_get_load(w->service).kv_blocks_free, POOL);
}

// ---- tests ----

START_TEST(one_message_a_step_carries_all_tokens)
{
    struct world *w = open_world();
    sequence_message *bin[3] = {make_sequence(1, 20, 5), make_sequence(2, 7, 5), make_sequence(3, 30, 5)};
    bin[1]->sampling->logprobs = 3;
    bin[2]->sampling->logprobs = 0;
    send_bin(w, bin, 3);
    ck_assert_int_eq(w->messages, 0);
    run_dry(w);
    ck_assert_int_eq(w->messages, 5);
    ck_assert_int_eq(w->results, 15);
    ck_assert_int_eq(w->rows, 20 + 7 + 30 + 4 * 3);
    for (int i = 1; i <= 3; i++) {
        ck_assert_int_eq(w->seen[i].n, 5);
        ck_assert_int_eq(w->seen[i].finish, FOREPACK__CLUSTER__V1__FINISH__FINISH_LENGTH);
    }
    ck_assert_int_eq(w->seen[1].n_logprobs, 0);
    ck_assert_int_eq(w->seen[2].n_logprobs, 5);
    ck_assert_int_eq(w->seen[3].n_logprobs, 5);
    ck_assert_int_eq(w->seen[2].n_top, 3);
    ck_assert_int_eq(w->seen[3].n_top, 0);
    close_world(w);
}
END_TEST

START_TEST(a_replay_continues_where_it_stopped)
{
    struct world *w = open_world();
    sequence_message *first = make_sequence(1, 20, 8);
    first->sampling->temperature = 1;
    first->sampling->seed = 11;
    send_bin(w, &first, 1);
    run_dry(w);
    ck_assert_int_eq(w->seen[1].n, 8);
    sequence_message *again = make_sequence(1, 20, 8);
    again->request = 2;
    again->sampling->temperature = 1;
    again->sampling->seed = 11;
    again->token_ids = mem_resize(again->token_ids, 23, sizeof *again->token_ids);
    memcpy(again->token_ids + 20, w->seen[1].tokens, 3 * sizeof *again->token_ids);
    again->n_token_ids = 23;
    again->generated = 3;
    send_bin(w, &again, 1);
    run_dry(w);
    ck_assert_int_eq(w->seen[2].n, 5);
    ck_assert_mem_eq(w->seen[2].tokens, w->seen[1].tokens + 3, 5 * sizeof(uint32_t));
    close_world(w);
}
END_TEST

// One invalid sequence of each kind; its error must contain `sentence`.
static const struct {
    const char *sentence;
} invalid[] = {
    {"outside the vocabulary"},
    {"outside the vocabulary"},
    {"at least one prompt token"},
    {"kept range"},
    {"kept range"},
    {"kept tokens"},
    {"sampling parameters are missing"},
    {"top_p"},
    {"stop_token_ids: 65 given"},
    {"logit_bias: 0 numbers for 1 tokens"},
    {"logit_bias: token 272 is outside"},
    {"logit_bias: token 3 is given twice"},
    {"exceed the context"},
    {"exceed the context"},
    {"nothing is left"},
    {"already at this group"},
};
enum { INVALID = sizeof invalid / sizeof *invalid };

static void add_bias(Forepack__Cluster__V1__Sampling *m, size_t n, uint32_t first, uint32_t second)
{
    m->n_logit_bias_ids = m->n_logit_bias = n;
    m->logit_bias_ids = mem_copy((uint32_t[]){first, second}, 2 * sizeof(uint32_t));
    m->logit_bias = mem_copy((float[]){1, 1}, 2 * sizeof(float));
}

static void damage(sequence_message *m, int kind)
{
    switch (kind) {
    case 0: m->token_ids[3] = 272; break;
    case 1: m->token_ids[3] = UINT32_MAX; break;
    case 2: m->n_token_ids = 0; break;
    case 3: m->kept[0]->last = UINT32_MAX; break;
    case 4: m->kept[0]->first = m->kept[0]->last + 1; break;
    case 5: m->kept[0]->last--; break;
    case 6:
        forepack__cluster__v1__sampling__free_unpacked(m->sampling, NULL);
        m->sampling = NULL;
        break;
    case 7: m->sampling->top_p = 0; break;
    case 8:
        m->sampling->n_stop_token_ids = 65;
        m->sampling->stop_token_ids = mem_alloc_array(65, sizeof(uint32_t));
        break;
    case 9:
        add_bias(m->sampling, 1, 3, 0);
        m->sampling->n_logit_bias = 0;
        break;
    case 10: add_bias(m->sampling, 1, 272, 0); break;
    case 11: add_bias(m->sampling, 2, 3, 3); break;
    case 12: m->sampling->max_tokens = UINT32_MAX; break;
    case 13: m->prompt_tokens = UINT32_MAX; break;
    case 14: m->sampling->max_tokens = m->generated = 2; break;
    default: m->request = 0; break; // the id of another request
    }
}

START_TEST(invalid_sequences_are_answered_and_affect_no_other)
{
    struct world *w = open_world();
    sequence_message *alone = make_sequence(0, 12, 4);
    send_bin(w, &alone, 1);
    run_dry(w);
    struct seen expected = w->seen[0];
    memset(w->seen, 0, sizeof w->seen);

    sequence_message *bin[INVALID + 2];
    bin[0] = make_sequence(0, 12, 4);
    for (int i = 0; i < INVALID; i++) {
        bin[i + 1] = make_sequence((uint64_t)i + 1, 10, 4);
        if (i == INVALID - 1)
            continue; // a second request 0 is sent later: its error would mix with the results of the first
        damage(bin[i + 1], i);
    }
    bin[INVALID + 1] = make_sequence(30, 12, 4);
    send_bin(w, bin, INVALID + 2);
    for (int i = 0; i < INVALID - 1; i++) {
        ck_assert_int_eq(w->seen[i + 1].finish, FOREPACK__CLUSTER__V1__FINISH__FINISH_ERROR);
        ck_assert_msg(strstr(w->seen[i + 1].error, invalid[i].sentence) != NULL, "%d: '%s' should say '%s'", i,
                      w->seen[i + 1].error, invalid[i].sentence);
    }
    run_dry(w);
    ck_assert_int_eq(w->seen[0].n, 4);
    ck_assert_int_eq(w->seen[30].n, 4);
    ck_assert_int_eq(w->seen[INVALID].n, 4);
    ck_assert_mem_eq(w->seen[0].tokens, expected.tokens, sizeof expected.tokens);

    memset(w->seen, 0, sizeof w->seen);
    sequence_message *twice[2] = {make_sequence(0, 12, 4), make_sequence(1, 12, 4)};
    damage(twice[1], INVALID - 1);
    send_bin(w, twice, 2);
    ck_assert_ptr_nonnull(strstr(w->seen[0].error, invalid[INVALID - 1].sentence));
    service_drop_link(w->service, 0);
    close_world(w);
}
END_TEST

START_TEST(cancelled_and_dropped_sequences_have_no_more_results)
{
    struct world *w = open_world();
    sequence_message *bin[3] = {make_sequence(1, 20, 50), make_sequence(2, 20, 50), make_sequence(3, 20, 50)};
    send_bin(w, bin, 3);
    ck_assert_int_eq(service_step(w->service), STATUS_OK);
    cancel(w, 2);
    cancel(w, 9); // unknown
    int before = w->seen[2].n;
    ck_assert_int_eq(service_step(w->service), STATUS_OK);
    ck_assert_int_eq(w->seen[2].n, before);
    ck_assert_int_eq(w->seen[1].n, before + 1);
    service_drop_link(w->service, 0);
    ck_assert(!service_busy(w->service));
    run_dry(w);
    close_world(w);
}
END_TEST

START_TEST(a_link_that_ends_drops_its_own_sequences)
{
    struct world *w = open_world();
    sequence_message *alone = make_sequence(1, 20, 8);
    send_bin(w, &alone, 1);
    run_dry(w);
    struct seen expected = w->seen[1];
    memset(w->seen, 0, sizeof w->seen);
    struct link_load links[NODE_LINKS_MAX];
    sequence_message *bin[] = {make_sequence(2, 20, 50), make_sequence(1, 20, 8), make_sequence(3, 20, 50)};
    bin[0]->request = link_id_make(1, 2);
    bin[2]->request = link_id_make(1, 3);
    send_bin(w, bin, 3);
    scheduler_count_links(service_scheduler(w->service), links);
    ck_assert_uint_eq(links[0].waiting, 1);
    ck_assert_uint_eq(links[1].waiting, 2);
    ck_assert_int_eq(service_step(w->service), STATUS_OK);
    scheduler_count_links(service_scheduler(w->service), links);
    ck_assert_uint_eq(links[0].running, 1);
    ck_assert_uint_eq(links[1].running + links[1].waiting, 2);
    service_drop_link(w->service, 1);
    scheduler_count_links(service_scheduler(w->service), links);
    ck_assert_uint_eq(links[1].running + links[1].waiting, 0);
    int before = w->seen[2].n;
    run_dry(w);
    ck_assert_int_eq(w->seen[2].n, before);
    ck_assert_int_eq(w->seen[1].n, 8);
    ck_assert_mem_eq(w->seen[1].tokens, expected.tokens, sizeof expected.tokens);
    close_world(w);
}
END_TEST

SUITE("service")
{
    TIMEOUT(30);
    TEST(one_message_a_step_carries_all_tokens);
    TEST(a_replay_continues_where_it_stopped);
    TEST(invalid_sequences_are_answered_and_affect_no_other);
    TEST(cancelled_and_dropped_sequences_have_no_more_results);
    TEST(a_link_that_ends_drops_its_own_sequences);
}
