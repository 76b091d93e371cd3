// SPDX-License-Identifier: Apache-2.0
// The facts that chat_template.c reads from a Jinja source and that chat.c renders with. Private to these two.
#pragma once

#include <stdbool.h>

#include "model/chat.h"

enum chat_family { CHAT_LLAMA3, CHAT_LLAMA2, CHAT_CHATML, CHAT_MISTRAL };
enum chat_system_place { CHAT_SYSTEM_NONE, CHAT_SYSTEM_FIRST_USER, CHAT_SYSTEM_LAST_USER };

struct chat_template {
    enum chat_family family;
    char *bos, *eos; // as spelled, "" without one; owned, as all strings below
    bool trim;       // strip white space around contents; MISTRAL: around those of the assistant

    char *preamble;       // LLAMA3: text that starts the system message (3.1: dates); NULL: no added system message
    char *default_system; // CHATML: for conversations without a system message; NULL: none
    bool drops_thinking;  // CHATML: remove the text up to "</think>" from earlier answers (Qwen3)

    char *user_before, *user_after;           // MISTRAL: "[INST] ", "[/INST]" with the blanks of this version
    char *assistant_before, *assistant_after; // MISTRAL: " " or "", EOS with or without a blank
    enum chat_system_place system_place;      // MISTRAL: user turn that contains the system prompt
};
