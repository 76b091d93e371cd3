// SPDX-License-Identifier: Apache-2.0
// Chat templates: messages to the prompt tokens on which the model was trained.
//
// A model's template is a Jinja program; jinja/ executes it with the variables that Hugging Face's
// apply_chat_template() gives: messages, tools, documents, add_generation_prompt, the special tokens of
// tokenizer_config.json (bos_token, ...) and the client's own (chat_template_kwargs). The prompt equals that of
// transformers, with one difference on purpose: special tokens are recognised only in text of the template, so that no
// client can forge a turn. strftime_now gives the time of the request, as in transformers: a prompt is rendered once,
// when the request arrives, and replays use its tokens.
//
// Precedence of the sources: a file given by the operator, then chat_template.jinja, then `chat_template` of
// tokenizer_config.json: a string, or a list of named ones, of which "tool_use" renders requests with tools and
// "default" the others. Beside chat_template.jinja, additional_chat_templates/tool_use.jinja does that.
//
// Contents are a string or a list of parts ({"type": "text", "text": ...}), as clients send them. At start two short
// conversations tell which of them the template prints: lists are joined by newlines for a template that prints strings
// only, and strings become one part for a template that prints parts only. Null contents count as empty, and the
// `arguments` of tool calls, JSON text in OpenAI's interface, become objects, which templates expect.
//
// Threads: a chat_template is immutable; any thread may render with it.
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "lib/text/generation.h"
#include "lib/text/output_parser.h"
#include "lib/text/tokenizer.h"

struct chat_template;

// What a client asks for. All JSON is borrowed and unchanged.
struct chat_conversation {
    const json_t *messages;  // array of objects with at least "role"
    const json_t *tools;     // array; NULL: none
    const json_t *documents; // array; NULL: none
    const json_t *variables; // object: further variables of the template; NULL: none
    bool answered;           // no generation prompt: the last message is the whole answer
    bool wants_turns;        // of the prompt; costs O(turns * tokens)
    const struct tm *now;    // for strftime_now; NULL: local time
};

// The prompt of a conversation. Owned by the caller: chat_prompt_fini().
struct chat_prompt {
    char *text; // with special tokens spelled out; NUL-terminated
    size_t text_bytes;
    int32_t *ids; // [n_ids]; includes BOS if the template adds it: add nothing
    int n_ids;
    struct token_range *pinned; // [n_pinned] ascending, disjoint: tokens that speculative prefill must keep
    int n_pinned;
    struct prompt_turn *turns; // [n_turns] ascending: the answers so far and the prompts that they answer
    int n_turns;
};

// The template of a checkpoint, or the one of `template_file` (NULL: the checkpoint's own). `model_dir` may be NULL if
// there is a file; then there are no special tokens. UNSUPPORTED: no template, or one that cannot be parsed; the
// sentence names file and line. NOT_FOUND: no `template_file`. DATA: tokenizer_config.json is broken.
enum status chat_template_open(const char *model_dir, const char *template_file, struct chat_template **template_p);
void chat_template_free(struct chat_template *chat); // NULL is fine

// The name of the file that the template came from, without its folder.
const char *chat_template_name(const struct chat_template *chat);

// How the model marks reasoning and tool calls in its answers.
struct output_syntax chat_template_syntax(const struct chat_template *chat);

// The text of a conversation exactly as transformers renders it: none of the conversions of contents above. INVALID:
// the template raised an error, or took more than the limits of jinja/. The caller frees the text.
enum status chat_render_text(const struct chat_template *chat, const struct chat_conversation *conversation,
                             char **text_p, size_t *text_bytes_p);

// Renders to a prompt that ends where the answer starts. INVALID names the message that is malformed, or gives the
// sentence of the template. OUT_OF_RANGE as soon as the prompt has more than `max_ids` tokens.
//
// Pinned are: all text of the template and of tools before the first message that is not a system or developer message;
// the text of system and developer messages and of tools wherever it stands; the text of the template between the last
// user message and the one before it, and all such text after it, with the generation prompt; and the last user message
// itself if it has at most `turn_tokens` tokens, else its first and last turn_tokens / 2: instructions usually stand at
// the start or the end of a turn. Documents are not pinned.
enum status chat_render(const struct chat_template *chat, const struct tokenizer *tokenizer,
                        const struct chat_conversation *conversation, int max_ids, int turn_tokens,
                        struct chat_prompt *prompt_p);
void chat_prompt_fini(struct chat_prompt *prompt);
