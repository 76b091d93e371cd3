// SPDX-License-Identifier: Apache-2.0
// The parts of a chat template: chat_template.c opens it, and chat.c renders it. Private to the chat*.c files.
#pragma once

#include "lib/jinja/jinja.h"
#include "lib/text/chat.h"

struct chat_template {
    // jinja_tools renders requests with tools; if it is NULL, `jinja` renders all requests
    struct jinja_template *jinja, *jinja_tools;
    char *name;
    json_t *special_tokens; // object: bos_token, eos_token, ... of tokenizer_config.json
    bool prints_strings, prints_parts;
    struct output_syntax syntax;
};

// Tags of text in a rendering (jinja.h: origins). With n messages, text of message i has tag i. The tags below are
// added to n.
enum { CHAT_TAG_TOOLS, CHAT_TAG_DOCUMENTS, CHAT_TAG_VARIABLES };

// Renders the conversation without converting message contents. The output has the tags above.
enum status chat_render_jinja(const struct chat_template *chat, const struct chat_conversation *conversation,
                              struct jinja_output *output_p);

// Text of a conversation and its tokens. Token i begins at byte starts[i].
struct chat_rendering {
    const struct jinja_output *output;
    const json_t *messages; // the messages that the template received
    const size_t *starts;   // [n_ids] ascending
    int n_ids;
};

// Beginning of a rendering, up to the place where an answer begins.
struct chat_part {
    int n_messages, n_spans;
    size_t bytes;
    int n_ids;
};

// Finds the token ranges of the part that speculative prefill must keep (the rules are at chat_render()). The caller
// frees the ranges. Returns their number.
int chat_pinned(const struct chat_rendering *rendering, const struct chat_part *part, int turn_tokens,
                struct token_range **pinned_p);
// Finds the finished turns: the answers of the assistant and the prompts that they answered. Returns their number, or 0
// if there are too many.
int chat_turns(const struct chat_rendering *rendering, int turn_tokens, struct prompt_turn **turns_p);
