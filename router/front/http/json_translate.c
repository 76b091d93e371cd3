// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/json_translate.h"

#include <string.h>

#include "lib/base/status.h"
#include "router/front/http/json_body.h"
#include "router/front/http/json_images.h"

json_t *json_copy_without(const json_t *object, const char *const *without)
{
    json_t *copy = json_object(), *value;
    const char *key;
    json_object_foreach((json_t *)object, key, value)
    {
        if (!json_list_has(without, key)) json_object_set(copy, key, value);
    }
    return copy;
}

static enum status block_add(json_t *parts, const json_t *block, const char *const *types, const char *where,
                             size_t index)
{
    const char *type = json_string_value(json_object_get(block, "type"));
    json_t *text = json_object_get(block, "text");
    if (!type) return status_fail(STATUS_INVALID, "%s[%zu]: must be an object with a type", where, index);
    if (!json_list_has(types, type)) {
        return status_fail(STATUS_UNSUPPORTED, "%s[%zu]: type %.64s is not supported: send text%s", where, index, type,
                           json_image_remedy(type));
    }
    if (!json_is_string(text)) return status_fail(STATUS_INVALID, "%s[%zu].text: must be a string", where, index);
    json_array_append_new(parts, json_pack("{s:s,s:O}", "type", "text", "text", text));
    return STATUS_OK;
}

static enum status blocks_add(json_t *parts, const json_t *content, const char *const *types, const char *where)
{
    size_t i;
    json_t *block;
    json_array_foreach(content, i, block) TRY(block_add(parts, block, types, where, i));
    return STATUS_OK;
}

enum status json_turn_add(json_t *messages, const char *role, const json_t *content, const char *const *block_types,
                          const char *where)
{
    if (json_is_string(content)) {
        json_array_append_new(messages, json_pack("{s:s,s:O}", "role", role, "content", content));
        return STATUS_OK;
    }
    if (!json_is_array(content)) return status_fail(STATUS_INVALID, "%s: must be a string or a list of blocks", where);
    json_t *parts = json_array();
    json_array_append_new(messages, json_pack("{s:s,s:o}", "role", role, "content", parts));
    return blocks_add(parts, content, block_types, where);
}

json_t *json_turn_parts(json_t *message)
{
    json_t *content = json_object_get(message, "content");
    if (json_is_array(content)) return content;
    json_t *parts = json_array();
    if (json_is_string(content)) json_array_append_new(parts, json_pack("{s:s,s:O}", "type", "text", "text", content));
    json_object_set_new(message, "content", parts);
    return parts;
}

void json_set_response_format(json_t *chat, const json_t *format)
{
    if (!format || json_is_null(format)) return;
    json_t *type = json_object_get(format, "type"), *schema = json_object_get(format, "schema"),
           *strict = json_object_get(format, "strict");
    if (type && schema) {
        json_object_set_new(
            chat, "response_format",
            json_pack("{s:O, s:{s:O, s:O*}}", "type", type, "json_schema", "schema", schema, "strict", strict));
    } else {
        json_object_set(chat, "response_format", (json_t *)format);
    }
}

bool json_tool_name_valid(const char *name)
{
    static const char characters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    return name && *name && strlen(name) <= TOOL_NAME_BYTES_MAX && !name[strspn(name, characters)];
}

void json_event_begin(struct bytes *out, const char *name)
{
    JSON_ADD(out, "event: ");
    json_add(out, name);
    JSON_ADD(out, "\ndata: {\"type\":\"");
    json_add(out, name);
    JSON_ADD(out, "\"");
}

void json_event_end(struct bytes *out)
{
    JSON_ADD(out, "}\n\n");
}
