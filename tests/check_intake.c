// SPDX-License-Identifier: Apache-2.0
// router/front/intake: every prompt that reaches the core is checked against vocabulary and context.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "proto/forepack/v1/inference.pb-c.h"
#include "router/front/grpc/grpc_intake.h"
#include "router/front/request/intake.h"
#include "tests/suite.h"

static struct front front = {.model_names = (char *[]){"demo"}, .n_model_names = 1, .config = {.max_context = 64}};

static void setup(void)
{
    const char *source = getenv("FOREPACK_SOURCE");
    char *dir = mem_format("%s/deploy/demo-model/main", source ? source : ".");
    ck_assert_msg(tokenizer_open(dir, &front.tokenizer) == STATUS_OK, "%s", status_message());
    front.config.vocab_size = tokenizer_vocab_size(front.tokenizer);
    front.chat_problem = "no chat template";
    free(dir);
}

static void teardown(void)
{
    tokenizer_free(front.tokenizer);
}

static void ck_refused(const struct intake_prompt *prompt, enum status wanted, const char *sentence)
{
    struct intake_tokens tokens;
    ck_assert_int_eq(intake_tokenise(&front, prompt, &tokens), wanted);
    ck_assert_msg(strstr(status_message(), sentence) != NULL, "%s", status_message());
}

START_TEST(a_prompt_is_text_or_ids_or_messages)
{
    uint32_t ids[] = {1, 2};
    struct intake_prompt text = {.text = "hello", .text_bytes = 5}, both = text;
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "hello");
    const struct chat_conversation conversation = {.messages = messages};
    both.ids = ids;
    both.n_ids = 2;
    ck_refused(&(struct intake_prompt){0}, STATUS_INVALID, "the prompt is empty");
    ck_refused(&both, STATUS_INVALID, "give only one of");
    ck_refused(&(struct intake_prompt){.conversation = &conversation}, STATUS_UNSUPPORTED,
               "messages: no chat template");
    json_decref(messages);
    struct intake_tokens tokens;
    ck_assert_int_eq(intake_tokenise(&front, &text, &tokens), STATUS_OK);
    ck_assert_int_ge(tokens.n_tokens, 1);
    ck_assert_int_eq(tokens.n_pinned, 0);
    free(tokens.tokens);
}
END_TEST

START_TEST(ids_are_inside_vocabulary_and_context)
{
    uint32_t ids[65] = {0};
    struct intake_prompt prompt = {.ids = ids, .n_ids = 64};
    struct intake_tokens tokens;
    ids[63] = (uint32_t)front.config.vocab_size - 1;
    ck_assert_int_eq(intake_tokenise(&front, &prompt, &tokens), STATUS_OK);
    ck_assert_int_eq(tokens.n_tokens, 64);
    ck_assert_mem_eq(tokens.tokens, ids, 64 * sizeof *ids);
    free(tokens.tokens);
    ids[63]++;
    ck_refused(&prompt, STATUS_INVALID, "at index 63 is outside the vocabulary");
    prompt.n_ids = 65;
    ck_refused(
        &prompt, STATUS_OUT_OF_RANGE,
        "This model's maximum context length is 64 tokens. However, the prompt is too long (65 tokens): shorten it");
    front.config.sliding_window = 64;
    ck_refused(&prompt, STATUS_OUT_OF_RANGE,
               "is 64 tokens (the sliding_window of the model's config.json). However, the prompt is too long (65 "
               "tokens): shorten");
    front.config.sliding_window = 0;
}
END_TEST

