// SPDX-License-Identifier: Apache-2.0
// router/front/request/answer_resume: the text of a resumed answer continues exactly where it broke, for every place of
// the break, also inside a stop string. Tokens that cannot be the beginning of the answer are refused. A request that
// is sent again has the same seed.
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/identity/key_file.h"
#include "proto/forepack/v1/inference.pb-c.h"
#include "router/core/resume.h"
#include "router/front/front.h"
#include "router/front/grpc/wire_request.h"
#include "router/front/nodes/cluster_token.h"
#include "router/front/request/answer_resume.h"
#include "tests/suite.h"

enum { TOKENS_MAX = 64, MAX_TOKENS = 40 };

static struct front front = {.model_names = (char *[]){"demo"}, .n_model_names = 1};
static struct bytes sent, again; // text that the client gets, and text that it has
static int32_t output[TOKENS_MAX];
static int n_output;

static void keep(struct bytes *to, const struct answer_chunk *chunk)
{
    bytes_add(to, chunk->text, chunk->text_bytes);
}

static void take_chunk(struct answer *a, const struct answer_chunk *chunk)
{
    keep(&sent, chunk);
}

static void take_resumed(struct answer *a, const struct answer_chunk *chunk)
{
    keep(&again, chunk);
}

static const struct client_ops ops = {.chunk = take_chunk, .resumed = take_resumed};
static struct client client = {.ops = &ops, .front = &front};
static struct parsed_message parsed = {.client = &client};

static void setup(void)
{
    const char *source = getenv("FOREPACK_SOURCE"),
               text[] = "The ferryman said: \xe2\x82\xac 7 \xf0\x9f\x8e\x88 zqx ends";
    char *dir = mem_format("%s/deploy/demo-model/main", source ? source : ".");
    int32_t *ids;
    ck_assert_int_eq(tokenizer_open(dir, &front.tokenizer), STATUS_OK);
    free(dir);
    front.config.vocab_size = tokenizer_vocab_size(front.tokenizer);
    front.config.max_context = 1000;
    front.config.eos_id[0] = 1450;
    front.config.n_eos = 1;
    prefill_defaults(&front.prefill);
    front.prefill.mode = PREFILL_OFF;
    ck_assert_int_eq(tokenizer_encode(front.tokenizer, text, strlen(text), 0, &ids, &n_output), STATUS_OK);
    ck_assert_int_lt(n_output, MAX_TOKENS);
    memcpy(output, ids, (size_t)n_output * sizeof *ids);
    free(ids);
}

static void teardown(void)
{
    tokenizer_free(front.tokenizer);
    bytes_free(&sent);
    bytes_free(&again);
}

static Forepack__V1__SamplingOptions sampling_options(void)
{
    static ProtobufCBinaryData stop = {4, (uint8_t *)" zqx"};
    Forepack__V1__SamplingOptions sampling = FOREPACK__V1__SAMPLING_OPTIONS__INIT;
    sampling.max_tokens_given_case = FOREPACK__V1__SAMPLING_OPTIONS__MAX_TOKENS_GIVEN_MAX_TOKENS;
    sampling.max_tokens = MAX_TOKENS;
    sampling.stop = &stop;
    sampling.n_stop = 1;
    return sampling;
}

// Reads a request whose client has lost its stream after `resume`; NULL: a plain request.
static enum status read_request(const char *id, Forepack__V1__Resume *resume, struct answer **a_p)
{
    static uint32_t prompt[] = {3, 4, 5};
    Forepack__V1__GenerateRequest m = FOREPACK__V1__GENERATE_REQUEST__INIT;
    Forepack__V1__SamplingOptions sampling = sampling_options();
    m.request_id = (char *)id;
    m.token_ids = prompt;
    m.n_token_ids = 3;
    m.sampling = &sampling;
    m.resume = resume;
    struct answer *a = *a_p = answer_create(&parsed, 0);
    enum status status =
        wire_request_read(&client, &m, &(struct wire_options){.default_tokens = 4}, a->request, &a->text);
    if (status == STATUS_OK && resume)
        status = answer_resume(a, resume->token_ids, resume->n_token_ids, resume->received_tokens);
    return status;
}

static Forepack__V1__Resume resume_message(int n)
{
    Forepack__V1__Resume resume = FOREPACK__V1__RESUME__INIT;
    resume.token_ids = (uint32_t *)output;
    resume.n_token_ids = (size_t)n;
    return resume;
}

