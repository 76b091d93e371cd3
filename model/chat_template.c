// SPDX-License-Identifier: Apache-2.0
// Recognises a Jinja chat template by its markers and reads the variations within its family.
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/chat_parts.h"
#include "model/unicode.h"

static bool source_has(const char *source, const char *text)
{
    return strstr(source, text) != NULL;
}

// Text of a Jinja string literal, with \n, \t, \', \" and \\ unescaped.
static char *unescape(const char *from, const char *to)
{
    struct bytes out = {0};
    for (; from < to; from++) {
        char c = *from;
        if (c == '\\' && from + 1 < to) {
            c = *++from;
            c = c == 'n' ? '\n' : c == 't' ? '\t' : c;
        }
        bytes_add(&out, &c, 1);
    }
    bytes_add(&out, "", 1);
    return out.data;
}

// The string literal that contains `marker` (" [INST] " for [INST]). In plain template text: the marker and the blank
// after it or, with `blank_before`, before it.
static char *literal_around(const char *source, const char *marker, bool blank_before)
{
    const char *at = strstr(source, marker), *end = at + strlen(marker), *from = at, *to = end;
    while (from > source && !strchr("'\"}\n", from[-1]))
        from--;
    if (from > source && (from[-1] == '\'' || from[-1] == '"')) {
        while (*to && *to != from[-1])
            to += *to == '\\' && to[1] ? 2 : 1;
        return unescape(from, to);
    }
    if (blank_before && at > source && at[-1] == ' ') at--;
    if (!blank_before && *end == ' ') end++;
    return unescape(at, end);
}

static const char *skip_blanks(const char *at)
{
    while (isspace((unsigned char)*at))
        at++;
    return at;
}

// True for `' ' + message...` or `' ' + content...`: answers start with a blank.
static bool answers_begin_with_blank(const char *source)
{
    for (const char *at = source; (at = strstr(at, " ")); at++) {
        if (at == source || (at[-1] != '\'' && at[-1] != '"') || at[1] != at[-1]) continue;
        const char *next = skip_blanks(at + 2);
        if (*next != '+') continue;
        next = skip_blanks(next + 1);
        if (!strncmp(next, "message[", 8) || !strncmp(next, "message.", 8) || !strncmp(next, "content", 7)) return true;
    }
    return false;
}

// True for `eos_token + ' '`.
static bool answers_end_with_blank(const char *source)
{
    for (const char *at = source; (at = strstr(at, "eos_token")); at++) {
        const char *next = skip_blanks(at + 9);
        if (*next != '+') continue;
        next = skip_blanks(next + 1);
        if (!strncmp(next, "' '", 3) || !strncmp(next, "\" \"", 3)) return true;
    }
    return false;
}

// True for `content | trim`, `message['content']|trim`, `content.strip()`.
static bool trims_content(const char *source)
{
    if (source_has(source, "content.strip()") || source_has(source, "content'].strip()") ||
        source_has(source, "content\"].strip()"))
        return true;
    for (const char *at = source; (at = strstr(at, "trim")); at++) {
        const char *bar = at;
        while (bar > source && bar[-1] == ' ')
            bar--;
        if (bar == source || *--bar != '|') continue;
        while (bar > source && strchr(" ']\"", bar[-1]))
            bar--;
        if (bar - source >= 7 && !strncmp(bar - 7, "content", 7)) return true;
    }
    return false;
}

// The text between `prefix` and `end` where it first starts without a quote; NULL: nowhere.
static char *text_between(const char *source, const char *prefix, const char *end)
{
    for (const char *at = source; (at = strstr(at, prefix));) {
        at += strlen(prefix);
        const char *to = strstr(at, end);
        if (!to) return NULL;
        if (*at != '\'' && *at != '"') return unescape(at, to);
    }
    return NULL;
}

