// SPDX-License-Identifier: Apache-2.0
// proto/unpack: the memory of a message is bounded, whatever its bytes.
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/status.h"
#include "lib/messages/unpack.h"
#include "proto/forepack/cluster/v1/cluster.pb-c.h"
#include "proto/forepack/v1/inference.pb-c.h"
#include "tests/suite.h"

static const ProtobufCMessageDescriptor *const node_kind = &forepack__cluster__v1__node_message__descriptor;
static const ProtobufCMessageDescriptor *const router_kind = &forepack__cluster__v1__router_message__descriptor;
static const ProtobufCMessageDescriptor *const client_kind = &forepack__v1__generate_request__descriptor;

// Packs results with every kind of field into bytes [1024].
static size_t pack_step(uint8_t *bytes)
{
    uint32_t ids[] = {1, 2, 300};
    float numbers[] = {1, 2, 3};
    Forepack__Cluster__V1__TokenLogprob logprob = FOREPACK__CLUSTER__V1__TOKEN_LOGPROB__INIT;
    logprob.top_ids = ids;
    logprob.top_logprobs = numbers;
    logprob.n_top_ids = logprob.n_top_logprobs = 3;
    Forepack__Cluster__V1__TokenLogprob *logprobs[] = {&logprob, &logprob, &logprob};
    Forepack__Cluster__V1__SequenceResult result = FOREPACK__CLUSTER__V1__SEQUENCE_RESULT__INIT;
    result.token_ids = ids;
    result.n_token_ids = 3;
    result.logprobs = logprobs;
    result.n_logprobs = 3;
    result.error = "a sentence";
    Forepack__Cluster__V1__SequenceResult *results[] = {&result, &result};
    Forepack__Cluster__V1__StepResults step = FOREPACK__CLUSTER__V1__STEP_RESULTS__INIT;
    step.results = results;
    step.n_results = 2;
    Forepack__Cluster__V1__NodeMessage message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP;
    message.step = &step;
    size_t size = forepack__cluster__v1__node_message__pack(&message, bytes);
    memcpy(bytes + size, "\xfa\x01\x03xyz", 6); // an unknown field
    return size + 6;
}

START_TEST(every_budget_below_what_a_message_takes_is_refused)
{
    uint8_t bytes[1024];
    size_t size = pack_step(bytes), taken = 0;
    void *whole = proto_unpack(node_kind, bytes, size, 1 << 20, &taken);
    ck_assert_ptr_nonnull(whole);
    protobuf_c_message_free_unpacked(whole, NULL);
    ck_assert_uint_gt(taken, size);
    for (size_t budget = 0; budget < taken; budget++)
        ck_assert_ptr_null(proto_unpack(node_kind, bytes, size, budget, NULL));
    whole = proto_unpack(node_kind, bytes, size, taken, NULL);
    ck_assert_ptr_nonnull(whole);
    protobuf_c_message_free_unpacked(whole, NULL);
}
END_TEST

// Unpacks `head` followed by many times `unit` of n bytes: 8 MiB, less a byte if the head has an odd number of bytes.
// It must be refused.
static void refuse_8_mib(const ProtobufCMessageDescriptor *kind, const char *head, size_t head_size, const char *unit,
                         size_t n)
{
    enum { SIZE = 8 << 20, MEMORY = 40 << 20 };
    uint8_t *bytes = mem_alloc(SIZE);
    memcpy(bytes, head, head_size);
    size_t size = head_size;
    for (; size + n <= SIZE; size += n)
        memcpy(bytes + size, unit, n);
    ck_assert_ptr_null(proto_unpack(kind, bytes, size, MEMORY, NULL));
    ck_assert_str_eq(status_message(),
                     "the message takes over 40 MiB of memory when unpacked: send fewer fields in one message");
    free(bytes);
}

START_TEST(messages_that_grow_are_refused)
{
    refuse_8_mib(node_kind, "\x22\xfa\xff\xff\x03", 5, "\x0a\x00", 2);   // results of StepResults
    refuse_8_mib(node_kind, "\x1a\xfa\xff\xff\x03", 5, "\x0a\x00", 2);   // results of ScoreResults
    refuse_8_mib(router_kind, "\x22\xfa\xff\xff\x03", 5, "\x12\x00", 2); // sequences of PrefillBin
    refuse_8_mib(client_kind, "", 0, "\x2a\x00", 2);                     // empty messages of a chat
    refuse_8_mib(client_kind, "", 0, "\xf8\x01\x01", 3);                 // unknown fields
    refuse_8_mib(client_kind, "", 0, "\xfa\x0f\x00", 3);
}
END_TEST

START_TEST(a_malformed_message_is_named)
{
    ck_assert_ptr_null(proto_unpack(client_kind, (const uint8_t *)"\xff", 1, 1 << 20, NULL));
    ck_assert_str_eq(status_message(), "the message is not a valid GenerateRequest");
}
END_TEST

// Empty strings of a message share a string that is not on the heap and must not be freed.
START_TEST(an_empty_message_is_unpacked)
{
    size_t taken;
    void *message = proto_unpack(client_kind, (const uint8_t *)"", 0, 1 << 20, &taken);
    ck_assert_ptr_nonnull(message);
    ck_assert_uint_lt(taken, 4096);
    protobuf_c_message_free_unpacked(message, NULL);
}
END_TEST

SUITE("unpack")
{
    TEST(every_budget_below_what_a_message_takes_is_refused);
    TEST(messages_that_grow_are_refused);
    TEST(a_malformed_message_is_named);
    TEST(an_empty_message_is_unpacked);
}
