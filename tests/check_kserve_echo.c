// SPDX-License-Identifier: Apache-2.0
// router/front: whole answers of KServe's clients repeat their prompts. These count in the memory of whole answers
// while the requests wait for a node.
#include <check.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/version.h"
#include "proto/inference/kserve.pb-c.h"
#include "router/front/front.h"
#include "router/front/intake_pool.h"
#include "router/front/node_link.h"
#include "router/front/reading.h"

enum { CONTEXT = 1 << 21, PROMPT_BYTES = 3 << 19, TIMEOUT_MS = 60000 }; // a prompt of 1.5 MiB

typedef Inference__ModelInferRequest infer_request;
typedef Inference__ModelInferRequest__InferInputTensor input_tensor;
typedef Inference__ModelInferRequest__InferRequestedOutputTensor output_name;

static struct front front;
static struct core *core;
static struct rpc_server *server;
static struct rpc_channel *channel;
static atomic_int bins;
static sem_t done; // event_count() has run

// --- a node that answers nothing

static void node_receive(struct node_link *link, const Forepack__Cluster__V1__RouterMessage *m)
{
    if (m->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN) atomic_fetch_add(&bins, 1);
}

static void node_finish(struct node_link *link, enum status status, const char *reason)
{
}

static const char *node_peer(const struct node_link *link)
{
    return "test";
}

static const struct node_link_ops node_ops = {node_receive, node_finish, node_peer};
static struct node_link node = {.ops = &node_ops};

static void event_attach(struct core *c, void *arg, int64_t now_us)
{
    Forepack__Cluster__V1__Hello hello = FOREPACK__CLUSTER__V1__HELLO__INIT;
    hello.protocol = CLUSTER_PROTOCOL_VERSION;
    hello.role = FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER;
    hello.node_id = "test";
    hello.instance = hello.model_fingerprint = 1;
    hello.ranks = hello.max_seqs = 1;
    hello.tokenizer_fingerprint = tokenizer_fingerprint(front.tokenizer);
    hello.vocab_size = (uint32_t)front.config.vocab_size;
    hello.context_tokens = CONTEXT;
    hello.token_budget = 8192;
    hello.block_tokens = 16;
    hello.kv_blocks = CONTEXT / 16;
    Forepack__Cluster__V1__NodeMessage message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HELLO;
    message.hello = &hello;
    node_link_handle(&node, c, &message, now_us);
}

// --- the router

static void event_count(struct core *c, void *arg, int64_t now_us)
{
    *(size_t *)arg = front.whole.bytes;
    sem_post(&done);
}

static void setup(void)
{
    sem_init(&done, 0, 0);
    static char *names[] = {"demo"};
    log_setup("test", LOG_ERROR);
    rpc_init();
    const char *source = getenv("FOREPACK_SOURCE");
    char *dir = mem_format("%s/deploy/demo-model/main", source ? source : ".");
    front = (struct front){.model_names = names, .n_model_names = 1, .config = {.max_context = CONTEXT}};
    front.whole.max_bytes = 1 << 20;
    ck_assert_msg(tokenizer_open(dir, &front.tokenizer) == STATUS_OK, "%s", status_message());
    free(dir);
    front.config.vocab_size = tokenizer_vocab_size(front.tokenizer);
    prefill_defaults(&front.prefill);
    struct core_ops ops;
    front_core_ops_init(&front, &ops);
    const struct core_options options = {.max_queue_requests = 100,
                                         .max_queue_tokens = CONTEXT,
                                         .heartbeat_us = 3600000000,
                                         .bins_ahead = 2,
                                         .tokenizer_fingerprint = tokenizer_fingerprint(front.tokenizer),
                                         .vocab_size = front.config.vocab_size};
    core = core_create(&options, &ops);
    front.loop = loop_start(core);
    front.pool = intake_pool_open(&(struct intake_pool_options){.threads = 1, .max_bytes = 64 << 20, .max_jobs = 10});
    front.readings = reading_table_create();
    loop_post(front.loop, event_attach, NULL);
    static struct rpc_method methods[2];
    methods[0] = front_model_infer;
    const struct rpc_server_options server_options = {.address = "127.0.0.1:0", .methods = methods, .context = &front};
    ck_assert_msg(rpc_server_open(&server_options, &server) == STATUS_OK, "%s", status_message());
    char target[32];
    snprintf(target, sizeof target, "127.0.0.1:%d", rpc_server_port(server));
    ck_assert_int_eq(rpc_channel_open(target, &channel), STATUS_OK);
}

