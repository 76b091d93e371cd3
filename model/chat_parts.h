// SPDX-License-Identifier: Apache-2.0
// What chat_template.c reads out of a Jinja source and chat.c renders by. Private to these two.
#pragma once

#include <stdbool.h>

#include "model/chat.h"

enum chat_family { CHAT_LLAMA3, CHAT_LLAMA2, CHAT_CHATML, CHAT_MISTRAL };
enum chat_system_place { CHAT_SYSTEM_NONE, CHAT_SYSTEM_FIRST_USER, CHAT_SYSTEM_LAST_USER };

struct chat_template {
    enum chat_family family;
    char *bos, *eos; // as spelled, "" when the template or the tokenizer has none; owned, like all below
    bool trim;       // contents lose the white space around them; for Mistral those of the assistant

    char *preamble; // LLAMA3: what the system message begins with (3.1: dates); NULL: no system message of its own
    char *default_system; // CHATML: for conversations without system message; NULL: none
    bool drops_thinking;  // CHATML: earlier answers lose what stands up to "</think>" (Qwen3)

    char *user_before, *user_after;           // MISTRAL: "[INST] ", "[/INST]" with this version's blanks
    char *assistant_before, *assistant_after; // MISTRAL: " " or "", EOS and perhaps a blank
    enum chat_system_place system_place;      // MISTRAL: which user turn the system prompt goes into
};
