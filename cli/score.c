// SPDX-License-Identifier: Apache-2.0
// forepack score: shows the tokens of a prompt that the speculator would keep. On a terminal, kept text is green and
// pruned text is dim. Otherwise kept text is between [ and ]. --html writes a page that shades each token by its
// importance.
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/remote.h"
#include "lib/base/mem.h"
#include "lib/page/page.h"

static struct {
    struct remote remote;
    char *prompt, *prompt_file, *html;
    bool json;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "-Score"},
    REMOTE_OPTION_ROWS(o.remote),
    PROMPT_OPTION_ROWS(o),
    {.name = "html", .type = OPTION_STRING, .value = &o.html, .placeholder = "FILE",
     .help = "write an HTML page to this file, not the text"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print one JSON object: token_ids, kept, importance"},
    REQUEST_OPTION_ROWS,
    {0},
};
// clang-format on

// Consecutive tokens that are either all kept or all pruned.
struct segment {
    size_t first, last; // inclusive
    bool kept;
};

// Fetches the text of the prompt, with the end of each token. The caller frees *text_p.
static enum status text_fetch(const Forepack__V1__ScoreResponse *m, Forepack__V1__DetokenizeResponse **text_p)
{
    Forepack__V1__DetokenizeRequest request = FOREPACK__V1__DETOKENIZE_REQUEST__INIT;
    request.token_ids = m->token_ids;
    request.n_token_ids = m->n_token_ids;
    request.keep_special = request.return_ends = true;
    ProtobufCMessage *answer;
    TRY(remote_call(&o.remote, "/forepack.v1.Inference/Detokenize", &request.base,
                    &forepack__v1__detokenize_response__descriptor, &answer));
    Forepack__V1__DetokenizeResponse *text = (void *)answer;
    bool fits = text->n_ends == m->n_token_ids;
    for (size_t t = 0; t < text->n_ends && fits; t++)
        fits = text->ends[t] >= (t ? text->ends[t - 1] : 0) && text->ends[t] <= text->text.len;
    if (fits) {
        *text_p = text;
        return STATUS_OK;
    }
    protobuf_c_message_free_unpacked(answer, NULL);
    return status_fail(STATUS_INTERNAL, "%s sent a text without the ends of its tokens", o.remote.server);
}

struct slice {
    const char *bytes;
    size_t n;
};

// Returns the text of tokens [first, last].
static struct slice tokens_text(const Forepack__V1__DetokenizeResponse *text, size_t first, size_t last)
{
    size_t begin = first ? text->ends[first - 1] : 0;
    return (struct slice){(const char *)text->text.data + begin, text->ends[last] - begin};
}

// Divides the prompt into segments. The router must send ascending ranges inside the prompt; anything else is an error.
static enum status segments_create(const Forepack__V1__ScoreResponse *m, struct segment **segments_p, int *n_p)
{
    struct segment *segments = mem_alloc_array(2 * m->n_kept + 1, sizeof *segments);
    int n = 0;
    size_t at = 0;
    enum status status = STATUS_OK;
    for (size_t k = 0; k < m->n_kept && status == STATUS_OK; k++) {
        size_t first = m->kept[k]->first, last = m->kept[k]->last;
        if (first < at || last < first || last >= m->n_token_ids) {
            status = status_fail(STATUS_INTERNAL, "%s sent ranges of kept tokens that do not fit the prompt",
                                 o.remote.server);
            break;
        }
        if (first > at) segments[n++] = (struct segment){.first = at, .last = first - 1};
        segments[n++] = (struct segment){.first = first, .last = last, .kept = true};
        at = last + 1;
    }
    if (at < m->n_token_ids) segments[n++] = (struct segment){.first = at, .last = m->n_token_ids - 1};
    *segments_p = segments;
    *n_p = n;
    return status;
}

static size_t kept_count(const Forepack__V1__ScoreResponse *m)
{
    size_t kept = 0;
    for (size_t k = 0; k < m->n_kept; k++)
        kept += m->kept[k]->last - m->kept[k]->first + 1;
    return kept;
}

