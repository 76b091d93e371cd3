// SPDX-License-Identifier: Apache-2.0
// Checks of answers for tests of the HTTP server. Each test opens the server with its own limits.
#pragma once

#include "tests/http_service.h"

static inline void expect_start(const char *text, const char *start)
{
    ck_assert_msg(text != NULL, "starts with '%s'", start);
    ck_assert_msg(strncmp(text, start, strlen(start)) == 0, "starts with '%s': %s", start, text);
}

static inline void expect_part(const char *text, const char *part)
{
    ck_assert_msg(text != NULL, "contains '%s'", part);
    ck_assert_msg(strstr(text, part) != NULL, "contains '%s': %s", part, text);
}

// Sends a request on a new connection and expects the start of the answer and a part of it.
static inline void expect_answer(const char *request, const char *start, const char *part)
{
    char *text = client_ask_raw(port(), request);
    expect_start(text, start);
    expect_part(text, part);
    free(text);
}

static inline void close_server(void)
{
    http_server_close(server, 1000);
    server = NULL;
}
