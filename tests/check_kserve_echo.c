// SPDX-License-Identifier: Apache-2.0
// router/front: whole answers of KServe's clients repeat their prompts. The prompts count in the memory of whole
// answers while the requests wait for a node.
#include <stdatomic.h>

#include "proto/inference/kserve.pb-c.h"
#include "tests/front_fixture.h"
#include "tests/suite.h"

enum { CONTEXT = 1 << 21, PROMPT_BYTES = 3 << 19, TIMEOUT_MS = 60000 }; // a prompt of 1.5 MiB

typedef Inference__ModelInferRequest infer_request;
typedef Inference__ModelInferRequest__InferInputTensor input_tensor;
typedef Inference__ModelInferRequest__InferRequestedOutputTensor output_name;

static atomic_int bins;

// --- a node that answers nothing

static void node_receive(struct node_link *link, const router_message *m)
{
    if (m->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN) atomic_fetch_add(&bins, 1);
}

static const struct node_link_ops node_ops = {node_receive, node_finish, node_peer};

static void event_attach(struct core *c, void *arg, int64_t now_us)
{
    static struct node_link node;
    node_attach(&node, &node_ops, make_hello(FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER, "test"), now_us);
}

// --- the router

static void event_count(struct core *c, void *arg, int64_t now_us)
{
    *(size_t *)arg = front.whole.bytes;
    sem_post(&done);
}

static void setup(void)
{
    log_setup("test", LOG_ERROR);
    front_open_demo(CONTEXT);
    front.whole.max_bytes = 1 << 20;
    front_start((struct core_options){.max_queue_requests = 100, .max_queue_tokens = CONTEXT});
    front.pool = intake_pool_open(&(struct intake_pool_options){.threads = 1, .max_bytes = 64 << 20, .max_jobs = 10});
    loop_post(front.loop, event_attach, NULL);
    static struct rpc_method methods[2];
    methods[0] = front_model_infer;
    front_serve_grpc(methods, 0);
}

static void teardown(void)
{
    front_stop();
    ck_assert_uint_eq(front.whole.bytes, 0);
}

// --- tests

// Sends a request for the output, with a prompt of PROMPT_BYTES. Returns its call.
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
    ck_assert_msg(status == STATUS_EXHAUSTED, "%s: %s", status_name(status), status_message());
    ck_assert_msg(strstr(status_message(), "whole answers take over 1 MiB") != NULL, "%s", status_message());
    rpc_stream_close(stream);
}
END_TEST

START_TEST(a_prompt_is_not_kept_where_the_text_is_not_asked_for)
{
    front.whole.max_bytes = 16 << 20; // large enough for all cases
    struct rpc_stream *stream = ask("num_input_tokens");
    for (int i = 0; i < TIMEOUT_MS && !atomic_load(&bins); i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    ck_assert_int_eq(atomic_load(&bins), 1);
    size_t counted = 1;
    run_event(event_count, &counted);
    ck_assert_uint_eq(counted, 0);
    rpc_stream_close(stream);
}
END_TEST

SUITE("kserve_echo")
{
    TIMEOUT(120);
    FIXTURE(setup, teardown);
    TEST(a_prompt_that_the_answer_will_repeat_counts);
    TEST(a_prompt_is_not_kept_where_the_text_is_not_asked_for);
}
