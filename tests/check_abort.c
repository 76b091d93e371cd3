// SPDX-License-Identifier: Apache-2.0
// router/front: a request can be aborted while its message waits in the intake pool or is tokenised there. The request
// ends once, with CANCELLED and without a token. Run this test under -fsanitize=thread too.
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "router/core/core_state.h"
#include "router/front/request/answer.h"
#include "tests/suite.h"

// A message of the test. The reader makes a request of one token from it.
struct message {
    struct intake_job job; // first
    struct parsed_message *parsed;
};

struct test_client {
    struct client client; // first
    sem_t ended, freed;
    // Core's thread, read after a semaphore:
    int ends, chunks;
    enum finish_reason reason;
    enum status status;
    char sentence[128], id[64];
};

static struct front front;
static struct core *core;
static struct test_client *client;
// Posted when a reader has begun, when it may continue, and when an event has run.
static sem_t entered, gate, done;
static atomic_int n_read;

// --- the core's actions and the client's

static void take_ready(void *user, bool ready)
{
}

static void note_chunk(struct answer *a, const struct answer_chunk *chunk)
{
    ((struct test_client *)a->client)->chunks++;
}

static void note_done(struct answer *a, const struct request *r, enum finish_reason reason, enum status status,
                      const char *message)
{
    struct test_client *c = (struct test_client *)a->client;
    c->ends++;
    c->reason = reason;
    c->status = status;
    snprintf(c->sentence, sizeof c->sentence, "%s", message);
    snprintf(c->id, sizeof c->id, "%s", r->id);
    ck_assert_uint_eq(answer_rest(a).text_bytes, 0);
    sem_post(&c->ended);
}

static void note_free(struct client *c)
{
    sem_post(&((struct test_client *)c)->freed);
}

static const struct client_ops ops = {.chunk = note_chunk, .done = note_done, .free = note_free};

static void event_done(struct core *c, void *arg, int64_t now_us)
{
    sem_post(&done);
}

// Returns when the core's thread has handled all events posted before.
static void settle(void)
{
    loop_post(front.loop, event_done, NULL);
    sem_wait(&done);
}

static void setup(void)
{
    log_setup("test", LOG_ERROR);
    const struct core_options options = {.max_queue_requests = 1000,
                                         .max_queue_tokens = 1000000,
                                         .max_wait_us = 1000,
                                         .score_timeout_us = 1000000,
                                         .heartbeat_us = 3600000000,
                                         .bins_ahead = 2,
                                         .vocab_size = 100};
    const struct core_ops core_ops = {.ready_changed = take_ready};
    core = core_create(&options, &core_ops);
    front = (struct front){
        .max_queue_requests = 1000, .loop = loop_start(core), .parsed_messages = parsed_message_table_create()};
    front.pool = intake_pool_open(&(struct intake_pool_options){1, 1 << 20, 100, 0});
    sem_init(&entered, 0, 0);
    sem_init(&gate, 0, 0);
    sem_init(&done, 0, 0);
    atomic_store(&n_read, 0);
    client = mem_alloc(sizeof *client);
    client->client.ops = &ops;
    client->client.front = &front;
    sem_init(&client->ended, 0, 0);
    sem_init(&client->freed, 0, 0);
}

static void teardown(void)
{
    client_close(&client->client);
    intake_pool_close(front.pool);
    sem_wait(&client->freed);
    loop_stop(front.loop);
    core_free(core);
    intake_pool_free(front.pool);
    parsed_message_table_free(front.parsed_messages);
    free(client);
}

// --- messages

static void read_message(struct intake_job *job, bool dropped)
{
    struct message *m = (struct message *)job;
    if (dropped) {
        client_dropped(m->parsed, clock_now_us());
    } else {
        sem_post(&entered);
        sem_wait(&gate);
        atomic_fetch_add(&n_read, 1);
        struct answer *a = answer_create(m->parsed, clock_now_us());
        a->request->id = mem_string("mine");
        a->request->spec.tokens = mem_alloc(sizeof *a->request->spec.tokens);
        a->request->spec.n_tokens = 1;
        a->request->spec.sampling.max_tokens = 1;
        answers_submit(a, "generate");
    }
    free(m);
}

