// SPDX-License-Identifier: Apache-2.0
// Bodies and answers of HTTP APIs in tests: translations and refusals of bodies, JSON at a path, events of a stream.
#pragma once

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/status.h"
#include "tests/suite.h"

typedef enum status translate_fn(const json_t *body, json_t **chat_p);

static inline json_t *parse(const char *text)
{
    json_error_t error;
    json_t *value = json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &error);
    ck_assert_msg(value != NULL, "%s: %s", error.text, text);
    return value;
}

static inline void check_equal(const json_t *value, const char *expected)
{
    json_t *other = parse(expected);
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    ck_assert_msg(json_equal(value, other), "got %s, expected %s", text, expected);
    free(text);
    json_decref(other);
}

static inline void check_chat(translate_fn *translate, const char *body, const char *expected)
{
    json_t *from = parse(body), *chat;
    ck_assert_msg(translate(from, &chat) == STATUS_OK, "%s: %s", body, status_message());
    json_decref(from); // the copy keeps what it needs
    check_equal(chat, expected);
    json_decref(chat);
}

struct refusal {
    const char *body, *sentence;
};

static inline void check_refusals(translate_fn *translate, const struct refusal *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        json_t *body = parse(cases[i].body), *chat = NULL;
        enum status status = translate(body, &chat);
        ck_assert_msg(status == STATUS_INVALID || status == STATUS_UNSUPPORTED, "%s: taken", cases[i].body);
        ck_assert_msg(strncmp(status_message(), cases[i].sentence, strlen(cases[i].sentence)) == 0, "%s: %s",
                      cases[i].body, status_message());
        ck_assert_ptr_null(chat);
        json_decref(body);
    }
}

// --- events

struct event {
    char name[64];
    json_t *data;
};

// Reads the next event of a stream, as a client does.
static inline bool event_next(const char **at_p, struct event *event)
{
    static const char begin[] = "event: ", middle[] = "\ndata: ";
    const char *at = *at_p, *name = at + strlen(begin), *data, *end;
    if (!*at) return false;
    ck_assert(strncmp(at, begin, strlen(begin)) == 0);
    ck_assert_ptr_nonnull(data = strstr(name, middle));
    ck_assert_ptr_nonnull(end = strstr(data, "\n\n"));
    snprintf(event->name, sizeof event->name, "%.*s", (int)(data - name), name);
    data += strlen(middle);
    char *text = strndup(data, (size_t)(end - data));
    event->data = parse(text);
    free(text);
    ck_assert_str_eq(json_string_value(json_object_get(event->data, "type")), event->name);
    *at_p = end + 2;
    return true;
}

static inline const json_t *get(const json_t *value, const char *path)
{
    char key[64];
    while (value && *path) {
        size_t n = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        value = json_is_array(value) ? json_array_get(value, (size_t)atoi(key)) : json_object_get(value, key);
        path += n + (path[n] == '.');
    }
    return value;
}

static inline void check_at(const json_t *value, const char *path, const char *expected)
{
    const json_t *found = get(value, path);
    ck_assert_msg(found != NULL, "no %s", path);
    check_equal(found, expected);
}
