// SPDX-License-Identifier: Apache-2.0
// Finds out whether a chat template renders turns of the role system between other turns. Some templates raise an error
// or leave such turns out. Any thread may call.
#pragma once

#include "lib/text/chat.h"

// Renders short conversations with and without such a turn. Returns true if the turn is rendered once and in its place,
// and changes nothing else.
bool system_turns_rendered(const struct chat_template *chat, const struct tokenizer *tokenizer);
