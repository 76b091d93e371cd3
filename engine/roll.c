// SPDX-License-Identifier: Apache-2.0
// See roll.h. A call: the leader asks each follower (WHERE), they answer (HERE), and who asked for the call (CALL) is
// told what came of it (RESULT). Nothing here waits without a bound, so a rank that hangs cannot hold up the others.
#include "engine/roll.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/doorbell.h"

enum {
    LISTED = 4,       // ranks named in one sentence
    LEADER_MS = 2000, // how much later than its followers' answers the leader's must be there
};

enum frame_kind { WHERE = 1, HERE, CALL, RESULT };

// Plain bytes: the ranks of a group run on machines of one kind.
struct frame {
    uint32_t kind;
    uint32_t call;         // WHERE, HERE: its number, so that late answers count for nothing
    uint32_t place, waits; // HERE
    int32_t patience_ms;   // CALL
    uint32_t result;       // RESULT
    char sentence[ROLL_SENTENCE_MAX];
};

// What is known of a rank, in a call.
struct answer {
    bool here, waits;
    uint32_t place;
};

struct roll {
    struct comm *comm;
    struct doorbell *bell;
    pthread_t thread;
    int wake; // eventfd
    atomic_bool stopping;
    atomic_uint place; // odd: within the opening (1) or a pass (3, 5, ..)

    // The thread's own.
    struct pollfd *polled; // [n_lines + 1]: the lines, -1 when one is lost, and `wake`
    int n_lines;
    struct answer *answers; // leader: [size]
    bool *asked_by;         // leader: [size], followers to tell of the result
    uint32_t call;          // leader: number of the one under way, or the last
    bool calling;

    pthread_mutex_t lock; // guards what follows, and a follower's line while it is written to
    pthread_cond_t told;
    bool wanted;      // leader: a call
    int64_t until_us; // leader: when the call ends, whoever has not answered
    bool alone;       // follower: the line to the leader is lost
    unsigned results; // calls that came to an end
    enum roll_result result;
    char sentence[ROLL_SENTENCE_MAX];
};

static bool leads(const struct roll *r)
{
    return r->comm->rank == 0;
}

// The rank at the other end of a line.
static int rank_of(const struct roll *r, int line)
{
    return leads(r) ? line + 1 : 0;
}

// ---- lines ----

static void lose(struct roll *r, int line)
{
    r->polled[line].fd = -1; // the doorbell closes it
    if (leads(r)) return;
    pthread_mutex_lock(&r->lock);
    r->alone = true;
    pthread_cond_broadcast(&r->told);
    pthread_mutex_unlock(&r->lock);
}