// Gives the answer the output from token `from` on, in steps of `step` tokens, until a stop string ends it. Returns the
// number of tokens of the answer.
static int generate(struct answer *a, int from, int step)
{
    const struct request_sink *sink = &a->request->sink;
    bool stopped = false;
    sent.n = 0;
    for (int i = from, n; i < n_output && !stopped; i += n) {
        int used = 0;
        n = n_output - i < step ? n_output - i : step;
        stopped = sink->tokens(sink->user, output + i, NULL, n, &used);
    }
    ck_assert(stopped);
    ck_assert_int_eq(a->stop, 0);
    return a->n_tokens;
}

static struct bytes text_of(const struct bytes *text)
{
    struct bytes copy = {0};
    bytes_add(&copy, text->data, text->n);
    return copy;
}

// The answer breaks after token _i.
START_TEST(the_text_goes_on_where_it_broke)
{
    struct answer *a;
    ck_assert_int_eq(read_request("a", NULL, &a), STATUS_OK);
    int n = generate(a, 0, 1);
    answers_free(a);
    if (_i >= n) return;
    struct bytes whole = text_of(&sent);
    Forepack__V1__Resume resume = resume_message(_i);
    ck_assert_msg(read_request("a", &resume, &a) == STATUS_OK, "%s", status_message());
    struct bytes joined = text_of(&a->resumed_text);
    ck_assert_int_eq(a->request->resume.n, _i);
    ck_assert_int_eq(generate(a, _i, 2), n);
    bytes_add(&joined, sent.data, sent.n);
    ck_assert_uint_eq(joined.n, whole.n);
    ck_assert_mem_eq(joined.data, whole.data, whole.n);
    answers_free(a);

    // The client knows only the number of tokens, so they are generated again.
    resume = resume_message(0);
    resume.received_tokens = (uint32_t)_i;
    ck_assert_int_eq(read_request("a", &resume, &a), STATUS_OK);
    again.n = 0;
    ck_assert_int_eq(generate(a, 0, 3), n);
    bytes_add(&again, sent.data, sent.n);
    ck_assert_uint_eq(again.n, whole.n);
    ck_assert_mem_eq(again.data, whole.data, whole.n);
    answers_free(a);
    bytes_free(&whole);
    bytes_free(&joined);
}
END_TEST

START_TEST(a_stop_string_in_the_last_token_ends_the_answer)
{
    struct answer *a;
    ck_assert_int_eq(read_request("a", NULL, &a), STATUS_OK);
    int n = generate(a, 0, 1);
    answers_free(a);
    Forepack__V1__Resume resume = resume_message(n);
    ck_assert_int_eq(read_request("a", &resume, &a), STATUS_OK);
    ck_assert(a->request->resume.is_stopped);
    ck_assert_int_eq(a->stop, 0);
    answers_free(a);
    resume = resume_message(n + 1);
    ck_assert_int_eq(read_request("a", &resume, &a), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(status_message(), "a stop string ends the answer after"));
    answers_free(a);
}
END_TEST

static void refused(Forepack__V1__Resume *resume, enum status status, const char *word)
{
    struct answer *a;
    ck_assert_int_eq(read_request("a", resume, &a), status);
    ck_assert_msg(strstr(status_message(), word), "%s", status_message());
    answers_free(a);
}

START_TEST(wrong_messages_are_refused)
{
    Forepack__V1__Resume resume = resume_message(2);
    resume.received_tokens = 2;
    refused(&resume, STATUS_INVALID, "either token_ids or received_tokens");
    resume = resume_message(MAX_TOKENS + 1);
    refused(&resume, STATUS_OUT_OF_RANGE, "resume: 41 tokens given, max_tokens is 40");
    resume = resume_message(0);
    resume.received_tokens = UINT32_MAX;
    refused(&resume, STATUS_OUT_OF_RANGE, "resume: 4294967295 tokens given");
    uint32_t ids[] = {5, (uint32_t)front.config.vocab_size, 1450};
    resume.received_tokens = 0;
    resume.token_ids = ids;
    resume.n_token_ids = 2;
    refused(&resume, STATUS_INVALID, "resume.token_ids[1]: ");
    ids[1] = UINT32_MAX;
    refused(&resume, STATUS_INVALID, "resume.token_ids[1]: 4294967295 is not below");
    ids[1] = 1450;
    refused(&resume, STATUS_INVALID, "resume.token_ids[1]: token 1450 ends answers");
    front.prefill.mode = PREFILL_AUTO;
    resume = resume_message(2);
    refused(&resume, STATUS_INVALID, "resume.mark: required");
}
END_TEST

