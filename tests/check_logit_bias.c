// SPDX-License-Identifier: Apache-2.0
// The logit bias: its bounds, how it reaches the router's request, and how the sampler uses it.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/net/rpc.h"
#include "proto/forepack/v1/inference.pb-c.h"
#include "router/front/grpc/wire_request.h"
#include "tests/suite.h"
#include "worker/sampler.h"

// --- bounds

static void ck_refused(enum status status, const char *sentence)
{
    ck_assert_int_eq(status, STATUS_INVALID);
    ck_assert_msg(strstr(status_message(), sentence) != NULL, "%s", status_message());
}

START_TEST(tokens_are_in_ascending_order)
{
    struct logit_bias bias = {0};
    for (int i = 0; i < LOGIT_BIAS_TOKENS_MAX; i++)
        ck_assert_int_eq(logit_bias_add(&bias, i * 389 % 1031, i % 200 - 100), STATUS_OK);
    ck_assert_int_eq(logit_bias_check(&bias, 1031), STATUS_OK);
    struct logit_bias copy = logit_bias_copy(&bias);
    ck_refused(logit_bias_add(&copy, 5000, 1), "logit_bias: 1025 tokens given, at most 1024 are allowed");
    ck_assert_mem_eq(copy.ids, bias.ids, sizeof *bias.ids * LOGIT_BIAS_TOKENS_MAX);
    ck_assert_mem_eq(copy.numbers, bias.numbers, sizeof *bias.numbers * LOGIT_BIAS_TOKENS_MAX);
    logit_bias_free(&copy);
    logit_bias_free(&bias);
}
END_TEST

START_TEST(wrong_tokens_and_numbers_are_refused)
{
    struct logit_bias bias = {0};
    ck_assert_int_eq(logit_bias_add(&bias, 7, -100), STATUS_OK);
    ck_refused(logit_bias_add(&bias, 7, 1), "token 7 is given twice");
    ck_refused(logit_bias_add(&bias, -1, 1), "-1 is not a token id");
    ck_refused(logit_bias_add(&bias, INT64_C(1) << 32, 1), "4294967296 is not a token id");
    ck_refused(logit_bias_add(&bias, 8, 100.5), "logit_bias: token 8 has 100.5: must be from -100 to 100");
    ck_refused(logit_bias_add(&bias, 8, NAN), "must be from -100 to 100");
    ck_refused(logit_bias_add(&bias, 8, -INFINITY), "must be from -100 to 100");
    ck_assert_int_eq(bias.n, 1);
    ck_assert_int_eq(logit_bias_check(&bias, 8), STATUS_OK);
    ck_refused(logit_bias_check(&bias, 7), "token 7 is outside the vocabulary of 7 tokens");
    logit_bias_free(&bias);
}
END_TEST

// --- on the way to the router

static struct front front = {.model_names = (char *[]){"demo"}, .n_model_names = 1, .config = {.max_context = 64}};

static void open_front(void)
{
    const char *source = getenv("FOREPACK_SOURCE");
    char *dir = mem_format("%s/deploy/demo-model/main", source ? source : ".");
    ck_assert_msg(tokenizer_open(dir, &front.tokenizer) == STATUS_OK, "%s", status_message());
    front.config.vocab_size = tokenizer_vocab_size(front.tokenizer);
    prefill_defaults(&front.prefill);
    free(dir);
}

static void close_front(void)
{
    tokenizer_free(front.tokenizer);
}

// Reads a packed request as the router does.
static enum status read_request(const struct rpc_bytes *bytes, struct request **r_p)
{
    Forepack__V1__GenerateRequest *m = forepack__v1__generate_request__unpack(NULL, bytes->size, bytes->data);
    ck_assert_ptr_nonnull(m);
    struct text_stream *text = NULL;
    *r_p = request_create();
    const struct wire_options options = {.default_tokens = MAX_TOKENS_DEFAULT};
    enum status status = wire_request_read(&(struct client){.front = &front}, m, &options, *r_p, &text);
    if (status == STATUS_OK) text_stream_free(text);
    forepack__v1__generate_request__free_unpacked(m, NULL);
    return status;
}

