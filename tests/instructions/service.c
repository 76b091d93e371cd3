// SPDX-License-Identifier: Apache-2.0
// Sends requests of one client, one after another, to the router's services in this process, by HTTP and gRPC over
// loopback. A worker group in this file reads each bin as the bytes of its message, and answers with the bytes of its
// own message. The work of the client and the worker group is not counted.
#include "lib/messages/unpack.h"
#include "proto/forepack/v1/inference.pb-c.h"
#include "tests/front_fixture.h"
#include "tests/http_client.h"
#include "tests/instructions/rows.h"

enum { CONTEXT = 2048, WARM = 50, REQUESTS = 400, OUTPUT = 32, PASS = 8, ANSWER_BYTES = 4096, MEMORY_MAX = 1 << 20 };

#define PROMPT                                                                                                         \
    "Late in the afternoon a group of children argued quietly about the village school, and no one thought much of "   \
    "it. The baker waited for an hour near the town hall. After the rain the ferryman repaired the wooden fence "      \
    "around the little museum, while the gulls circled overhead. The permit number of Nena Morik is 4892."

// ---- the worker group

static struct node_link worker;

// The bytes of a pass that the worker group computed.
struct pass {
    uint64_t request;
    int left; // tokens that are left, including the tokens of this pass
    uint8_t bytes[ANSWER_BYTES];
    size_t n;
};

static void pass_make(void *arg)
{
    struct pass *pass = arg;
    uint32_t tokens[PASS];
    for (int i = 0; i < PASS; i++)
        tokens[i] = 300 + (uint32_t)i;
    Forepack__Cluster__V1__SequenceResult result = FOREPACK__CLUSTER__V1__SEQUENCE_RESULT__INIT, *results = &result;
    result.request = pass->request;
    result.token_ids = tokens;
    result.n_token_ids = PASS;
    if (pass->left == PASS) result.finish = FOREPACK__CLUSTER__V1__FINISH__FINISH_LENGTH;
    Forepack__Cluster__V1__StepResults step = FOREPACK__CLUSTER__V1__STEP_RESULTS__INIT;
    step.results = &results;
    step.n_results = 1;
    step.rows = step.step_us = PASS;
    step.pairs = PASS;
    node_message message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP;
    message.step = &step;
    pass->n = forepack__cluster__v1__node_message__pack(&message, pass->bytes);
}

static struct pass pass; // the pass of the only request; core's thread

static void event_pass(struct core *c, void *arg, int64_t now_us)
{
    not_counted(pass_make, &pass);
    size_t memory;
    node_message *message =
        proto_unpack(&forepack__cluster__v1__node_message__descriptor, pass.bytes, pass.n, MEMORY_MAX, &memory);
    ck_assert_ptr_nonnull(message);
    pass.left -= PASS;
    if (pass.left) loop_post(front.loop, event_pass, NULL);
    node_link_handle(&worker, c, message, now_us);
    forepack__cluster__v1__node_message__free_unpacked(message, NULL);
}

static void worker_receive(struct node_link *link, const router_message *m)
{
    uint8_t bytes[ANSWER_BYTES];
    ck_assert_uint_le(protobuf_c_message_get_packed_size(&m->base), sizeof bytes);
    protobuf_c_message_pack(&m->base, bytes);
    if (m->kind_case != FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN) return;
    pass.request = m->prefill_bin->sequences[0]->request;
    pass.left = OUTPUT;
    loop_post(front.loop, event_pass, NULL);
}

static const struct node_link_ops worker_ops = {worker_receive, node_finish, node_peer};

static void event_attach(struct core *c, void *arg, int64_t now_us)
{
    node_attach(&worker, &worker_ops, make_hello(FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER, "worker"), now_us);
    sem_post(&done);
}

// ---- the router

static void router_start(void)
{
    front_open_demo(CONTEXT);
    front.max_queue_requests = 100;
    front.whole.max_bytes = 1 << 20;
    front_start((struct core_options){.max_queue_requests = 100,
                                      .max_queue_tokens = 1 << 20,
                                      .worker_grace_us = 3600000000,
                                      .score_timeout_us = 3600000000,
                                      .policy = BIN_DATASET,
                                      .clock_us = clock_now_us});
    front.pool = intake_pool_open(&(struct intake_pool_options){.threads = 1, .max_bytes = 64 << 20, .max_jobs = 100});
    run_event(event_attach, NULL);
}

static long requests_run(void (*ask)(void *), void *client)
{
    for (int i = 0; i < WARM; i++)
        ask(client);
    counting_begin();
    for (int i = 0; i < REQUESTS; i++)
        not_counted(ask, client);
    counting_end();
    return REQUESTS;
}

// ---- HTTP

static void http_ask(void *arg)
{
    static const char body[] = "{\"model\":\"demo\",\"prompt\":\"" PROMPT "\",\"max_tokens\":32,\"seed\":1}";
    char text[ANSWER_BYTES];
    int fd = *(int *)arg;
    snprintf(text, sizeof text,
             "POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: "
             "%zu\r\n\r\n%s",
             sizeof body - 1, body);
    ck_assert(client_send(fd, text));
    struct client_text answer =
        client_receive_until(fd, "\"usage\":"); // this text is close to the end and is sent with it
    ck_assert_msg(strncmp(answer.bytes, "HTTP/1.1 200 ", 13) == 0, "%s", answer.bytes);
    free(answer.bytes);
}

long row_http_request(void)
{
    router_start();
    front_serve_http((struct http_service_options){.max_body_bytes = 1 << 20});
    int fd = client_connect(http_service_port(service));
    long n = requests_run(http_ask, &fd);
    close(fd);
    front_stop();
    return n;
}

// ---- gRPC

static void grpc_ask(void *arg)
{
    Forepack__V1__SamplingOptions sampling = FOREPACK__V1__SAMPLING_OPTIONS__INIT;
    sampling.max_tokens_given_case = FOREPACK__V1__SAMPLING_OPTIONS__MAX_TOKENS_GIVEN_MAX_TOKENS;
    sampling.max_tokens = OUTPUT;
    sampling.seed_given_case = FOREPACK__V1__SAMPLING_OPTIONS__SEED_GIVEN_SEED;
    sampling.seed = 1;
    Forepack__V1__GenerateRequest m = FOREPACK__V1__GENERATE_REQUEST__INIT;
    m.text = (ProtobufCBinaryData){sizeof PROMPT - 1, (uint8_t *)PROMPT};
    m.sampling = &sampling;
    uint8_t bytes[ANSWER_BYTES];
    size_t n = forepack__v1__generate_request__pack(&m, bytes);
    struct rpc_stream *stream;
    ck_assert_int_eq(rpc_stream_open(channel, front_generate.path, 0, true, &stream), STATUS_OK);
    rpc_stream_send(stream, bytes, n);
    rpc_stream_half_close(stream);
    struct rpc_bytes answer;
    for (bool ended = false; !ended;) {
        ck_assert_msg(rpc_stream_read(stream, &answer) == STATUS_OK, "%s", status_message());
        ended = !answer.data;
        if (!ended) rpc_bytes_free(&answer);
    }
    rpc_stream_close(stream);
}

long row_grpc_request(void)
{
    static struct rpc_method methods[2];
    methods[0] = front_generate;
    router_start();
    front_serve_grpc(methods, 1);
    long n = requests_run(grpc_ask, NULL);
    front_stop();
    return n;
}
