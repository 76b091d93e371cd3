// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/json_unknown.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/text/generation.h"

// The fields that some API reads, refuses or ignores on purpose, in addition to sampling_fields and prefill_fields.
static const char *const known[] = {"add_generation_prompt",
                                    "add_special_tokens",
                                    "allowed_token_ids",
                                    "audio",
                                    "background",
                                    "bad_words",
                                    "best_of",
                                    "cache_control",
                                    "cache_salt",
                                    "chat_template",
                                    "chat_template_kwargs",
                                    "container",
                                    "context_management",
                                    "continue_final_message",
                                    "conversation",
                                    "documents",
                                    "drafts",
                                    "echo",
                                    "explain",
                                    "function_call",
                                    "functions",
                                    "guided_choice",
                                    "guided_grammar",
                                    "guided_json",
                                    "guided_regex",
                                    "include",
                                    "include_stop_str_in_output",
                                    "inference_geo",
                                    "input",
                                    "instructions",
                                    "logit_bias",
                                    "logits_processors",
                                    "max_completion_tokens",
                                    "max_output_tokens",
                                    "max_tool_calls",
                                    "mcp_servers",
                                    "messages",
                                    "metadata",
                                    "modalities",
                                    "model",
                                    "moderation",
                                    "n",
                                    "output_config",
                                    "output_format",
                                    "parallel_tool_calls",
                                    "pinned",
                                    "prediction",
                                    "prefill",
                                    "previous_response_id",
                                    "priority",
                                    "prompt",
                                    "prompt_cache_key",
                                    "prompt_cache_retention",
                                    "reasoning",
                                    "reasoning_effort",
                                    "response_format",
                                    "return_kept",
                                    "return_token_ids",
                                    "safety_identifier",
                                    "service_tier",
                                    "skip_special_tokens",
                                    "speed",
                                    "stop",
                                    "stop_sequences",
                                    "stop_token_ids",
                                    "store",
                                    "stream",
                                    "stream_options",
                                    "structured_outputs",
                                    "suffix",
                                    "system",
                                    "tenant",
                                    "text",
                                    "thinking",
                                    "tool_choice",
                                    "tools",
                                    "top_logprobs",
                                    "truncate_prompt_tokens",
                                    "truncation",
                                    "ttft_deadline_ms",
                                    "use_beam_search",
                                    "user",
                                    "verbosity",
                                    "web_search_options"};

enum { NAMES_MAX = 64, NAME_BYTES_MAX = 40 };

static struct {
    pthread_mutex_t mutex; // guards the fields below
    char names[NAMES_MAX][NAME_BYTES_MAX + 1];
    int n;
} logged = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static bool among(const struct generation_field *fields, const char *name)
{
    for (const struct generation_field *f = fields; f->name; f++)
        if (strcmp(f->name, name) == 0) return true;
    return false;
}

static bool is_known(const char *name)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i], name) == 0) return true;
    return among(sampling_fields, name) || among(prefill_fields, name);
}

static bool is_plain(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz_");
    return n >= 1 && n <= NAME_BYTES_MAX && !name[n];
}

// Returns true if the name is new and there is room for it.
static bool logged_add(const char *name)
{
    bool is_new = false;
    pthread_mutex_lock(&logged.mutex);
    int i = 0;
    while (i < logged.n && strcmp(logged.names[i], name) != 0)
        i++;
    if (i == logged.n && i < NAMES_MAX) {
        strcpy(logged.names[logged.n++], name); // is_plain() has checked the length
        is_new = true;
    }
    pthread_mutex_unlock(&logged.mutex);
    return is_new;
}

void json_unknown_log(const char *api, const json_t *body)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)body, name, value)
    {
        if (!is_known(name) && is_plain(name) && logged_add(name))
            log_event(LOG_INFO, "field_ignored", LOG_FIELD("api", api), LOG_FIELD("field", name));
    }
}
