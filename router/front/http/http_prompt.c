// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_prompt.h"

#include <limits.h>

#include "lib/text/generation_json.h"

static enum status refuse_prompt(void)
{
    return json_refuse_type("prompt", "a string, a list of token ids, or a list of these");
}

static enum status read_ids(const json_t *list, struct http_input *in, struct http_prompt *prompt)
{
    prompt->n_ids = json_array_size(list);
    prompt->ids = http_input_alloc(in, prompt->n_ids, sizeof *prompt->ids);
    for (size_t i = 0; i < prompt->n_ids; i++) {
        json_int_t id;
        if (!json_whole(json_array_get(list, i), &id) || id < 0 || id > INT_MAX) return refuse_prompt();
        prompt->ids[i] = (uint32_t)id;
    }
    return prompt->n_ids ? STATUS_OK : status_fail(STATUS_INVALID, "prompt: a list of token ids is empty");
}

enum status http_prompt_read(const json_t *value, struct http_input *in, struct http_prompt *prompt)
{
    if (json_is_array(value)) return read_ids(value, in, prompt);
    if (!json_is_string(value)) return refuse_prompt();
    prompt->text = json_string_value(value);
    prompt->text_bytes = json_string_length(value);
    return STATUS_OK; // an empty text is a prompt if the tokenizer adds a token before every text
}
