// SPDX-License-Identifier: Apache-2.0
#include "router/front/http_messages.h"

#include <stdio.h>
#include <string.h>

#include "router/front/json_body.h"

static enum status refuse(size_t i, const char *what)
{
    return status_fail(STATUS_INVALID, "messages[%zu]: %s", i, what);
}

// The text of a part; NULL and the reason (UNSUPPORTED or INVALID).
static enum status part_text(size_t i, const json_t *part, const json_t **text_p)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!type) return refuse(i, "each part of content must be an object with a type");
    if (strcmp(type, "text") != 0)
        return status_fail(STATUS_UNSUPPORTED, "messages[%zu]: parts of type '%s' are not supported: send text parts",
                           i, type);
    *text_p = json_object_get(part, "text");
    return json_is_string(*text_p) ? STATUS_OK : refuse(i, "the text of a part must be a string");
}

// Parts are joined by line breaks, as in vLLM.
static enum status read_parts(size_t i, const json_t *parts, struct http_input *in, ProtobufCBinaryData *content)
{
    size_t n = json_array_size(parts), room = 0, used = 0;
    const json_t **texts = http_input_alloc(in, n, sizeof *texts);
    for (size_t p = 0; p < n; p++) {
        TRY(part_text(i, json_array_get(parts, p), &texts[p]));
        room += json_string_length(texts[p]) + 1;
    }
    char *text = http_input_alloc(in, room, 1);
    for (size_t p = 0; p < n; p++) {
        if (p) text[used++] = '\n';
        memcpy(text + used, json_string_value(texts[p]), json_string_length(texts[p]));
        used += json_string_length(texts[p]);
    }
    *content = (ProtobufCBinaryData){used, (uint8_t *)text};
    return STATUS_OK;
}

static enum status read_content(size_t i, const json_t *value, struct http_input *in, ProtobufCBinaryData *content)
{
    if (json_is_array(value)) return read_parts(i, value, in, content);
    if (!json_is_string(value)) return refuse(i, "content must be a string or a list of text parts");
    *content = (ProtobufCBinaryData){json_string_length(value), (uint8_t *)json_string_value(value)};
    return STATUS_OK;
}

static enum status read_message(size_t i, const json_t *value, struct http_input *in, Forepack__V1__Message *m)
{
    static const struct json_unsupported unsupported[] = {
        {"tool_calls", "[]", NULL}, {"function_call", NULL, NULL}, {"audio", NULL, NULL}, {0}};
    forepack__v1__message__init(m);
    if (!json_is_object(value)) return refuse(i, "must be an object with role and content");
    const json_t *role = json_object_get(value, "role");
    if (!json_is_string(role)) return refuse(i, "role must be a string");
    enum status status = json_unsupported_check(value, unsupported);
    if (status != STATUS_OK) return status_context(status, "messages[%zu]", i);
    m->role = (char *)json_string_value(role);
    if (strcmp(m->role, "developer") == 0) m->role = "system"; // OpenAI's newer name
    return read_content(i, json_object_get(value, "content"), in, &m->content);
}

enum status http_messages_read(const json_t *list, struct http_input *in, struct http_prompt *prompt)
{
    size_t n = json_array_size(list);
    if (!n) return status_fail(STATUS_INVALID, "messages: at least one is required");
    Forepack__V1__Message *messages = http_input_alloc(in, n, sizeof *messages);
    prompt->messages = http_input_alloc(in, n, sizeof *prompt->messages);
    prompt->n_messages = n;
    for (size_t i = 0; i < n; i++) {
        prompt->messages[i] = &messages[i];
        TRY(read_message(i, json_array_get(list, i), in, &messages[i]));
    }
    return STATUS_OK;
}
