// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/tokenizer_info.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/file_text.h"
#include "lib/base/mem.h"
#include "lib/text/json_file.h"

// Returns the text of a file as a JSON string, or NULL if it cannot be read.
static json_t *file_string(const char *path)
{
    char *text = NULL;
    size_t n = 0;
    if (file_text_read(path, JSON_CONFIG_BYTES_MAX, &text, &n) != STATUS_OK) return NULL;
    json_t *string = json_stringn(text, n);
    free(text);
    return string;
}

// Returns the template of tokenizer_config.json: a string, or the entry "default" of a list of named templates.
static json_t *config_template(const json_t *config)
{
    json_t *value = json_object_get(config, "chat_template"), *item;
    size_t i;
    json_array_foreach(value, i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name && strcmp(name, "default") == 0) return json_incref(json_object_get(item, "template"));
    }
    return json_is_string(value) ? json_incref(value) : NULL;
}

static json_t *template_read(const char *model_dir, const char *template_file, const json_t *config)
{
    if (template_file) return file_string(template_file);
    char *path = mem_format("%s/chat_template.jinja", model_dir);
    json_t *text = file_string(path);
    free(path);
    return text ? text : config_template(config);
}

// Sets the member to a string of the config, or to the content of a token that is an object.
static void member_add(json_t *info, const json_t *config, const char *name)
{
    json_t *value = json_object_get(config, name);
    if (json_is_object(value)) value = json_object_get(value, "content");
    json_object_set_new(info, name, json_is_string(value) ? json_incref(value) : json_null());
}

char *tokenizer_info_read(const char *model_dir, const char *template_file, int max_context)
{
    static const char *const names[] = {"tokenizer_class", "bos_token", "eos_token", "pad_token", "unk_token"};
    json_t *info = json_object(), *config = NULL;
    char *path = mem_format("%s/tokenizer_config.json", model_dir);
    if (json_file_read_reals(path, JSON_CONFIG_BYTES_MAX, &config) != STATUS_OK) config = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        member_add(info, config, names[i]);
    json_t *text = template_read(model_dir, template_file, config);
    json_object_set_new(info, "model_max_length", json_integer(max_context));
    json_object_set_new(info, "chat_template", text ? text : json_null());
    char *json = json_dumps(info, JSON_COMPACT);
    json_decref(info);
    json_decref(config);
    free(path);
    return json;
}