START_TEST(the_mark_decides_whether_the_prompt_is_pruned)
{
    struct answer *a;
    struct token_range kept[] = {{0, 1}, {0, 2}};
    struct request r = {.kept = kept, .n_kept_ranges = 1, .spec.n_tokens = 3};
    Forepack__V1__Resume resume = resume_message(2);
    front.prefill.mode = PREFILL_AUTO;
    resume.mark = resume_mark(&r, 1);
    ck_assert_int_eq(read_request("a", &resume, &a), STATUS_OK);
    ck_assert_int_eq(a->request->spec.prefill.mode, PREFILL_REQUIRED);
    answers_free(a);
    r.kept = kept + 1;
    resume.mark = resume_mark(&r, 1);
    ck_assert_int_eq(read_request("a", &resume, &a), STATUS_OK);
    ck_assert_int_eq(a->request->spec.prefill.mode, PREFILL_OFF);
    answers_free(a);
}
END_TEST

static uint64_t seed_of(const char *id)
{
    struct answer *a;
    ck_assert_int_eq(read_request(id, NULL, &a), STATUS_OK);
    uint64_t seed = a->request->spec.sampling.seed;
    answers_free(a);
    return seed;
}

START_TEST(the_seed_belongs_to_the_id_and_its_owner)
{
    char path[] = "/tmp/check_answer_resume.XXXXXX", key[2][KEY_BYTES + 1];
    FILE *file = fdopen(mkstemp(path), "w");
    for (int k = 0; k < 2; k++) {
        uint8_t hash[KEY_HASH_BYTES];
        key_generate(key[k], hash);
        fprintf(file, "key-%d sha256:", k);
        for (int i = 0; i < KEY_HASH_BYTES; i++)
            fprintf(file, "%02x", hash[i]);
        fprintf(file, " tenant-%d\n", k);
    }
    fclose(file);
    struct identity *identity;
    ck_assert_msg(identity_open(path, &identity) == STATUS_OK, "%s", status_message());
    unlink(path);
    uint64_t mine = seed_of("a"), seeds[2];
    ck_assert_uint_eq(seed_of("a"), mine);
    ck_assert_uint_ne(seed_of("b"), mine);
    ck_assert_uint_ne(seed_of(""), seed_of("")); // the router makes an id
    for (int k = 0; k < 2; k++) {
        ck_assert_int_eq(identity_authenticate_key(identity, key[k], &client.principal), STATUS_OK);
        seeds[k] = seed_of("a");
        principal_unref(client.principal);
    }
    client.principal = NULL;
    ck_assert_uint_ne(seeds[0], seeds[1]);
    ck_assert_uint_ne(seeds[0], mine);
    identity_close(identity);
}
END_TEST

// Returns the seed that a router with this cluster token gives, and sets *key_p to the token's key.
static uint64_t seed_with_token(const char *secret, struct hash_key *key_p)
{
    char path[] = "/tmp/check_answer_resume.XXXXXX";
    FILE *file = fdopen(mkstemp(path), "w");
    fputs(secret, file);
    fclose(file);
    ck_assert_msg(cluster_token_open(path, &front.cluster_token) == STATUS_OK, "%s", status_message());
    unlink(path);
    const uint64_t seed = seed_of("a");
    *key_p = cluster_token_key(front.cluster_token);
    cluster_token_free(front.cluster_token);
    front.cluster_token = NULL;
    return seed;
}

// Clients see seeds, so the key must not be a hash that is fast to compute from the token.
START_TEST(routers_with_one_token_give_one_seed)
{
    static const char secret[] = "a-secret-of-nodes";
    struct hash_key key[3], digest;
    unsigned char sha256[SHA256_DIGEST_LENGTH];
    const uint64_t seed = seed_with_token(secret, &key[0]);
    ck_assert_uint_eq(seed_with_token(secret, &key[1]), seed);
    ck_assert_uint_ne(seed_with_token("the-secret-of-nodes", &key[2]), seed);
    ck_assert_uint_ne(seed_of("a"), seed);
    SHA256((const unsigned char *)secret, sizeof secret - 1, sha256);
    memcpy(&digest, sha256, sizeof digest);
    ck_assert_mem_ne(&key[0], &digest, sizeof digest);
}
END_TEST

SUITE("answer_resume")
{
    FIXTURE(setup, teardown);
    LOOP(the_text_goes_on_where_it_broke, 0, MAX_TOKENS);
    TEST(a_stop_string_in_the_last_token_ends_the_answer);
    TEST(wrong_messages_are_refused);
    TEST(the_mark_decides_whether_the_prompt_is_pruned);
    TEST(the_seed_belongs_to_the_id_and_its_owner);
    TEST(routers_with_one_token_give_one_seed);
}
