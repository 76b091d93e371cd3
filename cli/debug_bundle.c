// SPDX-License-Identifier: Apache-2.0
// forepack debug bundle: one tar file with what a report of a fault needs. It has no prompt, no answer and no secret:
// the router keeps none of them in its settings, metrics, status and logs.
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "cli/debug.h"
#include "cli/remote.h"
#include "cli/status.h"
#include "cli/tar.h"
#include "lib/base/file_text.h"
#include "lib/base/mem.h"
#include "lib/base/version.h"

enum { LOG_BYTES_MAX = 64 << 20 }; // read from the end of each log

static struct {
    struct remote remote;
    char *output;
    int64_t log_lines;
    bool offline;
} o;

static const struct option options[] = {
    REMOTE_OPTION_ROWS(o.remote),
    {.name = "output",
     .type = OPTION_STRING,
     .value = &o.output,
     .default_text = "forepack-debug.tar",
     .placeholder = "FILE",
     .help = "file to write; it must not exist"},
    {.name = "log-lines",
     .type = OPTION_INT,
     .value = &o.log_lines,
     .default_text = "10000",
     .min = 1,
     .max = 1e7,
     .unit = "lines",
     .help = "last lines of each log file"},
    {.name = "offline",
     .type = OPTION_BOOL,
     .value = &o.offline,
     .help = "do not ask the router: only versions and logs, for a router that does not answer"},
    {0},
};

struct bundle {
    FILE *tar;
    int64_t time_s;
};

static void bundle_add(const struct bundle *bundle, const char *name, const char *text, size_t size)
{
    char *path = mem_format("forepack-debug/%s", name);
    tar_add(bundle->tar, path, text, size, bundle->time_s);
    free(path);
}

static void bundle_add_text(const struct bundle *bundle, const char *name, const char *text)
{
    bundle_add(bundle, name, text, strlen(text));
}

// Adds the object and releases it.
static void bundle_add_json(const struct bundle *bundle, const char *name, json_t *object)
{
    char *text = json_dumps(object, JSON_INDENT(1));
    bundle_add_text(bundle, name, text ? text : "");
    free(text);
    json_decref(object);
}

static void add_versions(const struct bundle *bundle, const char *router_version)
{
    struct utsname system;
    struct tm utc;
    time_t now = (time_t)bundle->time_s;
    char when[32];
    uname(&system);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    char *text = mem_format("written %s\nforepack %s\nrouter %s\nhost %s %s %s %s\n", when, FOREPACK_VERSION,
                            router_version, system.sysname, system.release, system.version, system.machine);
    bundle_add_text(bundle, "versions.txt", text);
    free(text);
}

static json_t *slow_request_json(const Forepack__V1__SlowRequest *m)
{
    char number[24];
    snprintf(number, sizeof number, "%016" PRIx64, m->number);
    return json_pack("{s:s,s:s,s:s,s:f,s:I,s:I,s:I,s:f,s:f,s:f,s:f,s:f,s:f}", "req", number, "client_id", m->request_id,
                     "finish", m->finish_reason, "ended_s_ago", m->ended_s_ago, "prompt_tokens",
                     (json_int_t)m->prompt_tokens, "kept_tokens", (json_int_t)m->kept_tokens, "completion_tokens",
                     (json_int_t)m->completion_tokens, "queue_ms", m->queue_ms, "score_ms", m->score_ms, "pack_wait_ms",
                     m->pack_wait_ms, "prefill_ms", m->prefill_ms, "ttft_ms", m->ttft_ms, "total_ms", m->total_ms);
}

static int by_time(const void *a, const void *b)
{
    double x = (*(Forepack__V1__SlowRequest *const *)a)->total_ms,
           y = (*(Forepack__V1__SlowRequest *const *)b)->total_ms;
    return (x < y) - (x > y);
}

static void add_diagnostics(const struct bundle *bundle, const Forepack__V1__Diagnostics *m)
{
    json_t *slow = json_array();
    if (m->n_slow_requests) qsort(m->slow_requests, m->n_slow_requests, sizeof *m->slow_requests, by_time);
    for (size_t i = 0; i < m->n_slow_requests; i++)
        json_array_append_new(slow, slow_request_json(m->slow_requests[i]));
    add_versions(bundle, m->version);
    bundle_add_text(bundle, "settings.conf", m->settings);
    bundle_add_json(bundle, "slow-requests.json", slow);
    bundle_add_text(bundle, "metrics.txt", m->metrics);
}

