// SPDX-License-Identifier: Apache-2.0
// See probe.h. The child waits for a type on a socket, runs both halves and answers with the numbers. It ends when
// the socket does, so it never outlives its parent.
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

#include "base/clock.h"
#include "base/mem.h"
#include "bench/probe_loops.h"

// What all threads stream together; a multiple of any last-level cache that a share of cores would come with, and
// read in one direction, so that nothing of it is still cached on the next turn.
#define STREAM_BYTES ((size_t)256 << 20)
#define CHUNK_BYTES  ((size_t)1 << 20) // read between two looks at the clock

struct probe {
    int fd;
    pid_t child;
    struct model *model; // of a device, instead of a child
    int devices, duration_ms;
};

struct answer {
    double gflops, gbytes_per_s;
};

// ---- in the child ---------------------------------------------------------------------------------------------------

struct team {
    int threads, duration_ms;
    const struct probe_loop *loop;
    probe_stream_fn stream;
    char *memory; // [threads][share_bytes]
    size_t share_bytes;
    bool touched;
    pthread_barrier_t start;
};

struct member {
    struct team *team;
    int index;
    pthread_t thread;
    struct answer rate; // of this thread
    uint64_t used;      // what the loops computed
};

// Waits for all, runs for the time given, and returns operations a second.
static double arithmetic(struct member *me)
{
    const struct team *team = me->team;
    enum { TURNS = 20000 }; // well under a millisecond
    pthread_barrier_wait(&me->team->start);
    me->used ^= (uint64_t)team->loop->run(TURNS); // wakes the wide units, and what a thread was moved to
    int64_t from = clock_now_us(), now;
    int64_t turns = 0;
    do {
        me->used ^= (uint64_t)team->loop->run(TURNS);
        turns += TURNS;
        now = clock_now_us();
    } while (now - from < team->duration_ms * (int64_t)1000);
    return (double)turns * team->loop->operations / (double)(now - from) * 1e6;
}

// The same for bytes a second.
static double memory(struct member *me)
{
    const struct team *team = me->team;
    char *mine = team->memory + (size_t)me->index * team->share_bytes;
    if (!team->touched) memset(mine, me->index + 1, team->share_bytes); // by the thread that reads: NUMA
    pthread_barrier_wait(&me->team->start);
    size_t at = 0, bytes = 0;
    int64_t from = clock_now_us(), now;
    do {
        me->used ^= team->stream(mine + at, CHUNK_BYTES);
        bytes += CHUNK_BYTES;
        at = at + CHUNK_BYTES < team->share_bytes ? at + CHUNK_BYTES : 0;
        now = clock_now_us();
    } while (now - from < team->duration_ms * (int64_t)1000);
    return (double)bytes / (double)(now - from) * 1e6;
}

static void *member_run(void *argument)
{
    struct member *me = argument;
    me->rate.gflops = arithmetic(me) / 1e9;
    me->rate.gbytes_per_s = memory(me) / 1e9;
    return NULL;
}

static volatile uint64_t sink; // where results go that only prove work was done

static struct answer take_reading(struct team *team, enum probe_type type)
{
    team->loop = probe_loop_best(type);
    struct member *members = mem_alloc_array((size_t)team->threads, sizeof *members);
    for (int i = 0; i < team->threads; i++) {
        members[i] = (struct member){.team = team, .index = i};
        // Without one of its threads a reading would be of something else, and hang at the barrier.
        if (pthread_create(&members[i].thread, NULL, member_run, &members[i]) != 0) _exit(1);
    }
    struct answer sum = {0};
    for (int i = 0; i < team->threads; i++) {
        pthread_join(members[i].thread, NULL);
        sum.gflops += members[i].rate.gflops;
        sum.gbytes_per_s += members[i].rate.gbytes_per_s;
        sink = members[i].used;
    }
    team->touched = true;
    free(members);
    return sum;
}

static _Noreturn void child_run(int fd, int threads, int duration_ms)
{
    struct team team = {.threads = threads, .duration_ms = duration_ms, .stream = probe_stream_best()};
    team.share_bytes = (STREAM_BYTES / (size_t)threads / CHUNK_BYTES + 1) * CHUNK_BYTES;
    pthread_barrier_init(&team.start, NULL, (unsigned)threads);
    team.memory =
        mmap(NULL, team.share_bytes * (size_t)threads, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (team.memory == MAP_FAILED) _exit(1);
    madvise(team.memory, team.share_bytes * (size_t)threads, MADV_HUGEPAGE);
    int32_t type;
    while (recv(fd, &type, sizeof type, MSG_WAITALL) == (ssize_t)sizeof type) {
        struct answer answer = take_reading(&team, (enum probe_type)type);
        if (send(fd, &answer, sizeof answer, MSG_NOSIGNAL) != (ssize_t)sizeof answer) break;
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

static enum status read_device(const struct probe *p, struct probe_reading *reading_p)
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
    if (p->model) return read_device(p, reading_p);
    int32_t asked = (int32_t)type;
    struct answer answer;
    if (send(p->fd, &asked, sizeof asked, MSG_NOSIGNAL) != (ssize_t)sizeof asked ||
        recv(p->fd, &answer, sizeof answer, MSG_WAITALL) != (ssize_t)sizeof answer)
        return status_fail(STATUS_INTERNAL, "the probe ended: not enough memory or threads?");
    *reading_p = (struct probe_reading){answer.gflops, answer.gbytes_per_s, probe_loop_best(type)->instruction};
    return STATUS_OK;
}
