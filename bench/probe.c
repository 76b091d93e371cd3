// SPDX-License-Identifier: Apache-2.0
// The child process waits on a socket for a number type, runs both parts of a reading and sends the rates back. It
// exits when the socket closes, so it never outlives its parent.
#include "bench/probe.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/probe_loops.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"

// Bytes that all threads stream together, always in the same direction, so that no byte is still cached when it is read
// again. Twice the last-level cache, within these limits. A virtual machine sees the cache of its whole host, of which
// it has a share; on a host with 480 MiB, 512 MiB stream as slowly as 3 GiB.
#define STREAM_MIN_BYTES ((size_t)256 << 20)
#define STREAM_MAX_BYTES ((size_t)512 << 20)
#define CHUNK_BYTES      ((size_t)1 << 20) // read between two readings of the clock

struct probe {
    int fd;
    pid_t child;
    struct model *model; // measures its device instead of a child; otherwise NULL
    int devices, duration_ms;
};

struct probe_rates {
    double gflops, gbytes_per_s[2]; // memory bandwidth without and with software prefetch
};

// ---- in the child ---------------------------------------------------------------------------------------------------

struct probe_team {
    int threads, duration_ms;
    const struct probe_loop *loop;
    probe_stream_fn stream;
    char *memory; // [threads][thread_bytes]
    size_t thread_bytes;
    bool touched;
    pthread_barrier_t start;
};

struct probe_member {
    struct probe_team *team;
    int index;
    pthread_t thread;
    struct probe_rates rates; // of this thread
    uint64_t result;          // result of the loops, so that the compiler keeps them
};

// Waits for all threads, runs for the team's duration and returns operations per second.
static double member_measure_arithmetic(struct probe_member *me)
{
    const struct probe_team *team = me->team;
    enum { TURNS = 20000 }; // well under a millisecond
    pthread_barrier_wait(&me->team->start);
    me->result ^= (uint64_t)team->loop->run(TURNS); // powers up the wide vector units
    int64_t from = clock_now_us(), now;
    int64_t turns = 0;
    do {
        me->result ^= (uint64_t)team->loop->run(TURNS);
        turns += TURNS;
        now = clock_now_us();
    } while (now - from < team->duration_ms * (int64_t)1000);
    return (double)turns * team->loop->operations / (double)(now - from) * 1e6;
}

// Runs for half of the team's duration and returns bytes per second.
static double member_measure_memory(struct probe_member *me, bool prefetch)
{
    const struct probe_team *team = me->team;
    char *mine = team->memory + (size_t)me->index * team->thread_bytes;
    if (!team->touched && !prefetch) // written by the thread that reads it, for NUMA placement
        memset(mine, me->index + 1, team->thread_bytes);
    pthread_barrier_wait(&me->team->start);
    size_t at = 0, bytes = 0;
    int64_t from = clock_now_us(), now;
    do {
        me->result ^= team->stream(mine + at, CHUNK_BYTES, prefetch);
        bytes += CHUNK_BYTES;
        at = at + CHUNK_BYTES < team->thread_bytes ? at + CHUNK_BYTES : 0;
        now = clock_now_us();
    } while (now - from < team->duration_ms * (int64_t)500);
    return (double)bytes / (double)(now - from) * 1e6;
}

static void *member_run(void *argument)
{
    struct probe_member *me = argument;
    me->rates.gflops = member_measure_arithmetic(me) / 1e9;
    for (int prefetch = 0; prefetch < 2; prefetch++)
        me->rates.gbytes_per_s[prefetch] = member_measure_memory(me, prefetch) / 1e9;
    return NULL;
}

static volatile uint64_t result_sink;

static struct probe_rates team_measure(struct probe_team *team, enum probe_type type)
{
    team->loop = probe_loop_best(type);
    struct probe_member *members = mem_alloc_array((size_t)team->threads, sizeof *members);
    for (int i = 0; i < team->threads; i++) {
        members[i] = (struct probe_member){.team = team, .index = i};
        // If a thread were missing, the others would hang at the barrier.
        if (pthread_create(&members[i].thread, NULL, member_run, &members[i]) != 0) _exit(1);
    }
    struct probe_rates sum = {0};
    for (int i = 0; i < team->threads; i++) {
        pthread_join(members[i].thread, NULL);
        sum.gflops += members[i].rates.gflops;
        for (int prefetch = 0; prefetch < 2; prefetch++)
            sum.gbytes_per_s[prefetch] += members[i].rates.gbytes_per_s[prefetch];
        result_sink = members[i].result;
    }
    team->touched = true;
    free(members);
    return sum;
}