static enum status add_router(const struct bundle *bundle)
{
    Forepack__V1__GetDiagnosticsRequest diagnostics = FOREPACK__V1__GET_DIAGNOSTICS_REQUEST__INIT;
    Forepack__V1__GetClusterInfoRequest info = FOREPACK__V1__GET_CLUSTER_INFO_REQUEST__INIT;
    ProtobufCMessage *answer;
    TRY(remote_call(&o.remote, "/forepack.v1.Inference/GetDiagnostics", &diagnostics.base,
                    &forepack__v1__diagnostics__descriptor, &answer));
    add_diagnostics(bundle, (const void *)answer);
    protobuf_c_message_free_unpacked(answer, NULL);
    TRY(remote_call(&o.remote, "/forepack.v1.Inference/GetClusterInfo", &info.base,
                    &forepack__v1__cluster_info__descriptor, &answer));
    json_t *object;
    enum status status = status_json((const void *)answer, o.remote.server, &object);
    if (status == STATUS_OK) bundle_add_json(bundle, "status.json", object);
    protobuf_c_message_free_unpacked(answer, NULL);
    return status;
}

// --- logs

// Reads at most LOG_BYTES_MAX from the end of the file. The caller frees *text_p.
static enum status tail_read(const char *path, char **text_p, size_t *size_p)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return status_fail(file_open_status(errno), "%s: %s", path, strerror(errno));
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(fd);
        return status_fail(STATUS_DATA, "%s: not a regular file", path);
    }
    off_t from = info.st_size > LOG_BYTES_MAX ? info.st_size - LOG_BYTES_MAX : 0;
    size_t size = (size_t)(info.st_size - from), n = 0;
    char *text = mem_alloc(size + 1);
    for (ssize_t got; n < size && (got = pread(fd, text + n, size - n, from + (off_t)n)) > 0;)
        n += (size_t)got;
    close(fd);
    *text_p = text;
    *size_p = n;
    return STATUS_OK;
}

// Returns the start of the last `n_lines` lines.
static const char *last_lines(const char *text, size_t size, int64_t n_lines)
{
    const char *at = text + size;
    if (at > text && at[-1] == '\n') at--;
    for (; at > text; at--)
        if (at[-1] == '\n' && --n_lines == 0) break;
    return at;
}

static enum status add_log(const struct bundle *bundle, const char *path, int number)
{
    char *text = NULL;
    size_t size = 0;
    TRY(tail_read(path, &text, &size));
    const char *base = strrchr(path, '/'), *from = last_lines(text, size, o.log_lines);
    char *name = mem_format("logs/%d-%.60s", number, base ? base + 1 : path); // two logs may have one name
    bundle_add(bundle, name, from, size - (size_t)(from - text));
    free(name);
    free(text);
    return STATUS_OK;
}

// --- the file

static enum status bundle_fill(const struct bundle *bundle, char **logs, int n_logs)
{
    if (o.offline)
        add_versions(bundle, "not asked");
    else
        TRY(add_router(bundle));
    for (int i = 0; i < n_logs; i++)
        TRY(add_log(bundle, logs[i], i + 1));
    tar_end(bundle->tar);
    return STATUS_OK;
}

static enum status bundle_write(char **logs, int n_logs)
{
    int fd = open(o.output, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return status_fail(STATUS_INVALID, "--output %s: %s", o.output, strerror(errno));
    struct bundle bundle = {fdopen(fd, "w"), (int64_t)time(NULL)};
    enum status status = bundle_fill(&bundle, logs, n_logs);
    bool failed = ferror(bundle.tar) != 0;
    if (fclose(bundle.tar) != 0) failed = true;
    if (status == STATUS_OK && failed)
        status = status_fail(STATUS_INTERNAL, "--output %s: it cannot be written", o.output);
    if (status == STATUS_OK)
        printf("%s\n", o.output);
    else
        unlink(o.output);
    return status;
}

int debug_bundle(int argc, char **argv)
{
    char **logs = mem_alloc_array((size_t)argc, sizeof *logs);
    int n_logs = options_main(options,
                              "Usage: forepack debug bundle [--server HOST:PORT] [--output FILE] [LOG...]\n"
                              "Writes one tar file for a report of a fault: versions, the router's settings, status,\n"
                              "metrics and slowest requests of the last 15 minutes, and the last lines of each LOG.\n"
                              "It has no prompts, answers, keys or tokens. With --api-keys it needs an operator's key.",
                              argc, argv, logs);
    rpc_init();
    enum status status = bundle_write(logs, n_logs);
    int code = status == STATUS_OK ? 0 : report_failure(status);
    rpc_shutdown();
    free(logs);
    options_free(options);
    return code;
}