static void teardown(void)
{
    rpc_channel_close(channel);
    rpc_server_close(server, 0);
    intake_pool_close(front.pool);
    loop_stop(front.loop);
    core_free(core);
    intake_pool_free(front.pool);
    reading_table_free(front.readings);
    tokenizer_free(front.tokenizer);
    ck_assert_uint_eq(front.whole.bytes, 0);
    rpc_shutdown();
}

// --- tests

// The call of a request for the output, with a prompt of PROMPT_BYTES.
static struct rpc_stream *ask(char *output)
{
    Inference__InferTensorContents contents = INFERENCE__INFER_TENSOR_CONTENTS__INIT;
    input_tensor input = INFERENCE__MODEL_INFER_REQUEST__INFER_INPUT_TENSOR__INIT, *inputs = &input;
    output_name named = INFERENCE__MODEL_INFER_REQUEST__INFER_REQUESTED_OUTPUT_TENSOR__INIT, *outputs = &named;
    infer_request m = INFERENCE__MODEL_INFER_REQUEST__INIT;
    ProtobufCBinaryData prompt = {PROMPT_BYTES, mem_alloc(PROMPT_BYTES)};
    int64_t shape = 1;
    for (int i = 0; i < PROMPT_BYTES; i++)
        prompt.data[i] = (uint8_t) "hello "[i % 6];
    contents.bytes_contents = &prompt;
    contents.n_bytes_contents = 1;
    input.name = "text_input";
    input.datatype = "BYTES";
    input.shape = &shape;
    input.n_shape = 1;
    input.contents = &contents;
    named.name = output;
    m.model_name = "demo";
    m.inputs = &inputs;
    m.outputs = &outputs;
    m.n_inputs = m.n_outputs = 1;
    struct rpc_bytes bytes = {.size = inference__model_infer_request__get_packed_size(&m)};
    bytes.data = mem_alloc(bytes.size);
    inference__model_infer_request__pack(&m, bytes.data);
    free(prompt.data);
    struct rpc_stream *stream;
    ck_assert_int_eq(rpc_stream_open(channel, front_model_infer.path, TIMEOUT_MS, true, &stream), STATUS_OK);
    rpc_stream_give(stream, &bytes);
    rpc_stream_half_close(stream);
    return stream;
}

START_TEST(a_prompt_that_the_answer_will_repeat_counts)
{
    struct rpc_stream *stream = ask("text_output");
    struct rpc_bytes answer = {0};
    enum status status = rpc_stream_read(stream, &answer);
    ck_assert_msg(status == STATUS_EXHAUSTED && strstr(status_message(), "whole answers take over 1 MiB"), "%s: %s",
                  status_name(status), status_message());
    rpc_stream_close(stream);
}
END_TEST

START_TEST(a_prompt_is_not_kept_where_the_text_is_not_asked_for)
{
    front.whole.max_bytes = 16 << 20; // it is not refused in any case
    struct rpc_stream *stream = ask("num_input_tokens");
    for (int i = 0; i < TIMEOUT_MS && !atomic_load(&bins); i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    ck_assert_int_eq(atomic_load(&bins), 1);
    size_t counted = 1;
    loop_post(front.loop, event_count, &counted);
    sem_wait(&done);
    ck_assert_uint_eq(counted, 0);
    rpc_stream_close(stream);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kserve_echo");
    TCase *tcase = tcase_create("kserve_echo");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, a_prompt_that_the_answer_will_repeat_counts);
    tcase_add_test(tcase, a_prompt_is_not_kept_where_the_text_is_not_asked_for);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
