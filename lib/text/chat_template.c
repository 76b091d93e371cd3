// SPDX-License-Identifier: Apache-2.0
// Opens the chat template of a checkpoint and finds out which contents it prints.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/file_text.h"
#include "lib/base/mem.h"
#include "lib/text/chat_parts.h"
#include "lib/text/json_file.h"

static enum status compile(const char *name, const char *source, size_t n, struct jinja_template **jinja_p)
{
    if (jinja_compile(source, n, jinja_p) == STATUS_OK) return STATUS_OK;
    return status_fail(STATUS_UNSUPPORTED, "%s: the chat template cannot be used: %s", name, status_message());
}

enum { TEMPLATE_BYTES_MAX = 16 << 20 };

// Compiles a template. The syntax of answers comes from the template that is compiled last, which is the template for
// tools if there are two.
static enum status compile_file(struct chat_template *chat, const char *path, struct jinja_template **jinja_p)
{
    char *source = NULL;
    size_t n = 0;
    TRY(file_text_read(path, TEMPLATE_BYTES_MAX, &source, &n)); // jinja_compile() names its own limit
    enum status status = compile(path, source, n, jinja_p);
    chat->syntax = output_syntax_detect(source);
    free(source);
    return status;
}

static enum status compile_default(struct chat_template *chat, const char *path)
{
    chat->name = mem_string(path);
    return compile_file(chat, path, &chat->jinja);
}

// ---- tokenizer_config.json.

// Returns the template of this name in a list of named templates, or NULL.
static const char *named_template(const json_t *list, const char *wanted)
{
    size_t i;
    json_t *item;
    json_array_foreach((json_t *)list, i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name && !strcmp(name, wanted)) return json_string_value(json_object_get(item, "template"));
    }
    return NULL;
}

static enum status compile_config(struct chat_template *chat, const char *path, const json_t *config)
{
    const json_t *value = json_object_get(config, "chat_template");
    const char *source = json_string_value(value), *tools = NULL;
    if (json_is_array(value)) {
        source = named_template(value, "default");
        tools = named_template(value, "tool_use");
    } else if (value && !json_is_null(value) && !source) {
        return status_fail(STATUS_DATA, "%s: chat_template is %s: must be a string", path, json_type_name(value));
    }
    if (!source)
        return status_fail(STATUS_UNSUPPORTED, "the model has no chat template (the file chat_template.jinja or "
                                               "chat_template in tokenizer_config.json): send a text prompt instead "
                                               "of messages, or give the router a --chat-template");
    chat->name = mem_string(path);
    TRY(compile(path, source, strlen(source), &chat->jinja));
    chat->syntax = output_syntax_detect(tools ? tools : source);
    return tools ? compile(path, tools, strlen(tools), &chat->jinja_tools) : STATUS_OK;
}

// Reads the special tokens, which are strings or objects with a "content". Some members are lists of such tokens.
static void read_special_tokens(struct chat_template *chat, const json_t *config)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token",  "sep_token",
                                        "pad_token", "cls_token", "mask_token", "additional_special_tokens"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *value = json_object_get(config, names[i]);
        if (json_is_object(value)) value = json_object_get(value, "content");
        bool usable = json_is_string(value) || json_is_array(value);
        if (usable && !json_object_get(chat->special_tokens, names[i]))
            json_object_set(chat->special_tokens, names[i], value);
    }
}

static enum status read_config(struct chat_template *chat, const char *path, json_t **config_p)
{
    if (access(path, F_OK) != 0) return STATUS_OK;
    TRY(json_file_read_reals(path, JSON_CONFIG_BYTES_MAX, config_p));
    read_special_tokens(chat, *config_p);
    return STATUS_OK;
}

// Reads the template and the template for tools. transformers saves the template for tools in a folder next to the
// default template.
static enum status read_template(struct chat_template *chat, const char *model_dir, const char *config_path,
                                 const json_t *config)
{
    char *path = mem_format("%s/chat_template.jinja", model_dir);
    char *tools_path = mem_format("%s/additional_chat_templates/tool_use.jinja", model_dir);
    bool from_file = access(path, F_OK) == 0;
    enum status status = from_file ? compile_default(chat, path) : compile_config(chat, config_path, config);
    if (status == STATUS_OK && from_file && access(tools_path, F_OK) == 0)
        status = compile_file(chat, tools_path, &chat->jinja_tools);
    free(path);
    free(tools_path);
    return status;
}

static enum status read_model(struct chat_template *chat, const char *model_dir, bool wants_template)
{
    char *config_path = mem_format("%s/tokenizer_config.json", model_dir);
    char *map_path = mem_format("%s/special_tokens_map.json", model_dir); // older checkpoints have this file
    json_t *config = NULL, *map = NULL;
    enum status status = read_config(chat, config_path, &config);
    if (status == STATUS_OK) status = read_config(chat, map_path, &map);
    if (status == STATUS_OK && wants_template) status = read_template(chat, model_dir, config_path, config);
    json_decref(config);
    json_decref(map);
    free(config_path);
    free(map_path);
    return status;
}

// ---- Finding out which contents are printed.

#define PROBE "4c61e2d7"

static bool prints(const struct chat_template *chat, json_t *content)
{
    json_t *messages = json_pack("[{s:s,s:o}]", "role", "user", "content", content);
    const struct tm now = {.tm_mday = 1, .tm_year = 100};
    const struct chat_conversation conversation = {.messages = messages, .now = &now};
    struct jinja_output output;
    bool found = false;
    if (chat_render_jinja(chat, &conversation, &output) == STATUS_OK) {
        // Quoted text does not count: a list printed as a list shows its keys.
        found = strstr(output.text, PROBE) && !strstr(output.text, "'" PROBE) && !strstr(output.text, "\"" PROBE);
        jinja_output_fini(&output);
    }
    json_decref(messages);
    return found;
}

static void find_contents(struct chat_template *chat)
{
    chat->prints_parts = prints(chat, json_pack("[{s:s,s:s}]", "type", "text", "text", PROBE));
    chat->prints_strings = prints(chat, json_string(PROBE)) || !chat->prints_parts;
}

enum status chat_template_open(const char *model_dir, const char *template_file, struct chat_template **template_p)
{
    struct chat_template *chat = mem_alloc(sizeof *chat);
    chat->special_tokens = json_object();
    enum status status = STATUS_OK;
    if (template_file) status = compile_default(chat, template_file);
    if (status == STATUS_OK && model_dir) status = read_model(chat, model_dir, !template_file);
    if (status != STATUS_OK) {
        chat_template_free(chat);
        return status;
    }
    find_contents(chat);
    *template_p = chat;
    return STATUS_OK;
}

void chat_template_free(struct chat_template *chat)
{
    if (!chat) return;
    jinja_free(chat->jinja);
    jinja_free(chat->jinja_tools);
    json_decref(chat->special_tokens);
    free(chat->name);
    free(chat);
}

struct output_syntax chat_template_syntax(const struct chat_template *chat)
{
    return chat->syntax;
}

const char *chat_template_name(const struct chat_template *chat)
{
    const char *slash = strrchr(chat->name, '/');
    return slash ? slash + 1 : chat->name;
}