// Never blocks: a rank that reads nothing has room for hundreds of frames.
static bool send_frame(int fd, const struct frame *frame)
{
    return send(fd, frame, sizeof *frame, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof *frame;
}

static struct frame own_answer(struct roll *r, uint32_t call)
{
    return (struct frame){.kind = HERE, .call = call, .place = r->place, .waits = r->comm->waits};
}

static void publish(struct roll *r, enum roll_result result, const char *sentence) // with the lock held
{
    r->results++;
    r->result = result;
    snprintf(r->sentence, sizeof r->sentence, "%s", sentence);
    pthread_cond_broadcast(&r->told);
}

// ---- the result, by the leader ----

enum standing { WAITS, AWAITED, SILENT, GONE, STANDINGS };

// `front` is the place where the others are, at least some of them.
static enum standing standing_of(const struct roll *r, int rank, uint32_t front)
{
    const struct answer *a = &r->answers[rank];
    if (!a->here) return r->polled[rank - 1].fd < 0 ? GONE : SILENT;
    return a->place < front || (a->place == front && !a->waits) ? AWAITED : WAITS;
}

struct sentence {
    char text[ROLL_SENTENCE_MAX];
    size_t length;
};

static void __attribute__((format(printf, 2, 3))) add(struct sentence *s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    size_t room = sizeof s->text - s->length;
    int n = vsnprintf(s->text + s->length, room, format, args);
    va_end(args);
    if (n > 0) s->length += (size_t)n < room ? (size_t)n : room - 1;
}

static void add_names(struct sentence *s, const struct roll *r, uint32_t front, enum standing standing)
{
    int n = 0;
    for (int rank = 0; rank < r->comm->size; rank++) {
        char name[DOORBELL_NAME_MAX];
        if (standing_of(r, rank, front) != standing || ++n > LISTED) continue;
        add(s, "%s%s", n > 1 ? ", " : "", doorbell_name(r->bell, rank, name));
    }
    if (n > LISTED) add(s, " and %d more", n - LISTED);
}

static enum roll_result compose(const struct roll *r, struct sentence *s)
{
    const int size = r->comm->size;
    uint32_t front = 0;
    for (int rank = 0; rank < size; rank++) {
        uint32_t place = r->answers[rank].place, within = place % 2 ? place : place ? place - 1 : 0;
        if (r->answers[rank].here && within > front) front = within;
    }
    int n[STANDINGS] = {0};
    for (int rank = 0; rank < size; rank++)
        n[standing_of(r, rank, front)]++;
    if (n[GONE]) {
        add_names(s, r, front, GONE);
        add(s, n[GONE] == 1 ? " is gone" : " are gone");
    }
    if (n[SILENT]) {
        if (n[GONE]) add(s, ", ");
        add_names(s, r, front, SILENT);
        add(s, n[SILENT] == 1 ? " does not answer" : " do not answer");
    }
    if (n[GONE] || n[SILENT]) return ROLL_SILENT;
    add(s, "all %d ranks answer", size);
    if (n[AWAITED] == size) {
        add(s, " and are at work");
        return ROLL_COMPLETE;
    }
    if (n[AWAITED] == 0) {
        add(s, " and wait for each other: a device or a link hangs");
        return ROLL_COMPLETE;
    }
    add(s, ", the others wait for ");
    add_names(s, r, front, AWAITED);
    return ROLL_AWAITED;
}

// ---- the thread ----

static void begin_call(struct roll *r)
{
    const struct frame where = {.kind = WHERE, .call = ++r->call};
    memset(r->answers, 0, (size_t)r->comm->size * sizeof *r->answers);
    r->calling = true;
    for (int line = 0; line < r->n_lines; line++)
        if (r->polled[line].fd >= 0 && !send_frame(r->polled[line].fd, &where)) lose(r, line);
}

static bool all_answered(const struct roll *r)
{
    for (int line = 0; line < r->n_lines; line++)
        if (r->polled[line].fd >= 0 && !r->answers[line + 1].here) return false;
    return true;
}

static void end_call(struct roll *r) // with the lock held
{
    const struct frame mine = own_answer(r, r->call);
    r->answers[0] = (struct answer){true, mine.waits, mine.place};
    struct sentence s = {.length = 0};
    enum roll_result result = compose(r, &s);
    publish(r, result, s.text);
    struct frame told = {.kind = RESULT, .result = (uint32_t)result};
    memcpy(told.sentence, s.text, sizeof told.sentence);
    for (int line = 0; line < r->n_lines; line++)
        if (r->asked_by[line + 1] && r->polled[line].fd >= 0 && !send_frame(r->polled[line].fd, &told)) lose(r, line);
    memset(r->asked_by, 0, (size_t)r->comm->size * sizeof *r->asked_by);
    r->calling = r->wanted = false;
}

// Leader: how long until there is something to do without being told, -1 for ever.
static int advance(struct roll *r)
{
    pthread_mutex_lock(&r->lock);
    if (r->wanted && !r->calling) begin_call(r);
    int64_t left_us = r->until_us - clock_now_us();
    if (r->calling && (left_us <= 0 || all_answered(r))) end_call(r);
    bool calling = r->calling;
    pthread_mutex_unlock(&r->lock);
    return calling ? (int)(left_us / 1000) + 1 : -1;
}

static void want(struct roll *r, int patience_ms) // leader, with the lock held
{
    int64_t until_us = clock_now_us() + (int64_t)patience_ms * 1000;
    if (!r->wanted || until_us < r->until_us) r->until_us = until_us;
    r->wanted = true;
}

static void take(struct roll *r, int line, const struct frame *frame)
{
    int rank = rank_of(r, line);
    pthread_mutex_lock(&r->lock);
    if (leads(r) && frame->kind == CALL) {
        r->asked_by[rank] = true;
        want(r, frame->patience_ms);
    } else if (leads(r) && frame->kind == HERE && frame->call == r->call) {
        r->answers[rank] = (struct answer){true, frame->waits, frame->place};
    } else if (!leads(r) && frame->kind == WHERE) {
        const struct frame here = own_answer(r, frame->call);
        send_frame(r->polled[line].fd, &here);
    } else if (!leads(r) && frame->kind == RESULT) {
        publish(r, (enum roll_result)frame->result, frame->sentence);
    }
    pthread_mutex_unlock(&r->lock);
}

static void read_line(struct roll *r, int line)
{
    struct frame frame;
    ssize_t n = recv(r->polled[line].fd, &frame, sizeof frame, MSG_WAITALL); // bounded, see prepare_lines
    if (n < 0 && errno == EINTR) return;
    if (n != sizeof frame) {
        lose(r, line);
        return;
    }
    frame.sentence[sizeof frame.sentence - 1] = 0;
    take(r, line, &frame);
}

static void *listen_and_answer(void *argument)
{
    struct roll *r = argument;
    while (!r->stopping) {
        int timeout_ms = leads(r) ? advance(r) : -1;
        if (poll(r->polled, (nfds_t)r->n_lines + 1, timeout_ms) <= 0) continue;
        uint64_t count;
        if (r->polled[r->n_lines].revents && read(r->wake, &count, sizeof count) < 0) continue;
        for (int line = 0; line < r->n_lines; line++)
            if (r->polled[line].fd >= 0 && r->polled[line].revents) read_line(r, line);
    }
    return NULL;
}

static void wake_thread(struct roll *r)
{
    uint64_t one = 1;
    while (write(r->wake, &one, sizeof one) < 0 && errno == EINTR)
        continue;
}

// ---- public ----

// A frame that began must end within two seconds.
static void prepare_lines(struct roll *r)
{
    r->n_lines = leads(r) ? r->comm->size - 1 : 1;
    r->polled = mem_alloc_array((size_t)r->n_lines + 1, sizeof *r->polled);
    for (int line = 0; line < r->n_lines; line++) {
        int fd = doorbell_line(r->bell, rank_of(r, line));
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = 2}, sizeof(struct timeval));
        r->polled[line] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    r->polled[r->n_lines] = (struct pollfd){.fd = r->wake, .events = POLLIN};
}

