// SPDX-License-Identifier: Apache-2.0
// Prompts of JSON rows are sent to the router whole, also after a NUL. A row without a prompt is refused.
#include <stdlib.h>
#include <string.h>

#include "cli/request.h"
#include "tests/suite.h"

static enum status read_row(const char *text, struct request_spec *spec)
{
    json_t *row = json_loads(text, JSON_ALLOW_NUL, NULL);
    ck_assert_ptr_nonnull(row);
    memset(spec, 0, sizeof *spec);
    sampling_defaults(&spec->sampling);
    prefill_defaults(&spec->prefill);
    enum status status = request_spec_from_json(spec, row, NULL);
    json_decref(row);
    return status;
}

static void ck_refused(const char *text, const char *sentence)
{
    struct request_spec spec;
    ck_assert_int_eq(read_row(text, &spec), STATUS_INVALID);
    ck_assert_msg(strstr(status_message(), sentence) != NULL, "%s", status_message());
    request_spec_free(&spec);
}

START_TEST(an_empty_prompt_is_refused)
{
    ck_refused("{\"token_ids\": []}", "token_ids: must be a list that is not empty");
    ck_refused("{\"messages\": []}", "messages: must be a list that is not empty");
}
END_TEST

START_TEST(a_nul_in_a_turn_arrives)
{
    struct request_spec spec, copy;
    ck_assert_int_eq(read_row("{\"messages\": [{\"role\": \"user\", \"content\": \"a\\u0000b\"}]}", &spec), STATUS_OK);
    request_spec_copy(&spec, &copy);
    struct rpc_bytes bytes = request_spec_pack(&copy);
    Forepack__V1__GenerateRequest *m = forepack__v1__generate_request__unpack(NULL, bytes.size, bytes.data);
    ck_assert_uint_eq(m->messages[0]->content.len, 3);
    ck_assert_mem_eq(m->messages[0]->content.data, "a\0b", 3);
    forepack__v1__generate_request__free_unpacked(m, NULL);
    rpc_bytes_free(&bytes);
    request_spec_free(&copy);
    request_spec_free(&spec);
}
END_TEST

START_TEST(a_nul_in_a_name_is_refused)
{
    ck_refused("{\"prompt\": \"x\", \"id\": \"a\\u0000b\"}", "id: must be a string without NUL");
    ck_refused("{\"prompt\": \"x\", \"tenant\": \"a\\u0000b\"}", "tenant: must be a string without NUL");
    ck_refused("{\"prompt\": \"x\", \"stop\": \"a\\u0000b\"}", "stop: must be");
    ck_refused("{\"prompt\": \"x\", \"stop\": [\"a\\u0000b\"]}", "stop: must be");
    ck_refused("{\"messages\": [{\"role\": \"u\\u0000\", \"content\": \"b\"}]}", "messages: must be a list of");
}
END_TEST

SUITE("request_prompts")
{
    TEST(an_empty_prompt_is_refused);
    TEST(a_nul_in_a_turn_arrives);
    TEST(a_nul_in_a_name_is_refused);
}
