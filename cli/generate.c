// SPDX-License-Identifier: Apache-2.0
#include "cli/generate.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/answer_summary.h"
#include "cli/companion.h"
#include "lib/base/mem.h"
#include "lib/text/limits.h"

static struct {
    struct remote remote;
    char *prompt, *prompt_file, *id;
    struct generate_model_flags model;
    bool json;
    int64_t timeout_ms;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "-Target"},
    REMOTE_OPTION_ROWS(o.remote),
    {.name = "timeout-ms", .type = OPTION_INT, .value = &o.timeout_ms, .default_text = "0", .max = 86400000, .unit = "ms",
     .help = "deadline of the call; 0 is none"},
    {.name = "model", .type = OPTION_STRING, .value = &o.model.model, .placeholder = "DIR",
     .help = "run this checkpoint in one process (forepack-bench), without a cluster"},
    {.name = "backend", .type = OPTION_CHOICE, .value = &o.model.backend, .default_text = "auto",
     .choices = MODEL_BACKENDS, .help = "with --model: backend; auto: a GPU if there is one, else the CPU"},
    {.name = "dtype", .type = OPTION_CHOICE, .value = &o.model.dtype, .default_text = "auto", .choices = MODEL_DTYPES,
     .help = "with --model: data type for model weights; auto: as in the checkpoint"},
    {.name = "kv-cache-dtype", .type = OPTION_CHOICE, .value = &o.model.kv_dtype, .default_text = "auto",
     .choices = MODEL_KV_DTYPES, .help = "with --model: data type for the KV cache; auto: f32 with f32 weights, else bf16"},
    {.name = "packed-cache", .type = OPTION_STRING, .value = &o.model.packed_cache, .default_text = "off",
     .placeholder = "DIR",
     .help = "with --model: directory that keeps packed weights for the next start; auto: next to the checkpoint"},
    {.name = "threads", .type = OPTION_INT, .value = &o.model.threads, .default_text = "0", .max = 4096,
     .help = "with --model: compute threads; 0: all cores that the process may use"},
    {.name = "max-num-batched-tokens", .type = OPTION_INT, .value = &o.model.token_budget, .default_text = "2048",
     .min = 1, .max = 1048576, .unit = "tokens", .help = "with --model: maximum number of tokens of a forward pass"},
    {.name = "-Prompt and output"},
    PROMPT_OPTION_ROWS(o),
    {.name = "id", .type = OPTION_STRING, .value = &o.id, .help = "request id; default: the router generates one"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print one JSON object at the end, not the text"},
    REQUEST_OPTION_ROWS,
    {0},
};
// clang-format on

static const char usage[] =
    "Usage: forepack generate [--server HOST:PORT | --model DIR] (--prompt TEXT | --prompt-file FILE | -) [options]\n"
    "Sends one request and streams the text to standard output. If the router is lost after the first token, the\n"
    "answer goes on at the next address of --server; the command gives up after 30 s without a token.";

static void generate_print_text(void *user, const char *text, size_t size_bytes)
{
    fwrite(text, 1, size_bytes, stdout);
    fflush(stdout);
}

static int generate_finish(enum status status, const struct answer *answer, const char *id)
{
    if (status != STATUS_OK) return report_failure(status);
    if (o.json) {
        report_json(answer_json(answer, id));
    } else {
        putchar('\n');
        if (isatty(STDERR_FILENO)) answer_summary_print(answer->completion, stderr);
    }
    return 0;
}

static enum status generate_answer(generate_model_fn run_model, struct request_spec *spec, struct answer *answer,
                                   char **id_p)
{
    const text_fn on_text = o.json ? NULL : generate_print_text;
    spec->id = mem_string(o.id);
    if (o.model.model) {
        *id_p = mem_string(o.id);
        return run_model(&o.model, spec, on_text, NULL, answer);
    }
    rpc_init();
    enum status status = remote_generate(&o.remote, o.timeout_ms, spec, on_text, NULL, answer, id_p);
    rpc_shutdown();
    return status;
}

int generate_main(int argc, char **argv, generate_model_fn run_model)
{
    char **rest = mem_alloc_array((size_t)argc, sizeof *rest);
    int n_rest = options_main(options, usage, argc, argv, rest);
    if (o.model.model && !run_model) { // before reading the prompt, which may come from standard input
        int code = companion_exec("forepack-bench", argv);
        options_free(options);
        free(rest);
        return code;
    }
    struct request_spec spec;
    struct answer answer;
    char *id = NULL;
    answer_init(&answer);
    enum status status = request_spec_from_flags(options, &spec);
    if (status == STATUS_OK) status = request_read_prompt(o.prompt, o.prompt_file, rest, n_rest, &spec);
    if (status == STATUS_OK && o.model.model && options_given(options, "server")) {
        status = status_fail(STATUS_INVALID, "--server and --model: give only one of them");
    }
    if (status == STATUS_OK) status = generate_answer(run_model, &spec, &answer, &id);
    int code = generate_finish(status, &answer, id);
    free(id);
    answer_free(&answer);
    request_spec_free(&spec);
    options_free(options);
    free(rest);
    return code;
}
