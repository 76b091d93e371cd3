// SPDX-License-Identifier: Apache-2.0
// router/batch: lines of the input, lines of the answers, and the answers after a crash.
#include <fcntl.h>

#include "lib/base/line_reader.h"
#include "router/batch/batch_line.h"
#include "router/batch/batch_results.h"
#include "tests/batch_folder.h"

#define CHAT "/v1/chat/completions"
static const char batch_id[] = "batch_0123456789abcdef0123456789abcdef";

START_TEST(a_request_is_read_with_the_lowest_priority)
{
    static const char line[] = "{\"custom_id\":\"r\\u00e9\",\"method\":\"POST\",\"url\":\"" CHAT
                               "\",\"body\":{\"model\":\"m\",\"priority\":8}}";
    struct batch_request request;
    struct batch_error error;
    char *text = mem_string(line);
    ck_assert_int_eq(batch_line_read(text, strlen(text), CHAT, &request, &error), STATUS_OK);
    ck_assert_str_eq(request.custom_id, "r\xc3\xa9");
    ck_assert_str_eq(request.body, "{\"model\":\"m\",\"priority\":-8}");
    ck_assert_uint_eq(request.body_bytes, strlen(request.body));
    batch_request_fini(&request);
    free(text);
}
END_TEST

static const struct {
    const char *line, *code, *param;
} wrong[] = {
    {"", "invalid_json_line", ""},
    {"[]", "invalid_json_line", ""},
    {"{\"custom_id\":\"a\"", "invalid_json_line", ""},
    {"{\"custom_id\":\"a\",\"custom_id\":\"b\"}", "invalid_json_line", ""},
    {"{}", "missing_required_parameter", "custom_id"},
    {"{\"custom_id\":1}", "missing_required_parameter", "custom_id"},
    {"{\"custom_id\":\"\"}", "missing_required_parameter", "custom_id"},
    {"{\"custom_id\":\"a\\u0000\"}", "invalid_custom_id", "custom_id"},
    {"{\"custom_id\":\"a\"}", "missing_required_parameter", "method"},
    {"{\"custom_id\":\"a\",\"method\":\"GET\"}", "invalid_method", "method"},
    {"{\"custom_id\":\"a\",\"method\":\"POST\"}", "missing_required_parameter", "url"},
    {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/responses\"}", "mismatched_url", "url"},
    {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"" CHAT "\",\"body\":1}", "missing_required_parameter", "body"},
    {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"" CHAT "\",\"body\":{\"stream\":true}}",
     "unsupported_parameter", "body.stream"},
};

START_TEST(a_wrong_line_is_refused_with_its_reason)
{
    struct batch_request request;
    struct batch_error error;
    ck_assert_int_eq(batch_line_read(wrong[_i].line, strlen(wrong[_i].line), CHAT, &request, &error), STATUS_INVALID);
    ck_assert_str_eq(error.code, wrong[_i].code);
    ck_assert_str_eq(error.param, wrong[_i].param);
    ck_assert_uint_gt(strlen(error.message), 10);
}
END_TEST

START_TEST(lines_of_answers_have_the_forms_of_the_api)
{
    struct bytes out = {0};
    char line_id[BATCH_LINE_ID_ROOM];
    batch_line_id(batch_id, 42, line_id);
    batch_line_add_answer(&out, line_id, "a\"b", 200, "req-1", "{\n\"x\":\"\xe2\x80\xa8\xe2\x80\xac\xc2\x85\"}",
                          sizeof "{\n\"x\":\"\xe2\x80\xa8\xe2\x80\xac\xc2\x85\"}" - 1);
    ck_assert_int_eq(batch_line_index(batch_id, out.data, out.n), 42);
    ck_assert_int_eq(batch_line_index("batch_f123456789abcdef0123456789abcdef", out.data, out.n), -1);
    ck_assert_int_eq(batch_line_index(batch_id, out.data, BATCH_LINE_START_BYTES - 1), -1);
    batch_line_add_error(&out, line_id, "c", "batch_expired", "too late");
    bytes_add(&out, "", 1);
    ck_assert_str_eq(
        out.data,
        "{\"id\":\"batch_req_0123456789abcdef012345670000002a\",\"custom_id\":\"a\\\"b\","
        "\"response\":{\"status_code\":200,\"request_id\":\"req-1\",\"body\":{ \"x\":\"\\u2028\xe2\x80\xac\\u0085\"}},"
        "\"error\":null}\n"
        "{\"id\":\"batch_req_0123456789abcdef012345670000002a\",\"custom_id\":\"c\","
        "\"response\":null,\"error\":{\"code\":\"batch_expired\",\"message\":\"too late\"}}\n");
    bytes_free(&out);
}
END_TEST

// --- answers after a crash

