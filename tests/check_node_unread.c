// SPDX-License-Identifier: Apache-2.0
// router/front: nodes that read nothing from their stream, like a stopped or broken process, and a router that does not
// handle what nodes send. The router detaches them and frees what waits.
#include "router/core/core_state.h"
#include "router/core/nodes.h"
#include "tests/front_fixture.h"
#include "tests/suite.h"

// Messages of 30 MiB. The node's C-core accepts one or two of them, the others wait.
enum { TOKENS = 6 << 20, TOKEN = INT32_MAX, FEW = 4, TOO_MANY = 8 };

static struct rpc_stream *stream;
static sem_t gate; // lets the core's thread continue

// --- on the core's thread

static void event_count_nodes(struct core *c, void *arg, int64_t now_us)
{
    *(bool *)arg = core_first_node(c) != NULL;
    sem_post(&done);
}

// Sends a large message, such as one for many long answers for which the node drafts.
static void event_send(struct core *c, void *arg, int64_t now_us)
{
    struct core_node *node = core_first_node(c);
    if (node) c->ops.send_drafts(node->link, arg, 1);
    sem_post(&done);
}

static void event_lose(struct core *c, void *arg, int64_t now_us)
{
    core_node_lose(c, core_first_node(c), LOSS_HUNG, "no progress", now_us);
    sem_post(&done);
}

static bool is_attached(void)
{
    bool attached;
    run_event(event_count_nodes, &attached);
    return attached;
}

// --- the node

static void attach(void)
{
    node_hello_message hello = make_hello(FOREPACK__CLUSTER__V1__ROLE__ROLE_SPECULATOR, "silent");
    node_message message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HELLO;
    message.hello = &hello;
    uint8_t bytes[256];
    size_t size = forepack__cluster__v1__node_message__pack(&message, bytes);
    ck_assert_int_eq(rpc_stream_open(channel, front_attach.path, 0, true, &stream), STATUS_OK);
    rpc_stream_send(stream, bytes, size);
    for (int i = 0; i < 20000 && !is_attached(); i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    ck_assert(is_attached());
}

// Waits until the server's call, one of the objects, has ended.
static void wait_for_end(int objects)
{
    for (int i = 0; i < 20000 && rpc_live_objects() >= objects; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    ck_assert_int_lt(rpc_live_objects(), objects);
    ck_assert(!is_attached());
}

// --- the router

static void setup(void)
{
    log_setup("test", LOG_ERROR);
    front = (struct front){.config = {.vocab_size = 100, .max_context = 100}, .heartbeat_ms = 3600000};
    front_start((struct core_options){
        .max_queue_requests = 1000, .max_queue_tokens = 1000000, .max_wait_us = 1000, .score_timeout_us = 1000000});
    sem_init(&gate, 0, 0);
    static struct rpc_method methods[2];
    methods[0] = front_attach;
    front_serve_grpc(methods, 1);
}

static void teardown(void)
{
    rpc_stream_close(stream);
    front_stop();
}

// --- tests

static struct node_draft large_draft(void)
{
    int32_t *tokens = mem_alloc_array(TOKENS, sizeof *tokens);
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = TOKEN;
    return (struct node_draft){.request = 1, .tokens = tokens, .n = TOKENS};
}

START_TEST(a_node_is_disconnected_when_too_much_waits_for_it)
{
    struct node_draft draft = large_draft();
    attach();
    int objects = rpc_live_objects();
    for (int i = 0; i < TOO_MANY; i++)
        run_event(event_send, &draft);
    wait_for_end(objects);
    free((void *)draft.tokens);
}
END_TEST

START_TEST(the_stream_of_a_lost_node_ends_although_it_does_not_read)
{
    struct node_draft draft = large_draft();
    attach();
    int objects = rpc_live_objects();
    for (int i = 0; i < FEW; i++)
        run_event(event_send, &draft);
    run_event(event_lose, NULL);
    wait_for_end(objects);
    free((void *)draft.tokens);
}
END_TEST

static void event_block(struct core *c, void *arg, int64_t now_us)
{
    sem_post(&done);
    sem_wait(&gate);
}

// Sends messages that take 16 MiB each when they are unpacked. 40 MiB may wait.
static void send_much(void)
{
    enum { IDS = 4 << 20, MESSAGES = 3 };
    Forepack__Cluster__V1__SequenceResult result = FOREPACK__CLUSTER__V1__SEQUENCE_RESULT__INIT, *results = &result;
    result.token_ids = mem_alloc_array(IDS, sizeof *result.token_ids);
    result.n_token_ids = IDS;
    Forepack__Cluster__V1__StepResults step = FOREPACK__CLUSTER__V1__STEP_RESULTS__INIT;
    step.results = &results;
    step.n_results = 1;
    node_message message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP;
    message.step = &step;
    size_t size = forepack__cluster__v1__node_message__get_packed_size(&message);
    uint8_t *bytes = mem_alloc(size);
    forepack__cluster__v1__node_message__pack(&message, bytes);
    for (int i = 0; i < MESSAGES; i++)
        rpc_stream_send(stream, bytes, size);
    free(bytes);
    free(result.token_ids);
}

START_TEST(a_node_whose_messages_are_not_handled_is_told_so)
{
    attach();
    run_event(event_block, NULL);
    send_much();
    struct rpc_bytes bytes;
    enum status status;
    while ((status = rpc_stream_read(stream, &bytes)) == STATUS_OK && bytes.data)
        rpc_bytes_free(&bytes);
    ck_assert_msg(status == STATUS_UNAVAILABLE, "%s: %s", status_name(status), status_message());
    ck_assert_msg(strstr(status_message(), "has not handled") != NULL, "%s", status_message());
    sem_post(&gate);
}
END_TEST

SUITE("node_unread")
{
    TIMEOUT(60);
    FIXTURE(setup, teardown);
    TEST(a_node_is_disconnected_when_too_much_waits_for_it);
    TEST(the_stream_of_a_lost_node_ends_although_it_does_not_read);
    TEST(a_node_whose_messages_are_not_handled_is_told_so);
}
