// SPDX-License-Identifier: Apache-2.0
// Chat templates: messages to prompt tokens, as the model was trained to see them.
//
// A template is Jinja; we do not run Jinja but know four families by their markers, and read out of the source what
// varies within one (spacing, default system prompt, dates): "llama3" (<|start_header_id|>), "llama2" ([INST] with
// <<SYS>>), "chatml" (<|im_start|>: Qwen and others), "mistral" ([INST] without <<SYS>>: v1 to v3, Tekken). The
// prompt is what Hugging Face's apply_chat_template(add_generation_prompt=True) gives without tools, with one
// difference on purpose: special tokens are recognised in the template's text only, so that no message can forge a
// turn. Dates are the template's own default ("26 Jul 2024"), never the clock: a prompt must not change overnight.
//
// Threads: a chat_template is immutable; any thread may render with it.
#pragma once

#include "model/generation.h"
#include "model/tokenizer.h"

struct chat_template;

struct chat_message {
    const char *role;    // "system", "user" or "assistant"
    const char *content; // UTF-8, [content_bytes]
    size_t content_bytes;
};

// What a conversation becomes. Owned by the caller: chat_prompt_fini().
struct chat_prompt {
    char *text; // as rendered, special tokens spelled out; NUL-terminated
    size_t text_bytes;
    int32_t *ids; // [n_ids]; BOS is there when the template puts it: add nothing
    int n_ids;
    struct token_range *pinned; // [n_pinned] ascending, apart: what speculative prefill must never drop: the system
    int n_pinned;               // prompt, the last user turn's frame (not its content) and the generation prompt
};

// Chooses the template of this tokenizer. UNSUPPORTED: it has none, or one that is not known; the sentence names what
// is. DATA: it needs an eos_token and tokenizer_config.json names none.
enum status chat_template_detect(const struct tokenizer *tokenizer, struct chat_template **template_p);
void chat_template_free(struct chat_template *chat); // NULL is fine

// "llama3", "llama2", "chatml" or "mistral".
const char *chat_template_name(const struct chat_template *chat);

// Messages [n] to a prompt that ends where the assistant's answer begins. Llama 2 and Mistral want an optional system
// message, then user and assistant in turn; all want the last to be a user's, not empty. INVALID names the message that
// breaks a rule. UNSUPPORTED: role "tool".
enum status chat_render(const struct chat_template *chat, const struct tokenizer *tokenizer,
                        const struct chat_message *messages, int n, struct chat_prompt *prompt_p);
void chat_prompt_fini(struct chat_prompt *prompt);
