// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/json_images.h"

#include <stdbool.h>
#include <string.h>

static bool is_image(const char *type)
{
    return strcmp(type, "image_url") == 0 || strcmp(type, "input_image") == 0 || strcmp(type, "image") == 0;
}

const char *json_image_remedy(const char *type)
{
    return is_image(type) ? ", or start the router with --image-text to replace images by a text" : "";
}

static void part_replace(json_t *parts, size_t i, const char *text)
{
    const char *type = json_string_value(json_object_get(json_array_get(parts, i), "type"));
    if (!type || !is_image(type)) return;
    const char *text_type = strcmp(type, "input_image") == 0 ? "input_text" : "text";
    json_array_set_new(parts, i, json_pack("{s:s,s:s}", "type", text_type, "text", text));
}

// The function does nothing if a value is not a list.
static void parts_replace(json_t *parts, const char *text)
{
    for (size_t i = 0; i < json_array_size(parts); i++) {
        json_t *results = json_object_get(json_array_get(parts, i), "content"); // of a block tool_result
        part_replace(parts, i, text);
        for (size_t r = 0; r < json_array_size(results); r++)
            part_replace(results, r, text);
    }
}

static void turns_replace(const json_t *turns, const char *text)
{
    size_t i;
    json_t *turn;
    json_array_foreach(turns, i, turn)
    {
        parts_replace(json_object_get(turn, "content"), text);
        parts_replace(json_object_get(turn, "output"), text);
    }
}

void json_images_replace(json_t *body, const char *text)
{
    turns_replace(json_object_get(body, "messages"), text);
    turns_replace(json_object_get(body, "input"), text);
}
