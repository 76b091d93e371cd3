// SPDX-License-Identifier: Apache-2.0
// forepack bench template: measures the CPU time to parse a chat template and to render a conversation with it.
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/commands/bench.h"
#include "bench/quantiles.h"
#include "cli/request.h"
#include "lib/base/mem.h"
#include "lib/base/options.h"
#include "lib/text/chat.h"

static struct {
    char *model, *template;
    int64_t turns, content_bytes, rounds;
    bool json;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "model", .type = OPTION_STRING, .value = &o.model, .placeholder = "DIR",
     .help = "checkpoint whose chat template is measured"},
    {.name = "template", .type = OPTION_STRING, .value = &o.template, .placeholder = "FILE",
     .help = "chat template to measure instead"},
    {.name = "turns", .type = OPTION_INT, .value = &o.turns, .default_text = "50", .min = 1, .max = 4096,
     .unit = "messages", .help = "messages of user and assistant in turn, after one of the system"},
    {.name = "content-bytes", .type = OPTION_INT, .value = &o.content_bytes, .default_text = "400", .min = 1,
     .max = 1000000, .unit = "bytes", .help = "text of each message"},
    {.name = "rounds", .type = OPTION_INT, .value = &o.rounds, .default_text = "200", .min = 1, .max = 100000,
     .help = "renderings; the median and the slowest are reported"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print one JSON object"},
    {0},
};
// clang-format on

static json_t *conversation_create(void)
{
    json_t *messages = json_array();
    char *content = mem_alloc((size_t)o.content_bytes + 1);
    for (int64_t i = 0; i < o.content_bytes; i++)
        content[i] = i % 7 == 6 ? ' ' : (char)('a' + i % 26);
    for (int64_t i = -1; i < o.turns; i++) {
        const char *role = i < 0 ? "system" : i % 2 ? "assistant" : "user";
        json_array_append_new(messages, json_pack("{s:s,s:s}", "role", role, "content", content));
    }
    free(content);
    return messages;
}

static enum status measure(const json_t *messages, struct samples *parse, struct samples *render, size_t *text_bytes_p)
{
    const struct chat_conversation conversation = {.messages = messages};
    enum { PARSES = 20 };
    for (int64_t i = 0; i < o.rounds; i++) {
        struct chat_template *chat;
        char *text;
        double start = thread_cpu_us();
        TRY(chat_template_open(o.model, o.template, &chat));
        if (i < PARSES) samples_add(parse, thread_cpu_us() - start);
        start = thread_cpu_us();
        enum status status = chat_render_text(chat, &conversation, &text, text_bytes_p);
        if (status == STATUS_OK) {
            samples_add(render, thread_cpu_us() - start);
            free(text);
        }
        chat_template_free(chat);
        TRY(status);
    }
    return STATUS_OK;
}

static void print(struct samples *parse, struct samples *render, size_t text_bytes)
{
    struct quantiles p = samples_quantiles(parse), r = samples_quantiles(render);
    if (!o.json) {
        printf("%lld turns, %zu bytes of text\nparse   %8.1f us\nrender  %8.1f us, slowest %.1f us\n",
               (long long)o.turns, text_bytes, p.p50, r.p50, r.max);
        return;
    }
    json_t *row = json_pack("{s:I,s:I,s:f,s:f,s:f}", "turns", (json_int_t)o.turns, "text_bytes", (json_int_t)text_bytes,
                            "parse_us", p.p50, "render_us", r.p50, "render_us_max", r.max);
    json_dumpf(row, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(row);
}

int bench_template(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack bench template (--model DIR | --template FILE) [options]\n"
                 "CPU time to parse a chat template and to render a conversation with it.",
                 argc, argv, NULL);
    struct samples parse = {0}, render = {0};
    size_t text_bytes = 0;
    json_t *messages = conversation_create();
    enum status status = o.model || o.template ? measure(messages, &parse, &render, &text_bytes)
                                               : status_fail(STATUS_INVALID, "--model or --template: one is required");
    if (status == STATUS_OK) print(&parse, &render, text_bytes);
    int code = status == STATUS_OK ? 0 : report_failure(status);
    samples_free(&parse);
    samples_free(&render);
    json_decref(messages);
    options_free(options);
    return code;
}
