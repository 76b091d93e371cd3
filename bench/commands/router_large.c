// SPDX-License-Identifier: Apache-2.0
// Measures the gaps between the messages of a stream while large requests arrive. A thread reads the stream.
#include "bench/commands/router_large.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/commands/bench.h"
#include "bench/memory.h"
#include "bench/quantiles.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/thread.h"
#include "lib/net/rpc.h"
#include "proto/forepack/v1/inference.pb-c.h"

#define GENERATE "/forepack.v1.Inference/Generate"

// Numbers of messages of the stream: the first SETTLED messages are not counted, and the load starts after ALONE
// messages.
enum { STREAM_TOKENS = 3000, SETTLED = 20, ALONE = 320, CHANNELS = 4 };

struct stream {
    struct rpc_stream *call;
    pthread_t thread;
    atomic_int messages;
    atomic_bool loaded, ended;
    struct samples alone_ms, gap_ms; // gaps before and during the load; owned by the thread until `ended`
};

static struct rpc_bytes request_pack(char *text, uint32_t tokens)
{
    Forepack__V1__SamplingOptions sampling = FOREPACK__V1__SAMPLING_OPTIONS__INIT;
    Forepack__V1__Message turn = FOREPACK__V1__MESSAGE__INIT, *turns[] = {&turn};
    Forepack__V1__GenerateRequest request = FOREPACK__V1__GENERATE_REQUEST__INIT;
    sampling.max_tokens_given_case = FOREPACK__V1__SAMPLING_OPTIONS__MAX_TOKENS_GIVEN_MAX_TOKENS;
    sampling.max_tokens = tokens;
    sampling.ignore_eos = true;
    turn.role = "user";
    turn.content = (ProtobufCBinaryData){strlen(text), (uint8_t *)text};
    request.sampling = &sampling;
    request.messages = turns;
    request.n_messages = 1;
    struct rpc_bytes bytes = {.size = forepack__v1__generate_request__get_packed_size(&request)};
    bytes.data = mem_alloc(bytes.size);
    forepack__v1__generate_request__pack(&request, bytes.data);
    return bytes;
}

// Sends a request. `request` is empty afterwards.
static enum status request_send(struct rpc_channel *channel, struct rpc_bytes *request, struct rpc_stream **stream_p)
{
    TRY(rpc_stream_open(channel, GENERATE, 0, false, stream_p));
    rpc_stream_give(*stream_p, request);
    rpc_stream_half_close(*stream_p);
    return STATUS_OK;
}

static void *stream_read(void *argument)
{
    struct stream *s = argument;
    struct rpc_bytes bytes;
    int64_t before_us = 0;
    while (rpc_stream_read(s->call, &bytes) == STATUS_OK && bytes.data) {
        int64_t now_us = clock_now_us();
        rpc_bytes_free(&bytes);
        if (atomic_fetch_add(&s->messages, 1) >= SETTLED)
            samples_add(atomic_load(&s->loaded) ? &s->gap_ms : &s->alone_ms, (double)(now_us - before_us) / 1e3);
        before_us = now_us;
    }
    atomic_store(&s->ended, true);
    return NULL;
}

// --- the process of the sender

// Sends one large message and waits for its refusal. Returns the milliseconds from the moment at which the library has
// the message, or -1.
static double large_send(const struct router_process *router, const struct rpc_bytes *request)
{
    struct rpc_channel *channel;
    struct rpc_stream *call;
    struct rpc_bytes bytes = {0}, message = {mem_copy(request->data, request->size), request->size};
    if (router_process_channel(router, &channel) != STATUS_OK) return -1;
    int64_t start_us = clock_now_us();
    double ms = -1;
    if (request_send(channel, &message, &call) == STATUS_OK) {
        if (rpc_stream_read(call, &bytes) == STATUS_OUT_OF_RANGE) ms = (double)(clock_now_us() - start_us) / 1e3;
        rpc_bytes_free(&bytes);
        rpc_stream_close(call);
    }
    rpc_bytes_free(&message);
    rpc_channel_close(channel);
    return ms;
}

static void result_write(int results, double ms)
{
    if (write(results, &ms, sizeof ms) != sizeof ms) _exit(1);
}

static void larges_send(const struct router_large *large, const struct router_process *router, int results)
{
    size_t size = (size_t)large->mb << 20;
    char *text = mem_alloc(size + 1);
    memset(text, 'a', size);
    struct rpc_bytes request = request_pack(text, 1);
    for (int i = 0; i < large->calls; i++)
        result_write(results, large_send(router, &request));
}

// Sends all prompts without waiting for answers. Writes to `results` the milliseconds until the end of each answer, or
// -1.
static void prompts_send(const struct router_large *large, const struct router_process *router, int results)
{
    struct rpc_channel *channels[CHANNELS];
    struct rpc_stream **calls = mem_alloc_array((size_t)large->calls, sizeof *calls);
    for (int i = 0; i < CHANNELS; i++)
        if (router_process_channel(router, &channels[i]) != STATUS_OK) _exit(1);
    struct rpc_bytes prompt = large->prompt(channels[0]), bytes;
    int64_t start_us = clock_now_us();
    for (int i = 0; i < large->calls; i++) {
        struct rpc_bytes copy = {mem_copy(prompt.data, prompt.size), prompt.size};
        if (request_send(channels[i % CHANNELS], &copy, &calls[i]) != STATUS_OK) _exit(1);
    }
    for (int i = 0; i < large->calls; i++) {
        enum status status;
        while ((status = rpc_stream_read(calls[i], &bytes)) == STATUS_OK && bytes.data)
            rpc_bytes_free(&bytes);
        result_write(results, status == STATUS_OK ? (double)(clock_now_us() - start_us) / 1e3 : -1);
    }
}