START_TEST(text_over_the_context_is_refused_early)
{
    size_t size = (size_t)64 << 20; // encoding all of it would take seconds and gigabytes
    char *bytes = mem_alloc(size);
    memset(bytes, 'x', size);
    struct intake_prompt prompt = {.text = bytes, .text_bytes = size};
    ck_refused(&prompt, STATUS_OUT_OF_RANGE, "However, the prompt is too long (over 256 tokens");
    for (size_t i = 0; i < size; i++) // blanks between letters keep pieces short
        if (i % 2) bytes[i] = ' ';
    ck_refused(&prompt, STATUS_OUT_OF_RANGE, "However, the prompt is too long (over 256 tokens");
    prompt.text_bytes = 100; // one token each, and the first of every text
    ck_refused(&prompt, STATUS_OUT_OF_RANGE,
               "maximum context length is 64 tokens. However, the prompt is too long (101 tokens");
    prompt.words = CONTEXT_WORDS_ANTHROPIC;
    ck_refused(&prompt, STATUS_OUT_OF_RANGE, "prompt is too long: 101 tokens > 63 maximum");
    prompt.text_bytes = 3;
    bytes[0] = (char)0xff;
    ck_refused(&prompt, STATUS_INVALID, "text is not UTF-8: byte 0 is wrong");
    bytes[0] = 'x';
    prompt.text_bytes = 63; // one token each, and the first of every text
    struct intake_tokens tokens;
    ck_assert_msg(intake_tokenise(&front, &prompt, &tokens) == STATUS_OK, "%s", status_message());
    ck_assert_int_le(tokens.n_tokens, 64);
    free(tokens.tokens);
    free(bytes);
}
END_TEST

START_TEST(messages_no_prompt_needs_are_not_read)
{
    size_t limit = intake_message_limit(&front, 64);
    ck_assert_uint_ge(limit, 64 * tokenizer_longest_piece_bytes(front.tokenizer));
    ck_assert_uint_le(limit, 3 << 20);
    ck_assert_int_eq(intake_refuse_size(&front, limit + 1), STATUS_OUT_OF_RANGE);
    ck_assert_ptr_nonnull(strstr(status_message(), "maximum context length is 64 tokens. However, the message has"));
}
END_TEST

START_TEST(nothing_new_is_taken_while_draining)
{
    struct front closing = front;
    atomic_store(&closing.draining, true);
    ck_assert_int_eq(intake_check_open(&closing), STATUS_UNAVAILABLE);
}
END_TEST

START_TEST(names_are_short_utf8)
{
    char name[258];
    memset(name, 'n', sizeof name);
    name[257] = 0;
    ck_assert_int_eq(intake_check_name("tenant", name), STATUS_INVALID);
    ck_assert_str_eq(status_message(), "tenant: 257 bytes long, at most 256 are allowed");
    name[256] = 0;
    ck_assert_int_eq(intake_check_name("tenant", name), STATUS_OK);
    ck_assert_int_eq(intake_check_name("tenant", "\xff"), STATUS_INVALID);
    ck_assert_int_eq(intake_check_model(&front, ""), STATUS_OK);
    ck_assert_int_eq(intake_check_model(&front, "demo"), STATUS_OK);
    ck_assert_int_eq(intake_check_model(&front, "other"), STATUS_NOT_FOUND);
    ck_assert_str_eq(status_message(), "model 'other' is not served here: leave it out or ask for 'demo'");
}
END_TEST

START_TEST(malformed_messages_and_endless_fields_are_refused)
{
    size_t size = (size_t)4 << 20;
    uint8_t *bytes = mem_alloc(size);
    for (size_t i = 0; i < size; i += 2)
        memcpy(bytes + i, "\x2a", 2); // empty messages
    ck_assert_ptr_null(grpc_message_unpack(&forepack__v1__generate_request__descriptor, bytes, size));
    ck_assert_ptr_nonnull(strstr(status_message(), "of memory when unpacked: send fewer fields in one"));
    ck_assert_ptr_null(grpc_message_unpack(&forepack__v1__generate_request__descriptor, (const uint8_t *)"\xff", 1));
    ck_assert_ptr_nonnull(strstr(status_message(), "is not a valid GenerateRequest"));
    free(bytes);
}
END_TEST

SUITE("intake")
{
    FIXTURE(setup, teardown);
    TEST(a_prompt_is_text_or_ids_or_messages);
    TEST(ids_are_inside_vocabulary_and_context);
    TEST(text_over_the_context_is_refused_early);
    TEST(messages_no_prompt_needs_are_not_read);
    TEST(nothing_new_is_taken_while_draining);
    TEST(names_are_short_utf8);
    TEST(malformed_messages_and_endless_fields_are_refused);
}