static struct bytes answer(int index)
{
    struct bytes out = {0};
    char line_id[BATCH_LINE_ID_ROOM];
    batch_line_id(batch_id, index, line_id);
    batch_line_add_answer(&out, line_id, "c", 200, "req-1", "{}", 2);
    return out;
}

static void add(struct batch_results *results, enum batch_result which, int index)
{
    struct bytes line = answer(index);
    ck_assert_int_eq(batch_results_add(results, which, index, line.data, line.n), STATUS_OK);
    bytes_free(&line);
}

static void open_results(struct batch_results *results)
{
    ck_assert_msg(batch_results_open(results, batch_folder, batch_id) == STATUS_OK, "%s", status_message());
}

START_TEST(answers_cut_at_any_byte_are_repaired)
{
    enum { LINES = 3 };
    static const int order[LINES] = {2, 0, 1};
    struct batch_results results;
    open_results(&results);
    for (int i = 0; i < LINES; i++)
        add(&results, BATCH_OUTPUT, order[i]);
    add(&results, BATCH_ERRORS, 7);
    size_t size = (size_t)results.bytes[BATCH_OUTPUT], line = size / LINES;
    char *path = mem_string(results.paths[BATCH_OUTPUT]);
    batch_results_close(&results);
    for (size_t cut = size; cut-- > 0;) {
        int whole = (int)(cut / line);
        ck_assert_int_eq(truncate(path, (off_t)cut), 0);
        open_results(&results);
        ck_assert_int_eq(results.lines[BATCH_OUTPUT], whole);
        ck_assert_int_eq(results.lines[BATCH_ERRORS], 1);
        for (int i = 0; i < LINES; i++)
            ck_assert_int_eq(batch_results_is_done(&results, order[i]), i < whole);
        ck_assert(batch_results_is_done(&results, 7));
        for (int i = whole; i < LINES; i++) // runs them again
            add(&results, BATCH_OUTPUT, order[i]);
        ck_assert_uint_eq(results.bytes[BATCH_OUTPUT], size);
        batch_results_close(&results);
    }
    free(path);
}
END_TEST

START_TEST(damaged_answers_are_cut_off)
{
    struct batch_results results;
    open_results(&results);
    for (int i = 0; i < 3; i++)
        add(&results, BATCH_OUTPUT, i);
    size_t line = (size_t)results.bytes[BATCH_OUTPUT] / 3;
    int fd = open(results.paths[BATCH_OUTPUT], O_WRONLY);
    size_t at = line + (_i == 0 ? 30 : line - 10); // in the second line: its index, its end
    ck_assert_int_eq(pwrite(fd, "\0", 1, (off_t)at), 1);
    close(fd);
    batch_results_close(&results);
    open_results(&results);
    ck_assert_int_eq(results.lines[BATCH_OUTPUT], 1);
    ck_assert(!batch_results_is_done(&results, 1));
    ck_assert(!batch_results_is_done(&results, 2));
    batch_results_close(&results);
}
END_TEST

// --- the reader of lines

static void expect_line(struct line_reader *reader, enum line_result result, const char *text)
{
    const char *line;
    size_t size;
    ck_assert_int_eq(line_reader_next(reader, &line, &size), result);
    if (result != LINE_READ) return;
    ck_assert_uint_eq(size, strlen(text));
    ck_assert_int_eq(memcmp(line, text, size), 0);
}

START_TEST(lines_are_read_and_long_ones_are_skipped)
{
    char *path = mem_format("%s/lines", batch_folder);
    struct line_reader reader;
    FILE *file = fopen(path, "w");
    fputs("one\r\n\ntwo\n", file);
    for (int i = 0; i < 500000; i++)
        fputc('x', file);
    fputs("\nthree", file);
    fclose(file);
    ck_assert_int_eq(line_reader_open(&reader, path, 1000), 0);
    expect_line(&reader, LINE_READ, "one");
    expect_line(&reader, LINE_READ, "");
    expect_line(&reader, LINE_READ, "two");
    expect_line(&reader, LINE_TOO_LONG, "");
    ck_assert_uint_le(reader.capacity, 128 << 10);
    expect_line(&reader, LINE_READ, "three");
    expect_line(&reader, LINE_END, "");
    line_reader_close(&reader);
    ck_assert_int_eq(line_reader_open(&reader, "/none", 1), -1);
    free(path);
}
END_TEST

SUITE("batch_lines")
{
    FIXTURE(folder_create, folder_remove);
    TEST(a_request_is_read_with_the_lowest_priority);
    EACH(a_wrong_line_is_refused_with_its_reason, wrong);
    TEST(lines_of_answers_have_the_forms_of_the_api);
    TEST(answers_cut_at_any_byte_are_repaired);
    LOOP(damaged_answers_are_cut_off, 0, 2);
    TEST(lines_are_read_and_long_ones_are_skipped);
}
