// SPDX-License-Identifier: Apache-2.0
// http/: bodies of type multipart/form-data.
#include <stdio.h>
#include <string.h>

#include "lib/http/multipart.h"
#include "tests/suite.h"

static char seen[4096]; // what the parser reported: <name|filename>data</>

static enum status note(const char *text, size_t size)
{
    ck_assert_uint_lt(strlen(seen) + size, sizeof seen - 1);
    size_t at = strlen(seen);
    memcpy(seen + at, text, size);
    seen[at + size] = '\0';
    return STATUS_OK;
}

static enum status begin(void *arg, const char *name, const char *filename)
{
    char text[1400];
    snprintf(text, sizeof text, "<%s|%s>", name, filename ? filename : "-");
    return note(text, strlen(text));
}

static enum status data(void *arg, const char *bytes, size_t size)
{
    return note(bytes, size);
}

static enum status end(void *arg)
{
    return note("</>", 3);
}

static const struct multipart_ops ops = {begin, data, end};

static enum status parse_pieces(const char *type, const char *body, size_t size, size_t piece)
{
    struct multipart m;
    seen[0] = '\0';
    enum status status = multipart_init(&m, type);
    for (size_t at = 0; status == STATUS_OK && at < size; at += piece)
        status = multipart_feed(&m, body + at, size - at < piece ? size - at : piece, &ops, NULL);
    if (status == STATUS_OK) status = multipart_check_end(&m);
    multipart_fini(&m);
    return status;
}

static enum status parse(const char *body)
{
    return parse_pieces("multipart/form-data; boundary=b", body, strlen(body), strlen(body));
}

#define PART(headers, text) "--b\r\n" headers "\r\n\r\n" text "\r\n"
#define NAMED(name)         "Content-Disposition: form-data; name=\"" name "\""

START_TEST(a_form_is_parsed_in_pieces_of_any_size)
{
    static const char text[] = PART(NAMED("purpose"), "batch") PART(NAMED("empty"), "")
        PART("content-disposition:form-data;name=file; filename=\"../a;\\\"b.jsonl\"\r\nContent-Type: text/plain",
             "x\r\n--\r\n--c\r\n\r\n-") "--b--\r\nepilogue";
    size_t piece = (size_t)_i;
    ck_assert_int_eq(parse_pieces("Multipart/Form-Data; charset=x; boundary=\"b\"", text, sizeof text - 1, piece),
                     STATUS_OK);
    ck_assert_str_eq(seen, "<purpose|->batch</><empty|-></><file|../a;\"b.jsonl>x\r\n--\r\n--c\r\n\r\n-</>");
}
END_TEST

START_TEST(a_preamble_is_ignored_and_a_delimiter_may_end_in_blanks)
{
    ck_assert_int_eq(parse("preamble\r\n--b \t\r\n" NAMED("a") "\r\n\r\n1\r\n--b--"), STATUS_OK);
    ck_assert_str_eq(seen, "<a|->1</>");
}
END_TEST

START_TEST(names_that_are_not_ascii_may_be_encoded)
{
    ck_assert_int_eq(parse(PART(NAMED("f") "; filename*=UTF-8''%e2%82%ac%20b", "1") "--b--"), STATUS_OK);
    ck_assert_str_eq(seen, "<f|\xe2\x82\xac b>1</>");
}
END_TEST

static const char *const wrong_types[] = {
    "application/json",
    "multipart/form-data",
    "multipart/form-data; boundary=",
    "multipart/form-data; boundary=\"b",
    "multipart/form-data; boundary=0123456789012345678901234567890123456789012345678901234567890123456789x",
    "multipart/mixed; boundary=b",
    NULL};

START_TEST(a_type_without_a_boundary_is_refused)
{
    ck_assert_int_eq(parse_pieces(wrong_types[_i], "--b--", 5, 5), STATUS_INVALID);
}
END_TEST

static const char *const wrong_forms[] = {
    "",
    "--b",
    "--b\r\n",
    PART(NAMED("a"), "1"),
    PART("Content-Type: text/plain", "no name") "--b--",
    PART("Content-Disposition: form-data", "no name") "--b--",
    PART(NAMED("a") "\r\n" NAMED("b"), "twice") "--b--",
    PART(NAMED("a") "\r\nno colon", "1") "--b--",
    PART("Content-Disposition: form-data; name=\"a", "open quote") "--b--",
    PART(NAMED("a") "\r\nContent-Transfer-Encoding: base64", "1") "--b--",
    PART(NAMED("a") "; filename*=%41", "1") "--b--",
    PART(NAMED("a") "; filename*=''%4", "1") "--b--",
    "--bc\r\n" NAMED("a") "\r\n\r\n1\r\n--b--",
};

START_TEST(a_malformed_form_is_refused)
{
    ck_assert_int_eq(parse(wrong_forms[_i]), STATUS_INVALID);
    ck_assert_msg(strlen(status_message()) > 20, "%s", status_message());
}
END_TEST

START_TEST(parts_and_headers_are_bounded)
{
    char body[2 * MULTIPART_HEADERS_BYTES] = "";
    for (int i = 0; i <= MULTIPART_PARTS_MAX; i++)
        strcat(body, PART(NAMED("a"), ""));
    ck_assert_int_eq(parse(body), STATUS_INVALID);
    strcpy(body, "--b\r\nx: ");
    memset(body + strlen(body), 'x', MULTIPART_HEADERS_BYTES);
    ck_assert_int_eq(parse(body), STATUS_INVALID);
}
END_TEST

SUITE("multipart")
{
    LOOP(a_form_is_parsed_in_pieces_of_any_size, 1, 300);
    TEST(a_preamble_is_ignored_and_a_delimiter_may_end_in_blanks);
    TEST(names_that_are_not_ascii_may_be_encoded);
    EACH(a_type_without_a_boundary_is_refused, wrong_types);
    EACH(a_malformed_form_is_refused, wrong_forms);
    TEST(parts_and_headers_are_bounded);
}
