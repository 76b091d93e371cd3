// SPDX-License-Identifier: Apache-2.0
// forepack generate: one request, to a cluster (--server) or run in this process (--model DIR).
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "bench/commands/local.h"
#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/remote.h"
#include "cli/request.h"

static struct {
    char *server, *prompt, *prompt_file, *id;
    bool json;
    int64_t timeout_ms;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "-Where"},
    {.name = "server", .type = OPTION_STRING, .value = &o.server, .default_text = SERVER_DEFAULT,
     .help = "host:port of the router"},
    {.name = "timeout-ms", .type = OPTION_INT, .value = &o.timeout_ms, .default_text = "0", .max = 86400000, .unit = "ms",
     .help = "give up after this long; 0 is never"},
    LOCAL_OPTION_ROWS,
    {.name = "-Prompt and output"},
    {.name = "prompt", .type = OPTION_STRING, .value = &o.prompt, .help = "the prompt itself"},
    {.name = "prompt-file", .type = OPTION_STRING, .value = &o.prompt_file, .help = "file that holds the prompt"},
    {.name = "id", .type = OPTION_STRING, .value = &o.id, .help = "request id; default made by the server"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print one JSON object at the end"},
    REQUEST_OPTION_ROWS,
    {0},
};
// clang-format on

static const char usage[] =
    "Usage: forepack generate [--server H:P | --model DIR] (--prompt TEXT | --prompt-file F | -) [options]\n"
    "One request, its text streamed to standard output as it comes.";

static void print_text(void *user, const char *text, size_t size_bytes)
{
    fwrite(text, 1, size_bytes, stdout);
    fflush(stdout);
}

static int finish(enum status status, const struct answer *answer, const char *id)
{
    if (status != STATUS_OK) return report_failure(status);
    if (o.json) {
        json_t *object = answer_json(answer, id);
        json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
        putchar('\n');
        json_decref(object);
    } else {
        putchar('\n');
        if (isatty(STDERR_FILENO)) answer_print_summary(answer);
    }
    return 0;
}

int command_generate(int argc, char **argv)
{
    char **rest = mem_alloc_array((size_t)argc, sizeof *rest);
    int n_rest = options_main(options, usage, argc, argv, rest);
    struct request_spec spec;
    struct answer answer;
    char *id = NULL;
    answer_init(&answer);
    enum status status = request_spec_from_flags(options, &spec);
    if (status == STATUS_OK) status = request_read_prompt(o.prompt, o.prompt_file, rest, n_rest, &spec);
    if (status == STATUS_OK && local_flags.model && options_given(options, "server")) {
        status = status_fail(STATUS_INVALID, "--server and --model: give one of them");
    }
    if (status == STATUS_OK) {
        spec.id = mem_string(o.id);
        if (local_flags.model) {
            status = local_generate(&spec, o.json ? NULL : print_text, NULL, &answer);
            id = mem_string(o.id);
        } else {
            rpc_init();
            status = remote_generate(o.server, o.timeout_ms, &spec, o.json ? NULL : print_text, NULL, &answer, &id);
            rpc_shutdown();
        }
    }
    int code = finish(status, &answer, id);
    free(id);
    answer_free(&answer);
    request_spec_free(&spec);
    options_free(options);
    free(rest);
    return code;
}