static void send_message(const char *id)
{
    struct message *m = mem_alloc(sizeof *m);
    m->parsed = client_message_begin(&client->client, id);
    m->job = (struct intake_job){.run = read_message, .tenant = "", .bytes = 100};
    ck_assert_int_eq(intake_pool_add(front.pool, &m->job, &m->parsed->waiting), STATUS_OK);
}

struct abort_call {
    const char *id;
    uint64_t owner;
    bool found;
};

static void event_abort(struct core *c, void *arg, int64_t now_us)
{
    struct abort_call *call = arg;
    call->found = client_abort(&front, c, call->id, call->owner, now_us);
    sem_post(&done);
}

static bool abort_request(const char *id, uint64_t owner)
{
    struct abort_call call = {id, owner, false};
    loop_post(front.loop, event_abort, &call);
    sem_wait(&done);
    return call.found;
}

static void ck_cancelled_once(void)
{
    sem_wait(&client->ended);
    settle();
    ck_assert_int_eq(client->ends, 1);
    ck_assert_int_eq(client->chunks, 0);
    ck_assert_int_eq(client->reason, FINISH_REASON_CANCELLED);
    ck_assert_int_eq(client->status, STATUS_CANCELLED);
    ck_assert_str_eq(client->sentence, "the request was cancelled");
    ck_assert_str_eq(client->id, "mine");
    ck_assert(!abort_request("mine", 0));
}

// --- tests

START_TEST(a_waiting_message_ends_immediately_and_is_not_read)
{
    send_message("first");
    sem_wait(&entered); // the pool's only thread is busy
    send_message("mine");
    ck_assert(abort_request("mine", 0));
    ck_cancelled_once();
    ck_assert_int_eq(intake_pool_waiting(front.pool), 0);
    ck_assert(abort_request("first", 0));
    sem_post(&gate);
    sem_wait(&client->ended);
    ck_assert_int_eq(atomic_load(&n_read), 1);
}
END_TEST

START_TEST(a_message_that_is_being_read_ends_afterwards)
{
    send_message("mine");
    sem_wait(&entered);
    ck_assert(abort_request("mine", 0));
    ck_assert(!abort_request("mine", 0)); // already aborted, though it is still being read
    settle();
    ck_assert_int_eq(client->ends, 0);
    sem_post(&gate);
    ck_cancelled_once();
    ck_assert_uint_eq(core->ledger.totals.cancelled, 1);
    ck_assert_int_eq(core->ledger.waiting[QUEUE_NORMAL].requests, 0);
}
END_TEST

START_TEST(messages_without_an_id_of_other_ids_and_of_other_owners_continue)
{
    send_message("");
    sem_wait(&entered);
    send_message("mine");
    ck_assert(!abort_request("", 0));
    ck_assert(!abort_request("other", 0));
    ck_assert(!abort_request("mine", 7));
    ck_assert_int_eq(intake_pool_waiting(front.pool), 1);
    sem_post(&gate);
    sem_post(&gate);
    sem_wait(&client->ended);
    sem_wait(&client->ended);
    ck_assert_int_eq(client->status, STATUS_UNAVAILABLE); // no node is attached
}
END_TEST

// An Abort may repeat an id, and may name ids that other owners use. Each look-up is one step. If it were a walk over
// the messages, this test would take many minutes.
enum { SAME_ID = 10000, REPEATED = 1000000 };

static void event_abort_repeatedly(struct core *c, void *arg, int64_t now_us)
{
    struct abort_call *call = arg;
    for (int i = 0; i < REPEATED; i++)
        call->found |= client_abort(&front, c, call->id, call->owner, now_us);
    sem_post(&done);
}

static bool abort_repeatedly(const char *id, uint64_t owner)
{
    struct abort_call call = {id, owner, false};
    loop_post(front.loop, event_abort_repeatedly, &call);
    sem_wait(&done);
    return call.found;
}