static void score_print_text(const Forepack__V1__ScoreResponse *m, const Forepack__V1__DetokenizeResponse *text,
                             const struct segment *segments, int n)
{
    bool color = isatty(STDOUT_FILENO);
    for (int i = 0; i < n; i++) {
        const struct segment *s = &segments[i];
        fputs(color ? (s->kept ? "\033[1;32m" : "\033[2m") : (s->kept ? "[" : ""), stdout);
        const struct slice slice = tokens_text(text, s->first, s->last);
        fwrite(slice.bytes, 1, slice.n, stdout);
        fputs(color ? "\033[0m" : (s->kept ? "]" : ""), stdout);
    }
    printf("\n");
    fprintf(stderr, "kept %zu of %zu tokens; scored in %.1f ms\n", kept_count(m), m->n_token_ids, m->score_ms);
}

static void html_write_escaped(FILE *file, struct slice text)
{
    for (size_t i = 0; i < text.n; i++) {
        switch (text.bytes[i]) {
        case '&': fputs("&amp;", file); break;
        case '<': fputs("&lt;", file); break;
        case '>': fputs("&gt;", file); break;
        default: fputc(text.bytes[i], file);
        }
    }
}

enum { SHADES = 10 };

// Returns an index of the colour ramp. Shows the square root of the importance, because importances are small and
// differ by orders of magnitude.
static int shade_of(double importance, double most)
{
    int shade = (int)(sqrt(fmax(0, importance) / most) * SHADES);
    return shade < SHADES ? shade : SHADES - 1;
}

// Writes a token, together with the following tokens that share a character with it. Returns the number of tokens
// written.
static size_t span_write(FILE *file, const Forepack__V1__ScoreResponse *m, const Forepack__V1__DetokenizeResponse *text,
                         const struct segment *s, size_t at, double most)
{
    size_t n = 1;
    while (at + n <= s->last && !tokens_text(text, at, at + n - 1).n)
        n++;
    double importance = 0;
    for (size_t t = at; t < at + n; t++)
        importance += t < m->n_importance ? m->importance[t] / (double)n : 0;
    fprintf(file, "<span class=\"tok %s i%d\" title=\"token %zu, importance %.3g\">", s->kept ? "kept" : "drop",
            shade_of(importance, most), at, importance);
    html_write_escaped(file, tokens_text(text, at, at + n - 1));
    fputs("</span>", file);
    return n;
}

static void html_write_head(FILE *file, const Forepack__V1__ScoreResponse *m, bool chunks)
{
    fputs(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Kept tokens</title>\n<style>",
        file);
    fwrite(page_style, 1, page_style_size, file);
    fprintf(
        file,
        "</style></head><body>\n<h1>Kept tokens</h1>\n<p class=\"dim\">%zu of %zu tokens kept, scored in %.1f ms.</p>\n"
        "<p class=\"key\"><span><span class=\"ramp\">",
        kept_count(m), m->n_token_ids, m->score_ms);
    for (int i = 0; i < SHADES; i++)
        fprintf(file, "<i class=\"i%d\"></i>", i);
    fprintf(file,
            "</span>importance</span><span class=\"prompt\"><span class=\"kept\">kept</span></span>"
            "<span class=\"prompt\"><span class=\"drop\">pruned</span></span>%s</p>\n<div class=\"card prompt\">",
            chunks ? "<span>| border of a chunk</span>" : "");
}

static void html_write_tokens(FILE *file, const Forepack__V1__ScoreResponse *m,
                              const Forepack__V1__DetokenizeResponse *text, const struct segment *segments, int n,
                              size_t chunk_tokens)
{
    double most = 1e-30;
    size_t chunk = 0;
    for (size_t t = 0; t < m->n_importance; t++)
        most = fmax(most, m->importance[t]);
    for (int i = 0; i < n; i++) {
        for (size_t at = segments[i].first; at <= segments[i].last;) {
            if (chunk_tokens && at / chunk_tokens != chunk) fputs("<span class=\"edge\">|</span>", file);
            if (chunk_tokens) chunk = at / chunk_tokens; // a character may cross the border of a chunk
            at += span_write(file, m, text, &segments[i], at, most);
        }
    }
}

