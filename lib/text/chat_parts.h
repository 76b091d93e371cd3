// SPDX-License-Identifier: Apache-2.0
// A chat template as chat_template.c opens it and chat.c renders it. Private to these two.
#pragma once

#include "lib/jinja/jinja.h"
#include "lib/text/chat.h"

struct chat_template {
    struct jinja_template *jinja, *jinja_tools; // jinja_tools: for requests with tools; NULL: `jinja` renders them, too
    char *name;
    json_t *special_tokens; // object: bos_token, eos_token, ... of tokenizer_config.json
    bool prints_strings, prints_parts;
    struct output_syntax syntax;
};

// Origins of text in a rendering: message i has tag i, these follow.
enum { CHAT_TAG_TOOLS, CHAT_TAG_DOCUMENTS, CHAT_TAG_VARIABLES };

// Renders without any conversion. The output's tags are those above after the number of messages.
enum status chat_render_jinja(const struct chat_template *chat, const struct chat_conversation *conversation,
                              struct jinja_output *output_p);

// The text of a conversation and its tokens: token i begins at byte starts[i].
struct chat_rendering {
    const struct jinja_output *output;
    const json_t *messages; // as the template got them
    const size_t *starts;   // [n_ids] ascending
    int n_ids;
};

// The beginning of a rendering, up to where an answer begins.
struct chat_part {
    int n_messages, n_spans;
    size_t bytes;
    int n_ids;
};

// The ranges of the part that speculative prefill must keep, to be freed by the caller; returns their number.
int chat_pinned(const struct chat_rendering *rendering, const struct chat_part *part, int turn_tokens,
                struct token_range **pinned_p);
// The finished turns: for each message of the assistant the prompt that it answered. None if there are too many.
int chat_turns(const struct chat_rendering *rendering, int turn_tokens, struct prompt_turn **turns_p);