static size_t stream_bytes(void)
{
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE); // 0 or -1: unknown
    size_t bytes = cache > 0 ? 2 * (size_t)cache : 0;
    return bytes < STREAM_MIN_BYTES ? STREAM_MIN_BYTES : bytes < STREAM_MAX_BYTES ? bytes : STREAM_MAX_BYTES;
}

static _Noreturn void child_run(int fd, int threads, int duration_ms)
{
    struct probe_team team = {.threads = threads, .duration_ms = duration_ms, .stream = probe_stream_best()};
    team.thread_bytes = (stream_bytes() / (size_t)threads / CHUNK_BYTES + 1) * CHUNK_BYTES;
    pthread_barrier_init(&team.start, NULL, (unsigned)threads);
    team.memory =
        mmap(NULL, team.thread_bytes * (size_t)threads, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (team.memory == MAP_FAILED) _exit(1);
    madvise(team.memory, team.thread_bytes * (size_t)threads, MADV_HUGEPAGE);
    int32_t type;
    while (recv(fd, &type, sizeof type, MSG_WAITALL) == (ssize_t)sizeof type) {
        struct probe_rates rates = team_measure(&team, (enum probe_type)type);
        if (send(fd, &rates, sizeof rates, MSG_NOSIGNAL) != (ssize_t)sizeof rates) break;
    }
    _exit(0);
}

// ---- in the parent --------------------------------------------------------------------------------------------------

enum status probe_open(int threads, int duration_ms, struct probe **probe_p)
{
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
        return status_fail(STATUS_INTERNAL, "socketpair: %s", strerror(errno));
    pid_t child = fork();
    if (child == 0) {
        close(fds[0]);
        child_run(fds[1], threads, duration_ms);
    }
    int error = errno;
    close(fds[1]);
    if (child < 0) {
        close(fds[0]);
        return status_fail(STATUS_INTERNAL, "fork: %s", strerror(error));
    }
    struct probe *p = mem_alloc(sizeof *p);
    *p = (struct probe){.fd = fds[0], .child = child};
    *probe_p = p;
    return STATUS_OK;
}

struct probe *probe_open_device(struct model *m, int devices, int duration_ms)
{
    if (!model_measures(m)) return NULL;
    struct probe *p = mem_alloc(sizeof *p);
    *p = (struct probe){.model = m, .devices = devices, .duration_ms = duration_ms};
    return p;
}

static enum status probe_read_device(const struct probe *p, struct probe_reading *reading_p)
{
    struct probe_reading one = {.instruction = "cuBLASLt bf16"};
    enum status status = model_measure(p->model, p->duration_ms, &one.gflops, &one.gbytes_per_s);
    if (status != STATUS_OK) return status;
    one.gflops *= p->devices;
    one.gbytes_per_s *= p->devices;
    *reading_p = one;
    return STATUS_OK;
}

void probe_close(struct probe *p)
{
    if (!p) return;
    if (!p->model) {
        close(p->fd);
        waitpid(p->child, NULL, 0);
    }
    free(p);
}

enum status probe_read(struct probe *p, enum probe_type type, struct probe_reading *reading_p)
{
    if (p->model) return probe_read_device(p, reading_p);
    int32_t wanted = (int32_t)type;
    struct probe_rates rates;
    if (send(p->fd, &wanted, sizeof wanted, MSG_NOSIGNAL) != (ssize_t)sizeof wanted ||
        recv(p->fd, &rates, sizeof rates, MSG_WAITALL) != (ssize_t)sizeof rates)
        return status_fail(STATUS_INTERNAL, "the machine probe exited: is there too little memory or a thread limit?");
    const double *memory = rates.gbytes_per_s;
    *reading_p = (struct probe_reading){rates.gflops, memory[0] > memory[1] ? memory[0] : memory[1],
                                        probe_loop_best(type)->instruction};
    return STATUS_OK;
}