static void roll_free(struct roll *r)
{
    if (r->wake >= 0) close(r->wake);
    pthread_cond_destroy(&r->told);
    pthread_mutex_destroy(&r->lock);
    doorbell_close(r->bell);
    free(r->polled);
    free(r->answers);
    free(r->asked_by);
    free(r);
}

enum status roll_open(struct comm *comm, struct roll **roll_p)
{
    struct doorbell *bell;
    enum status status = doorbell_open(comm, &bell);
    if (status != STATUS_OK) return status;
    struct roll *r = mem_alloc(sizeof *r);
    r->comm = comm;
    r->bell = bell;
    r->answers = mem_alloc_array((size_t)comm->size, sizeof *r->answers);
    r->asked_by = mem_alloc_array((size_t)comm->size, sizeof *r->asked_by);
    r->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&r->told, &monotonic);
    pthread_condattr_destroy(&monotonic);
    prepare_lines(r);
    int error = r->wake < 0 ? errno : pthread_create(&r->thread, NULL, listen_and_answer, r);
    if (error) {
        roll_free(r);
        return status_fail(STATUS_INTERNAL, "no thread to answer roll calls: %s", strerror(error));
    }
    *roll_p = r;
    return STATUS_OK;
}

void roll_close(struct roll *r)
{
    r->stopping = true;
    wake_thread(r);
    pthread_join(r->thread, NULL);
    roll_free(r);
}

void roll_enter(struct roll *r)
{
    atomic_fetch_add(&r->place, 1);
}

void roll_leave(struct roll *r)
{
    atomic_fetch_add(&r->place, 1);
}

enum roll_result roll_call(struct roll *r, int patience_ms, char sentence[ROLL_SENTENCE_MAX])
{
    int64_t until_us = clock_now_us() + ((int64_t)patience_ms + LEADER_MS) * 1000;
    struct timespec until = {.tv_sec = until_us / 1000000, .tv_nsec = until_us % 1000000 * 1000};
    pthread_mutex_lock(&r->lock);
    unsigned before = r->results;
    if (leads(r)) {
        want(r, patience_ms);
        wake_thread(r);
    } else {
        const struct frame call = {.kind = CALL, .patience_ms = patience_ms};
        send_frame(doorbell_line(r->bell, 0), &call);
    }
    while (r->results == before && !r->alone && pthread_cond_timedwait(&r->told, &r->lock, &until) == 0)
        continue;
    bool told = r->results != before;
    enum roll_result result = told ? r->result : ROLL_SILENT;
    char name[DOORBELL_NAME_MAX];
    if (told)
        memcpy(sentence, r->sentence, sizeof r->sentence);
    else
        snprintf(sentence, ROLL_SENTENCE_MAX, "%s %s", doorbell_name(r->bell, 0, name),
                 r->alone ? "is gone" : "does not answer");
    pthread_mutex_unlock(&r->lock);
    return result;
}
