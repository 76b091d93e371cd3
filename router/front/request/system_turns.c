// SPDX-License-Identifier: Apache-2.0
#include "router/front/request/system_turns.h"

#include <string.h>

#define PROBE "7d1f93ab"

// The roles of a conversation: system, user and assistant. S is the turn that is tested.
static const char *const conversations[] = {"suaSu", "suS", "uaSu", "uS"};

static json_t *messages_create(const char *roles, bool with_probe)
{
    json_t *messages = json_array();
    for (size_t i = 0; roles[i]; i++) {
        bool is_probe = roles[i] == 'S';
        const char *role = roles[i] == 'u' ? "user" : roles[i] == 'a' ? "assistant" : "system";
        if (is_probe && !with_probe) continue;
        json_array_append_new(messages, json_pack("{s:s,s:s}", "role", role, "content", is_probe ? PROBE : "Hello"));
    }
    return messages;
}

static enum status render(const struct chat_template *chat, const struct tokenizer *tokenizer, const char *roles,
                          bool with_probe, struct chat_prompt *prompt_p)
{
    enum { IDS_MAX = 65536 };
    json_t *messages = messages_create(roles, with_probe);
    const struct tm now = {.tm_mday = 1, .tm_year = 100};
    const struct chat_conversation conversation = {.messages = messages, .now = &now};
    enum status status = chat_render(chat, tokenizer, &conversation, IDS_MAX, 0, prompt_p);
    json_decref(messages);
    return status;
}

// Returns true if `with` is `without` and one more part that contains the probe. The generation prompt follows the
// part.
static bool inserted_once(const char *without, const char *with)
{
    size_t n = strlen(without), more = strlen(with), start = 0, end = 0;
    const char *probe = strstr(with, PROBE);
    if (!probe || strstr(probe + 1, PROBE) || more < n) return false;
    while (start < n && without[start] == with[start])
        start++;
    while (end < n - start && without[n - 1 - end] == with[more - 1 - end])
        end++;
    return start + end == n && end > 0;
}

static bool renders(const struct chat_template *chat, const struct tokenizer *tokenizer, const char *roles)
{
    struct chat_prompt without = {0}, with = {0};
    bool found = render(chat, tokenizer, roles, false, &without) == STATUS_OK &&
                 render(chat, tokenizer, roles, true, &with) == STATUS_OK && inserted_once(without.text, with.text);
    chat_prompt_fini(&without);
    chat_prompt_fini(&with);
    return found;
}

bool system_turns_rendered(const struct chat_template *chat, const struct tokenizer *tokenizer)
{
    for (size_t i = 0; i < sizeof conversations / sizeof *conversations; i++)
        if (!renders(chat, tokenizer, conversations[i])) return false;
    return true;
}