static enum status html_write(const Forepack__V1__ScoreResponse *m, const Forepack__V1__DetokenizeResponse *text,
                              const struct segment *segments, int n, size_t chunk_tokens)
{
    FILE *file = fopen(o.html, "w");
    if (!file) return status_fail(STATUS_INVALID, "--html %s: %s", o.html, strerror(errno));
    html_write_head(file, m, chunk_tokens > 0);
    html_write_tokens(file, m, text, segments, n, chunk_tokens);
    fputs("</div>\n</body></html>\n", file);
    return fclose(file) == 0 ? STATUS_OK : status_fail(STATUS_INVALID, "--html %s: %s", o.html, strerror(errno));
}

static void score_print_json(const Forepack__V1__ScoreResponse *m)
{
    json_t *ids = json_array(), *kept = json_array(), *importance = json_array();
    for (size_t i = 0; i < m->n_token_ids; i++)
        json_array_append_new(ids, json_integer(m->token_ids[i]));
    for (size_t i = 0; i < m->n_kept; i++)
        json_array_append_new(kept, json_pack("[I,I]", (json_int_t)m->kept[i]->first, (json_int_t)m->kept[i]->last));
    for (size_t i = 0; i < m->n_importance; i++)
        json_array_append_new(importance, json_real(m->importance[i]));
    json_t *object = json_pack("{s:o,s:o,s:o,s:f}", "token_ids", ids, "kept", kept, "importance", importance,
                               "score_ms", m->score_ms);
    report_json(object);
}

static enum status score_print(const Forepack__V1__ScoreResponse *m, size_t chunk_tokens)
{
    if (o.json) {
        score_print_json(m);
        return STATUS_OK;
    }
    struct segment *segments = NULL;
    Forepack__V1__DetokenizeResponse *text = NULL;
    int n = 0;
    enum status status = segments_create(m, &segments, &n);
    if (status == STATUS_OK) status = text_fetch(m, &text);
    if (status == STATUS_OK && o.html) {
        status = html_write(m, text, segments, n, chunk_tokens);
    } else if (status == STATUS_OK) {
        score_print_text(m, text, segments, n);
    }
    if (text) forepack__v1__detokenize_response__free_unpacked(text, NULL);
    free(segments);
    return status;
}

int command_score(int argc, char **argv)
{
    char **rest = mem_alloc_array((size_t)argc, sizeof *rest);
    int n_rest =
        options_main(options,
                     "Usage: forepack score [--server HOST:PORT] (--prompt TEXT | --prompt-file FILE | -) [options]\n"
                     "Shows which tokens of a prompt the speculator would keep.",
                     argc, argv, rest);
    struct request_spec spec;
    enum status status = request_spec_from_flags(options, &spec);
    if (status == STATUS_OK) status = request_read_prompt(o.prompt, o.prompt_file, rest, n_rest, &spec);
    rpc_init();
    if (status == STATUS_OK) {
        Forepack__V1__ScoreRequest request = FOREPACK__V1__SCORE_REQUEST__INIT;
        request.text = (ProtobufCBinaryData){spec.text_bytes, (uint8_t *)spec.text};
        request.prefill = request_prefill_message(&spec);
        if (spec.model_name) request.model = spec.model_name;
        ProtobufCMessage *answer;
        status = remote_call(&o.remote, "/forepack.v1.Inference/Score", &request.base,
                             &forepack__v1__score_response__descriptor, &answer);
        free(request.prefill);
        if (status == STATUS_OK) {
            int chunk_tokens = prefill_chunk_tokens(&spec.prefill);
            status = score_print((const void *)answer, chunk_tokens > 0 ? (size_t)chunk_tokens : 0);
            protobuf_c_message_free_unpacked(answer, NULL);
        }
    }
    int code = status == STATUS_OK ? 0 : report_failure(status);
    rpc_shutdown();
    request_spec_free(&spec);
    options_free(options);
    free(rest);
    return code;
}