static _Noreturn void sender_run(const struct router_large *large, const struct router_process *router, int go,
                                 int results)
{
    char byte;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (read(go, &byte, 1) != 1) _exit(1);
    rpc_init();
    if (large->mb)
        larges_send(large, router, results);
    else
        prompts_send(large, router, results);
    _exit(0);
}

enum status large_sender_start(const struct router_large *large, const struct router_process *router,
                               struct large_sender *sender)
{
    int go[2], results[2];
    if (pipe2(go, O_CLOEXEC) || pipe2(results, O_CLOEXEC)) return status_fail(STATUS_INTERNAL, "no pipe is left");
    *sender = (struct large_sender){fork(), go[1], results[0]};
    if (sender->pid == 0) sender_run(large, router, go[0], results[1]);
    close(go[0]);
    close(results[1]);
    return sender->pid > 0 ? STATUS_OK : status_fail(STATUS_INTERNAL, "cannot start the process of the sender");
}

void large_sender_stop(struct large_sender *sender)
{
    if (sender->pid <= 0) return;
    kill(sender->pid, SIGKILL);
    waitpid(sender->pid, NULL, 0);
    close(sender->go);
    close(sender->results);
}

// --- this process

static void print_row(const struct router_large *large, const json_t *row)
{
    if (large->mb)
        printf("%.0f messages of %.0f MiB: refused", bench_row_number(row, "calls"), bench_row_number(row, "mib"));
    else
        printf("%.0f prompts at once: answered", bench_row_number(row, "calls"));
    printf(" in ms p50 %.1f max %.1f   router's peak memory %+.0f MB\n"
           "stream's gap in ms alone p50 %.1f p99 %.1f max %.1f, meanwhile p50 %.1f p99 %.1f max %.1f\n",
           bench_row_number(row, "ended_p50_ms"), bench_row_number(row, "ended_max_ms"),
           bench_row_number(row, "growth_mb"), bench_row_number(row, "alone_p50_ms"),
           bench_row_number(row, "alone_p99_ms"), bench_row_number(row, "alone_max_ms"),
           bench_row_number(row, "gap_p50_ms"), bench_row_number(row, "gap_p99_ms"),
           bench_row_number(row, "gap_max_ms"));
}

static enum status calls_await(const struct router_large *large, const struct large_sender *sender, struct samples *ms)
{
    double one;
    if (write(sender->go, "", 1) != 1) return status_fail(STATUS_INTERNAL, "the process of the sender has ended");
    for (int i = 0; i < large->calls; i++) {
        if (read(sender->results, &one, sizeof one) != sizeof one || one < 0)
            return status_fail(STATUS_INTERNAL,
                               "a message far over the context was not refused, or a prompt not answered: see --log");
        samples_add(ms, one);
    }
    return STATUS_OK;
}

static enum status stream_start(struct stream *s, struct rpc_channel *channel)
{
    static char text[] = "Hello";
    struct rpc_bytes request = request_pack(text, STREAM_TOKENS);
    enum status status = request_send(channel, &request, &s->call);
    rpc_bytes_free(&request);
    if (status == STATUS_OK) thread_start(&s->thread, "stream", stream_read, s);
    return status;
}

enum status router_large_measure(const struct router_large *large, const struct router_process *router,
                                 const struct large_sender *sender, json_t *rows)
{
    struct stream stream = {0};
    struct samples ms = {0};
    struct rpc_channel *channel;
    TRY(router_process_channel(router, &channel));
    enum status status = stream_start(&stream, channel);
    if (status == STATUS_OK) {
        while (atomic_load(&stream.messages) <= ALONE && !atomic_load(&stream.ended))
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        double before_mb = memory_peak_mb(router->pid);
        atomic_store(&stream.loaded, true);
        status = calls_await(large, sender, &ms);
        if (atomic_load(&stream.ended)) status = status_fail(STATUS_INTERNAL, "the stream has ended: see --log");
        double growth_mb = memory_peak_mb(router->pid) - before_mb;
        rpc_stream_cancel(stream.call);
        pthread_join(stream.thread, NULL);
        rpc_stream_close(stream.call);
        struct quantiles ended = samples_quantiles(&ms), gap = samples_quantiles(&stream.gap_ms),
                         alone = samples_quantiles(&stream.alone_ms);
        // The prompts may end between two tokens of the stream.
        json_t *row =
            json_pack("{s:i,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:o,s:o,s:o}", "calls", large->calls, "mib", (double)large->mb,
                      "ended_p50_ms", ended.p50, "ended_max_ms", ended.max, "growth_mb", growth_mb, "alone_p50_ms",
                      alone.p50, "alone_p99_ms", alone.p99, "alone_max_ms", alone.max, "gap_p50_ms",
                      bench_number(gap.p50), "gap_p99_ms", bench_number(gap.p99), "gap_max_ms", bench_number(gap.max));
        json_array_append_new(rows, row);
        if (!large->json && status == STATUS_OK) print_row(large, row);
    }
    samples_free(&ms);
    samples_free(&stream.gap_ms);
    samples_free(&stream.alone_ms);
    rpc_channel_close(channel);
    return status;
}