static void read_llama3(struct chat_template *chat, const char *source)
{
    if (!source_has(source, "Cutting Knowledge Date: ")) return;
    char *cutting = text_between(source, "Cutting Knowledge Date: ", "\\n");
    char *today = text_between(source, "date_string = \"", "\"");
    chat->preamble = mem_format("Cutting Knowledge Date: %s\nToday Date: %s\n\n", cutting ? cutting : "December 2023",
                                today ? today : "26 Jul 2024");
    free(cutting);
    free(today);
}

static void read_chatml(struct chat_template *chat, const char *source)
{
    chat->default_system = text_between(source, "<|im_start|>system\\n", "<|im_end|>");
    if (!chat->default_system) chat->default_system = text_between(source, "<|im_start|>system\n", "<|im_end|>");
    chat->drops_thinking = source_has(source, "</think>");
}

static void read_mistral(struct chat_template *chat, const char *source)
{
    chat->user_before = literal_around(source, "[INST]", false);
    chat->user_after = literal_around(source, "[/INST]", true);
    chat->assistant_before = mem_string(answers_begin_with_blank(source) ? " " : "");
    chat->assistant_after = mem_format("%s%s", chat->eos, answers_end_with_blank(source) ? " " : "");
    if (source_has(source, "loop.last and system_message"))
        chat->system_place = CHAT_SYSTEM_LAST_USER;
    else if (source_has(source, "system_message"))
        chat->system_place = CHAT_SYSTEM_FIRST_USER;
}

static bool family_detect(const char *source, enum chat_family *family_p)
{
    if (source_has(source, "<|start_header_id|>"))
        *family_p = CHAT_LLAMA3;
    else if (source_has(source, "<|im_start|>") && !source_has(source, "<|im_sep|>"))
        *family_p = CHAT_CHATML;
    else if (!source_has(source, "[INST]") || !source_has(source, "[/INST]") || source_has(source, "[SYSTEM_PROMPT]"))
        return false;
    else
        *family_p = source_has(source, "<<SYS>>") ? CHAT_LLAMA2 : CHAT_MISTRAL;
    return true;
}

enum status chat_template_detect(const struct tokenizer *tokenizer, struct chat_template **template_p)
{
    const char *source = tokenizer_chat_template(tokenizer);
    enum chat_family family;
    if (!source)
        return status_fail(STATUS_UNSUPPORTED, "the model has no chat template (chat_template in tokenizer_config.json "
                                               "or the file chat_template.jinja): send a text prompt instead of "
                                               "messages");
    if (!family_detect(source, &family))
        return status_fail(STATUS_UNSUPPORTED, "the model's chat template is not supported: supported are Llama 3, "
                                               "Llama 2, ChatML and Mistral v1 to v3");
    const char *bos = tokenizer_token(tokenizer, tokenizer_bos(tokenizer));
    const char *eos = tokenizer_token(tokenizer, tokenizer_eos(tokenizer));
    if (!eos && (family == CHAT_LLAMA2 || family == CHAT_MISTRAL))
        return status_fail(STATUS_DATA, "the model's chat template ends answers with eos_token: "
                                        "tokenizer_config.json must name one");
    struct chat_template *chat = mem_alloc(sizeof *chat);
    bool uses_bos = bos && (source_has(source, "bos_token") || source_has(source, bos));
    *chat = (struct chat_template){.family = family,
                                   .bos = mem_string(uses_bos ? bos : ""),
                                   .eos = mem_string(eos ? eos : ""),
                                   .trim = trims_content(source)};
    if (family == CHAT_LLAMA3) read_llama3(chat, source);
    if (family == CHAT_CHATML) read_chatml(chat, source);
    if (family == CHAT_MISTRAL) read_mistral(chat, source);
    *template_p = chat;
    return STATUS_OK;
}

void chat_template_free(struct chat_template *chat)
{
    if (!chat) return;
    free(chat->bos);
    free(chat->eos);
    free(chat->preamble);
    free(chat->default_system);
    free(chat->user_before);
    free(chat->user_after);
    free(chat->assistant_before);
    free(chat->assistant_after);
    free(chat);
}

const char *chat_template_name(const struct chat_template *chat)
{
    static const char *const names[] = {"llama3", "llama2", "chatml", "mistral"};
    return names[chat->family];
}
