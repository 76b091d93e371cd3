// SPDX-License-Identifier: Apache-2.0
// A line of a batch's input, and of its answers. A request that is read has a name, and a body of the lowest priority
// that is JSON again. A refused one has a reason. An answer of the request is found by its start, and only by a whole
// one.
#include <jansson.h>

#include "router/batch/batch_line.h"
#include "tests/fuzz/fuzz.h"

#define ENDPOINT "/v1/completions"
static const char batch_id[] = "batch_0123456789abcdef0123456789abcdef";

static void check_answer(const struct batch_request *request, int index)
{
    struct bytes line = {0};
    char id[BATCH_LINE_ID_ROOM];
    batch_line_id(batch_id, index, id);
    batch_line_add_answer(&line, id, request->custom_id, 200, "req-1", request->body, request->body_bytes);
    FUZZ_CHECK(memchr(line.data, '\n', line.n) == line.data + line.n - 1);
    FUZZ_CHECK(batch_line_index(batch_id, line.data, line.n) == index);
    json_t *object = json_loadb(line.data, line.n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
    FUZZ_CHECK(object != NULL);
    FUZZ_CHECK(strcmp(json_string_value(json_object_get(object, "custom_id")), request->custom_id) == 0);
    json_decref(object);
    bytes_free(&line);
}

static void check_request(const struct batch_request *request)
{
    FUZZ_CHECK(*request->custom_id && strlen(request->custom_id) <= BATCH_CUSTOM_ID_BYTES);
    FUZZ_CHECK(strlen(request->body) == request->body_bytes);
    json_t *body = json_loads(request->body, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    FUZZ_CHECK(json_integer_value(json_object_get(body, "priority")) == -8);
    FUZZ_CHECK(!json_is_true(json_object_get(body, "stream")));
    json_decref(body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct batch_request request;
    struct batch_error error;
    const char *line = (const char *)data;
    int index = batch_line_index(batch_id, line, size);
    FUZZ_CHECK(index >= -1 && index < BATCH_LINES_MAX);
    if (batch_line_read(line, size, ENDPOINT, &request, &error) == STATUS_OK) {
        check_request(&request);
        check_answer(&request, (int)(size % BATCH_LINES_MAX));
        batch_request_fini(&request);
    } else {
        FUZZ_CHECK(*error.code && *error.message && error.line == 0);
    }
    return 0;
}
