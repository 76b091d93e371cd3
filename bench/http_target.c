// SPDX-License-Identifier: Apache-2.0
#include "bench/http_target.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/certificate.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/http/http.h"

enum { CHUNK_FRAME_BYTES = 16, EVENT_FRAME_BYTES = 31, TICK_NS = 1000000 };

struct shared {      // shared by both processes
    atomic_int port; // -1: the server did not open
    atomic_int streams;
    atomic_bool sending;
    atomic_bool idle; // no event is being sent
    atomic_llong sent, producer_cpu_ns;
};

struct http_target {
    pid_t pid;
    struct shared *shared;
    struct http_target_options o;
    clockid_t cpu_clock;
};

// --- the server's process

static struct {
    struct shared *shared;
    struct http_target_options o;
    _Atomic(struct http_exchange *) *stream; // [o.streams]
} child;

static void answer_echo(struct http_exchange *x)
{
    size_t size;
    const char *body = http_body(x, &size);
    http_respond(x, 200, "application/json", body, size);
}

static void open_events(struct http_exchange *x)
{
    int i = atomic_fetch_add(&child.shared->streams, 1);
    http_stream_begin(x, 200, "text/event-stream");
    if (i >= child.o.streams) return;
    http_ref(x);
    atomic_store(&child.stream[i], x);
}

static const struct http_route routes[] = {{.method = "POST", .path = "/echo", .on_request = answer_echo},
                                           {.method = "GET", .path = "/events", .on_request = open_events},
                                           {0}};

static enum status open_server(struct http_server **server_p)
{
    struct http_server_options o = {
        .routes = routes, .threads = child.o.threads, .max_connections = child.o.streams + 10000};
    if (!child.o.tls) return http_server_open(&o, server_p);
    struct certificate_files files;
    TRY(certificate_files_create(&files));
    o.tls = &(struct http_tls_files){.cert = files.cert, .key = files.key};
    o.tls_check_ms = INT32_MAX; // never checks the files: they are removed right after the start
    enum status status = http_server_open(&o, server_p);
    certificate_files_remove(&files);
    return status;
}

static void send_event(int64_t number)
{
    static const char frame[] = "data: {\"at=%016llx%*s\"}\n\n";
    char event[4096 + 1];
    int padding = child.o.event_bytes - EVENT_FRAME_BYTES;
    snprintf(event, sizeof event, frame, (unsigned long long)clock_now_us(), padding, "");
    struct http_exchange *x = atomic_load(&child.stream[number % child.o.streams]);
    if (x) http_stream_send(x, event, (size_t)child.o.event_bytes);
}

static int64_t thread_cpu_ns(void)
{
    struct timespec cpu;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    return 1000000000LL * cpu.tv_sec + cpu.tv_nsec;
}

static void send_events(void)
{
    int64_t start_us = clock_now_us(), n = 0, start_ns = thread_cpu_ns();
    while (atomic_load(&child.shared->sending)) {
        double rate = child.o.events_per_s * child.o.streams;
        int64_t due = (int64_t)((double)(clock_now_us() - start_us) / 1e6 * rate);
        for (; n < due; n++)
            send_event(n);
        nanosleep(&(struct timespec){.tv_nsec = (long)(child.o.tick_ms * 1e6)}, NULL);
        atomic_store(&child.shared->producer_cpu_ns, thread_cpu_ns() - start_ns);
    }
    atomic_fetch_add(&child.shared->sent, n);
}

static _Noreturn void run_child(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct http_server *server;
    child.stream = mem_alloc_array((size_t)child.o.streams, sizeof *child.stream);
    bool opened = open_server(&server) == STATUS_OK;
    if (!opened) fprintf(stderr, "%s\n", status_message());
    atomic_store(&child.shared->port, opened ? http_server_port(server) : -1);
    for (;;) {
        atomic_store(&child.shared->idle, true);
        nanosleep(&(struct timespec){.tv_nsec = TICK_NS}, NULL);
        if (!atomic_load(&child.shared->sending)) continue;
        atomic_store(&child.shared->idle, false);
        send_events();
    }
}

// --- the client's process

enum status http_target_open(const struct http_target_options *options, struct http_target **target_p)
{
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return status_fail(STATUS_INTERNAL, "cannot map memory for the server's process");
    child.shared = shared;
    child.o = *options;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) run_child();
    struct http_target *target = mem_alloc(sizeof *target);
    *target = (struct http_target){.pid = pid, .shared = shared, .o = *options};
    while (pid > 0 && atomic_load(&shared->port) == 0 && waitpid(pid, NULL, WNOHANG) == 0)
        nanosleep(&(struct timespec){.tv_nsec = TICK_NS}, NULL);
    if (atomic_load(&shared->port) > 0 && clock_getcpuclockid(pid, &target->cpu_clock) == 0) {
        *target_p = target;
        return STATUS_OK;
    }
    http_target_close(target);
    return status_fail(STATUS_INTERNAL, "the server of the benchmark did not start");
}

void http_target_close(struct http_target *target)
{
    if (!target) return;
    if (target->pid > 0) {
        kill(target->pid, SIGKILL);
        waitpid(target->pid, NULL, 0);
    }
    munmap(target->shared, sizeof *target->shared);
    free(target);
}

int http_target_port(const struct http_target *target)
{
    return atomic_load(&target->shared->port);
}

void http_target_start_events(struct http_target *target)
{
    atomic_store(&target->shared->sent, 0);
    atomic_store(&target->shared->sending, true);
    while (atomic_load(&target->shared->idle))
        nanosleep(&(struct timespec){.tv_nsec = TICK_NS}, NULL);
}

int64_t http_target_stop_events(struct http_target *target)
{
    atomic_store(&target->shared->sending, false);
    while (!atomic_load(&target->shared->idle))
        nanosleep(&(struct timespec){.tv_nsec = TICK_NS}, NULL);
    return atomic_load(&target->shared->sent);
}

int http_target_chunk_bytes(const struct http_target *target)
{
    char frame[CHUNK_FRAME_BYTES];
    return snprintf(frame, sizeof frame, "%x\r\n\r\n", (unsigned)target->o.event_bytes) + target->o.event_bytes;
}

double http_target_sender_cpu_s(const struct http_target *target)
{
    return (double)atomic_load(&target->shared->producer_cpu_ns) / 1e9;
}

double http_target_cpu_s(const struct http_target *target)
{
    struct timespec cpu;
    clock_gettime(target->cpu_clock, &cpu);
    return (double)cpu.tv_sec + (double)cpu.tv_nsec / 1e9 - http_target_sender_cpu_s(target);
}

double http_target_rss_kb(const struct http_target *target)
{
    char *path = mem_format("/proc/%d/statm", (int)target->pid);
    FILE *file = fopen(path, "r");
    long pages = 0;
    if (file && fscanf(file, "%*d %ld", &pages) != 1) pages = 0;
    if (file) fclose(file);
    free(path);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / 1024;
}