// sampling { logit_bias { key: ID value: NUMBER } ... }
static enum status read_bias(int n, const uint32_t *ids, const float *numbers, struct request **r_p)
{
    typedef Forepack__V1__SamplingOptions__LogitBiasEntry entry_message;
    entry_message entries[3], *list[3];
    for (int i = 0; i < n; i++) {
        forepack__v1__sampling_options__logit_bias_entry__init(&entries[i]);
        entries[i].key = ids[i];
        entries[i].value = numbers[i];
        list[i] = &entries[i];
    }
    Forepack__V1__SamplingOptions sampling = FOREPACK__V1__SAMPLING_OPTIONS__INIT;
    sampling.n_logit_bias = (size_t)n;
    sampling.logit_bias = list;
    Forepack__V1__GenerateRequest m = FOREPACK__V1__GENERATE_REQUEST__INIT;
    m.sampling = &sampling;
    m.text = (ProtobufCBinaryData){1, (uint8_t *)"x"};
    struct rpc_bytes bytes = {.size = forepack__v1__generate_request__get_packed_size(&m)};
    bytes.data = mem_alloc(bytes.size);
    forepack__v1__generate_request__pack(&m, bytes.data);
    enum status status = read_request(&bytes, r_p);
    rpc_bytes_free(&bytes);
    return status;
}

START_TEST(a_message_arrives_sorted)
{
    struct request *r;
    ck_assert_msg(read_bias(3, (uint32_t[]){100, 3, 12}, (float[]){100, -100, 2.5f}, &r) == STATUS_OK, "%s",
                  status_message());
    const struct logit_bias *bias = &r->spec.sampling.logit_bias;
    ck_assert_int_eq(bias->n, 3);
    ck_assert_mem_eq(bias->ids, ((int32_t[]){3, 12, 100}), 3 * sizeof *bias->ids);
    ck_assert_mem_eq(bias->numbers, ((float[]){-100, 2.5f, 100}), 3 * sizeof *bias->numbers);
    request_free(r);
}
END_TEST

START_TEST(the_router_refuses_wrong_tokens)
{
    struct request *r;
    ck_refused(read_bias(1, (uint32_t[]){(uint32_t)front.config.vocab_size}, (float[]){1}, &r),
               "is outside the vocabulary of");
    request_free(r);
    ck_refused(read_bias(2, (uint32_t[]){5, 5}, (float[]){1, 1}, &r), "token 5 is given twice");
    request_free(r);
    ck_refused(read_bias(1, (uint32_t[]){5}, (float[]){NAN}, &r), "must be from -100 to 100");
    request_free(r);
}
END_TEST

// --- in the sampler

static int32_t sample(const float logits[4], const struct sampling *p, float *logprob_p)
{
    struct sampler *s = sampler_create(4);
    struct sampler_context context = {.sampling = p, .prompt = (int32_t[]){2}, .n_prompt = 1};
    struct sampled_token token;
    ck_assert_int_eq(sampler_sample_token(s, logits, &context, &token), STATUS_OK);
    sampler_free(s);
    *logprob_p = token.logprob;
    return token.token;
}

START_TEST(minus_100_bans_and_100_forces)
{
    const float logits[4] = {20, 19, 1, -20};
    struct sampling p;
    float logprob;
    for (int seed = 0; seed < 200; seed++) {
        sampling_defaults(&p);
        p.seed = (uint64_t)seed;
        p.temperature = seed % 2;
        ck_assert(!sampling_needs_host(&p, 0));
        logit_bias_add(&p.logit_bias, 0, -100);
        ck_assert(sampling_needs_host(&p, 0));
        ck_assert_int_ne(sample(logits, &p, &logprob), 0);
        logit_bias_add(&p.logit_bias, 3, 100);
        ck_assert_int_eq(sample(logits, &p, &logprob), 3);
        logit_bias_free(&p.logit_bias);
    }
}
END_TEST

// Token 2 is in the prompt. Its logit of 1 + 8 is divided by the penalty, so token 1 remains the best; with the bias
// after the penalty it would be 0.5 + 8.
START_TEST(the_bias_is_added_before_the_penalties)
{
    const float logits[4] = {0, 6, 1, 0};
    struct sampling p;
    float logprob, penalised;
    sampling_defaults(&p);
    p.logprobs = 0;
    logit_bias_add(&p.logit_bias, 2, 8);
    ck_assert_int_eq(sample(logits, &p, &logprob), 2);
    p.repetition_penalty = 2;
    ck_assert_int_eq(sample(logits, &p, &penalised), 1);
    logit_bias_free(&p.logit_bias);
    ck_assert_int_eq(sample(logits, &p, &logprob), 1);
    ck_assert(penalised == logprob); // log-probabilities are computed from the unchanged logits
}
END_TEST

SUITE("logit bias")
{
    FIXTURE_ONCE(open_front, close_front);
    TEST(tokens_are_in_ascending_order);
    TEST(wrong_tokens_and_numbers_are_refused);
    TEST(a_message_arrives_sorted);
    TEST(the_router_refuses_wrong_tokens);
    TEST(minus_100_bans_and_100_forces);
    TEST(the_bias_is_added_before_the_penalties);
}