START_TEST(an_id_that_comes_again_costs_no_walk_over_its_messages)
{
    static struct parsed_message *messages[SAME_ID];
    for (int i = 0; i < SAME_ID; i++)
        messages[i] =
            parsed_message_begin(front.parsed_messages, &client->client, &client->client.parsed_messages, "mine", 8);
    ck_assert(!abort_repeatedly("mine", 7));
    ck_assert(abort_repeatedly("mine", 8));
    for (int i = 0; i < SAME_ID; i++)
        ck_assert(atomic_load(&messages[i]->aborted));
    ck_assert(!abort_repeatedly("mine", 8));
    for (int i = 0; i < SAME_ID; i++)
        client_not_submitted(messages[i]);
}
END_TEST

// The messages may end in any order.
START_TEST(messages_of_one_id_are_found_until_the_last_has_ended)
{
    struct parsed_message *r[3];
    for (int i = 0; i < 6; i++) {
        for (int n = 0; n < 3; n++)
            r[n] = parsed_message_begin(front.parsed_messages, &client->client, &client->client.parsed_messages, "mine",
                                        8);
        client_not_submitted(r[i % 3]);
        settle();
        if (i < 3) {
            ck_assert(abort_request("mine", 0));
            ck_assert(atomic_load(&r[(i + 1) % 3]->aborted));
            ck_assert(atomic_load(&r[(i + 2) % 3]->aborted));
        }
        client_not_submitted(r[(i + 1) % 3]);
        client_not_submitted(r[(i + 2) % 3]);
        settle();
        ck_assert(!abort_request("mine", 0));
    }
}
END_TEST

START_TEST(an_abort_of_all_owners_finds_those_of_each)
{
    struct parsed_message *r[3];
    for (int n = 0; n < 3; n++)
        r[n] = parsed_message_begin(front.parsed_messages, &client->client, &client->client.parsed_messages, "mine",
                                    7 + (uint64_t)n);
    ck_assert(abort_request("mine", 8));
    ck_assert(!atomic_load(&r[0]->aborted));
    ck_assert(atomic_load(&r[1]->aborted));
    ck_assert(!atomic_load(&r[2]->aborted));
    ck_assert(abort_request("mine", 0));
    ck_assert(atomic_load(&r[0]->aborted));
    ck_assert(atomic_load(&r[2]->aborted));
    for (int n = 0; n < 3; n++)
        client_not_submitted(r[n]);
}
END_TEST

// Such an id is refused when the message is read, and would spoil the traces of others.
START_TEST(an_id_that_is_not_utf8_is_ignored)
{
    send_message("first");
    sem_wait(&entered);
    send_message("\xff");
    ck_assert(!abort_request("\xff", 0));
    ck_assert_int_eq(intake_pool_waiting(front.pool), 1);
    sem_post(&gate);
    sem_post(&gate);
    sem_wait(&client->ended);
    sem_wait(&client->ended);
}
END_TEST

START_TEST(a_client_that_is_gone_drops_its_messages)
{
    send_message("first");
    sem_wait(&entered);
    for (int i = 0; i < 10; i++)
        send_message("mine");
    client_close(&client->client);
    settle();
    settle(); // events of the dropped messages
    ck_assert_int_eq(intake_pool_waiting(front.pool), 0);
    ck_assert_int_eq(sem_trywait(&client->freed), -1); // one is still being read
    sem_post(&gate);
    sem_wait(&client->freed);
    ck_assert_int_eq(client->ends, 0);
    client->client = (struct client){.ops = &ops, .front = &front}; // for teardown
}
END_TEST

SUITE("abort")
{
    TIMEOUT(60);
    FIXTURE(setup, teardown);
    TEST(a_waiting_message_ends_immediately_and_is_not_read);
    TEST(a_message_that_is_being_read_ends_afterwards);
    TEST(messages_without_an_id_of_other_ids_and_of_other_owners_continue);
    TEST(an_id_that_comes_again_costs_no_walk_over_its_messages);
    TEST(messages_of_one_id_are_found_until_the_last_has_ended);
    TEST(an_abort_of_all_owners_finds_those_of_each);
    TEST(an_id_that_is_not_utf8_is_ignored);
    TEST(a_client_that_is_gone_drops_its_messages);
}
