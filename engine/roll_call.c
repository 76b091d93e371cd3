// SPDX-License-Identifier: Apache-2.0
// In a roll call the leader asks each follower for its place (WHERE) and each follower answers (HERE). A
// follower may request a roll call (CALL) and then receives its result (RESULT). A follower that ends says why (END).
// The leader asks for the state of a GPU (GPU_ASK), and the follower answers (GPU). Every wait here has a time limit,
// so a rank that hangs cannot block other ranks.
#include "engine/roll_call.h"

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
#include <unistd.h>

#include "engine/wakeup.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/monotonic_cond.h"

enum {
    NAMES_MAX = 4,          // largest number of ranks that one sentence names
    RESULT_GRACE_MS = 2000, // time for the leader to send the result, after the time limit for answers
    FRAME_TIMEOUT_S = 2,    // time to complete a frame that has begun
};

int roll_call_gpu_age_ms = 10000;

enum frame_kind { WHERE = 1, HERE, CALL, RESULT, END, GPU_ASK, GPU };

// Message between ranks, in native byte order, which is the same on all ranks of a group.
struct frame {
    uint32_t kind;
    uint32_t call;         // WHERE, HERE: number of the roll call, to drop late answers
    uint32_t place, waits; // HERE: state of the answering rank, see struct answer
    int32_t timeout_ms;    // CALL: time limit for answers
    uint32_t result;       // RESULT: enum roll_call_result
    uint64_t progress;     // HERE: comm.progress. RESULT: the sum over all ranks
    union {
        char sentence[ROLL_CALL_SENTENCE_MAX]; // RESULT: the result. END: why the rank fails, or empty if it ends as
                                               // planned
        struct gpu_report gpu;                 // GPU
    };
};

// The state of one rank in a roll call: comm.waits, and the place that it has reached (struct roll_call).
struct answer {
    bool received, waits;
    uint32_t place;
    uint64_t progress;
};

struct roll_call {
    struct comm *comm;
    struct wakeup *wakeup;
    pthread_t thread;
    int wake; // eventfd
    atomic_bool stopping;
    // Counts the calls of roll_call_enter() and roll_call_leave(): 1 while the model is opened, then odd in a pass and
    // even between passes.
    atomic_uint place;

    // Members used only by the thread.
    struct pollfd *polled; // [n_links + 1] sockets to the other ranks (-1: lost), then `wake`
    int n_links;
    struct answer *answers; // leader: [size]
    bool *requested_by;     // leader: [size] true for followers that wait for the result
    uint32_t call;          // leader: number of the current or last roll call
    bool calling;           // leader: a roll call is running

    pthread_mutex_t lock; // guards the members below, and writes to a follower's socket
    pthread_cond_t changed;
    bool requested;   // leader: a roll call is requested
    int64_t until_us; // leader: end of the time for answers
    bool leader_lost; // follower: the socket to the leader is closed
    bool *ended;      // leader: [size] true for followers that have sent END
    roll_call_lost_fn *lost;
    void *lost_arg;
    struct gpu_report *gpus;    // leader: [size] the last report of each follower
    int64_t *gpus_us;           // leader: [size] time of that report
    bool *gpu_asked;            // leader: [size] true for followers that have not answered GPU_ASK yet
    roll_call_gpu_fn *gpu_read; // follower: NULL until it is set
    void *gpu_arg;
    unsigned n_results; // number of roll calls that have ended
    enum roll_call_result result;
    uint64_t progress; // sum over the ranks that answered
    char sentence[ROLL_CALL_SENTENCE_MAX];
};

static bool is_leader(const struct roll_call *r)
{
    return r->comm->rank == 0;
}

// Returns the rank at the other end of a link.
static int link_rank(const struct roll_call *r, int link)
{
    return is_leader(r) ? link + 1 : 0;
}

// ---- frames ----

// Called with the lock held.
static void link_lose(struct roll_call *r, int link)
{
    r->polled[link].fd = -1; // wakeup_close() closes the socket
    r->leader_lost = !is_leader(r);
    pthread_cond_broadcast(&r->changed);
}

// Leader: handles the end of a follower. `sentence` is the reason that the follower sent, or empty.
static void follower_lost(struct roll_call *r, int rank, const char *sentence)
{
    pthread_mutex_lock(&r->lock);
    roll_call_lost_fn *lost = r->ended[rank] ? NULL : r->lost;
    r->ended[rank] = true;
    pthread_mutex_unlock(&r->lock);
    char name[WAKEUP_NAME_MAX], text[ROLL_CALL_SENTENCE_MAX];
    snprintf(text, sizeof text, "%s %s", wakeup_name(r->wakeup, rank, name),
             *sentence ? sentence : "is gone: its process was killed or its host was lost");
    if (lost) lost(r->lost_arg, rank, text);
}

// Sends a frame without blocking. Even if a rank does not read, its socket has room for hundreds of frames.
static bool frame_send(int fd, const struct frame *frame)
{
    return send(fd, frame, sizeof *frame, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof *frame;
}

static struct frame frame_answer(struct roll_call *r, uint32_t call)
{
    return (struct frame){
        .kind = HERE, .call = call, .place = r->place, .waits = comm_waits(r->comm), .progress = r->comm->progress};
}

// Called with the lock held.
static void result_publish(struct roll_call *r, enum roll_call_result result, uint64_t progress, const char *sentence)
{
    r->n_results++;
    r->result = result;
    r->progress = progress;
    snprintf(r->sentence, sizeof r->sentence, "%s", sentence);
    pthread_cond_broadcast(&r->changed);
}

// ---- the result, by the leader ----

// States of a rank: it waits for other ranks, other ranks wait for it, it does not answer, or it has closed its socket.
enum standing { WAITS, AWAITED, SILENT, GONE, STANDINGS };

// Returns the state of a rank. `front` is the furthest place that any rank has reached.
static enum standing rank_standing(const struct roll_call *r, int rank, uint32_t front)
{
    const struct answer *a = &r->answers[rank];
    if (!a->received) return r->polled[rank - 1].fd < 0 ? GONE : SILENT;
    return a->place < front || (a->place == front && !a->waits) ? AWAITED : WAITS;
}

struct sentence {
    char text[ROLL_CALL_SENTENCE_MAX];
    size_t length;
};

static void __attribute__((format(printf, 2, 3))) sentence_add(struct sentence *s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    size_t room = sizeof s->text - s->length;
    int n = vsnprintf(s->text + s->length, room, format, args);
    va_end(args);
    if (n > 0) s->length += (size_t)n < room ? (size_t)n : room - 1;
}

static void sentence_add_names(struct sentence *s, const struct roll_call *r, uint32_t front, enum standing standing)
{
    int n = 0;
    for (int rank = 0; rank < r->comm->size; rank++) {
        char name[WAKEUP_NAME_MAX];
        if (rank_standing(r, rank, front) != standing || ++n > NAMES_MAX) continue;
        sentence_add(s, "%s%s", n > 1 ? ", " : "", wakeup_name(r->wakeup, rank, name));
    }
    if (n > NAMES_MAX) sentence_add(s, " and %d more", n - NAMES_MAX);
}

static enum roll_call_result result_compose(const struct roll_call *r, struct sentence *s)
{
    const int size = r->comm->size;
    uint32_t front = 0; // an even place is between two passes and counts as the earlier pass
    for (int rank = 0; rank < size; rank++) {
        uint32_t place = r->answers[rank].place, within = place % 2 ? place : place ? place - 1 : 0;
        if (r->answers[rank].received && within > front) front = within;
    }
    int n[STANDINGS] = {0};
    for (int rank = 0; rank < size; rank++)
        n[rank_standing(r, rank, front)]++;
    if (n[GONE]) {
        sentence_add_names(s, r, front, GONE);
        sentence_add(s, n[GONE] == 1 ? " is gone" : " are gone");
    }
    if (n[SILENT]) {
        if (n[GONE]) sentence_add(s, ", ");
        sentence_add_names(s, r, front, SILENT);
        sentence_add(s, n[SILENT] == 1 ? " does not answer" : " do not answer");
    }
    if (n[GONE] || n[SILENT]) return ROLL_CALL_SILENT;
    sentence_add(s, "all %d ranks answer", size);
    if (n[AWAITED] == size) {
        sentence_add(s, " and are at work");
        return ROLL_CALL_COMPLETE;
    }
    if (n[AWAITED] == 0) {
        sentence_add(s, " and wait for each other: a device or a link hangs");
        return ROLL_CALL_COMPLETE;
    }
    sentence_add(s, ", the others wait for ");
    sentence_add_names(s, r, front, AWAITED);
    return ROLL_CALL_AWAITED;
}

// ---- the thread ----

static void call_begin(struct roll_call *r)
{
    const struct frame where = {.kind = WHERE, .call = ++r->call};
    memset(r->answers, 0, (size_t)r->comm->size * sizeof *r->answers);
    r->calling = true;
    for (int link = 0; link < r->n_links; link++)
        // a failure is ignored: reading detects a lost rank
        if (r->polled[link].fd >= 0) frame_send(r->polled[link].fd, &where);
}

static bool call_all_answered(const struct roll_call *r)
{
    for (int link = 0; link < r->n_links; link++)
        if (r->polled[link].fd >= 0 && !r->answers[link + 1].received) return false;
    return true;
}

static void call_end(struct roll_call *r) // with the lock held
{
    const struct frame mine = frame_answer(r, r->call);
    r->answers[0] = (struct answer){true, mine.waits, mine.place, mine.progress};
    uint64_t progress = 0;
    for (int rank = 0; rank < r->comm->size; rank++)
        progress += r->answers[rank].progress;
    struct sentence s = {.length = 0};
    enum roll_call_result result = result_compose(r, &s);
    result_publish(r, result, progress, s.text);
    struct frame sent = {.kind = RESULT, .result = (uint32_t)result, .progress = progress};
    memcpy(sent.sentence, s.text, sizeof sent.sentence);
    for (int link = 0; link < r->n_links; link++)
        if (r->requested_by[link + 1] && r->polled[link].fd >= 0) frame_send(r->polled[link].fd, &sent);
    memset(r->requested_by, 0, (size_t)r->comm->size * sizeof *r->requested_by);
    r->calling = r->requested = false;
}

// Leader: begins a requested roll call, and ends a complete one. Returns the time in ms after which this function must
// be called again, or -1 for no limit.
static int call_advance(struct roll_call *r)
{
    pthread_mutex_lock(&r->lock);
    if (r->requested && !r->calling) call_begin(r);
    int64_t left_us = r->until_us - clock_now_us();
    if (r->calling && (left_us <= 0 || call_all_answered(r))) call_end(r);
    bool calling = r->calling;
    pthread_mutex_unlock(&r->lock);
    return calling ? (int)(left_us / 1000) + 1 : -1;
}

static void call_request(struct roll_call *r, int timeout_ms) // leader, with the lock held
{
    int64_t until_us = clock_now_us() + (int64_t)timeout_ms * 1000;
    if (!r->requested || until_us < r->until_us) r->until_us = until_us;
    r->requested = true;
}

// Follower: sends the report of its GPU, or zeros if no function to read it is set yet.
static void gpu_answer(struct roll_call *r, int link)
{
    struct frame answer = {.kind = GPU};
    pthread_mutex_lock(&r->lock);
    roll_call_gpu_fn *read = r->gpu_read;
    void *arg = r->gpu_arg;
    pthread_mutex_unlock(&r->lock);
    if (read) read(arg, &answer.gpu);
    pthread_mutex_lock(&r->lock);
    frame_send(r->polled[link].fd, &answer);
    pthread_mutex_unlock(&r->lock);
}

static void gpu_store(struct roll_call *r, int rank, const struct gpu_report *report) // leader, with the lock held
{
    r->gpu_asked[rank] = false;
    r->gpus[rank] = *report;
    r->gpus_us[rank] = clock_now_us();
    r->gpus[rank].address[GPU_ADDRESS_MAX - 1] = r->gpus[rank].trouble[GPU_TROUBLE_MAX - 1] = 0;
}

static void frame_handle(struct roll_call *r, int link, const struct frame *frame)
{
    int rank = link_rank(r, link);
    if (!is_leader(r) && frame->kind == GPU_ASK) gpu_answer(r, link);
    pthread_mutex_lock(&r->lock);
    if (is_leader(r) && frame->kind == CALL) {
        r->requested_by[rank] = true;
        call_request(r, frame->timeout_ms);
    } else if (is_leader(r) && frame->kind == HERE && frame->call == r->call) {
        r->answers[rank] = (struct answer){true, frame->waits, frame->place, frame->progress};
    } else if (!is_leader(r) && frame->kind == WHERE) {
        const struct frame answer = frame_answer(r, frame->call);
        frame_send(r->polled[link].fd, &answer);
    } else if (!is_leader(r) && frame->kind == RESULT) {
        result_publish(r, (enum roll_call_result)frame->result, frame->progress, frame->sentence);
    } else if (is_leader(r) && frame->kind == GPU) {
        gpu_store(r, rank, &frame->gpu);
    } else if (is_leader(r) && frame->kind == END && !*frame->sentence) {
        r->ended[rank] = true;
    }
    pthread_mutex_unlock(&r->lock);
    if (is_leader(r) && frame->kind == END && *frame->sentence) follower_lost(r, rank, frame->sentence);
}

static void link_read(struct roll_call *r, int link)
{
    struct frame frame;
    ssize_t n = recv(r->polled[link].fd, &frame, sizeof frame, MSG_WAITALL); // bounded by FRAME_TIMEOUT_S
    if (n < 0 && errno == EINTR) return;
    if (n != sizeof frame) {
        pthread_mutex_lock(&r->lock);
        link_lose(r, link);
        pthread_mutex_unlock(&r->lock);
        if (is_leader(r)) follower_lost(r, link_rank(r, link), "");
        return;
    }
    frame.sentence[sizeof frame.sentence - 1] = 0;
    frame_handle(r, link, &frame);
}

static void *roll_call_thread(void *argument)
{
    struct roll_call *r = argument;
    while (!r->stopping) {
        int timeout_ms = is_leader(r) ? call_advance(r) : -1;
        if (poll(r->polled, (nfds_t)r->n_links + 1, timeout_ms) <= 0) continue;
        uint64_t count;
        if (r->polled[r->n_links].revents && read(r->wake, &count, sizeof count) < 0) continue;
        for (int link = 0; link < r->n_links; link++)
            if (r->polled[link].fd >= 0 && r->polled[link].revents) link_read(r, link);
    }
    return NULL;
}

static void thread_wake(struct roll_call *r)
{
    uint64_t one = 1;
    while (write(r->wake, &one, sizeof one) < 0 && errno == EINTR)
        continue;
}

// ---- public ----

static void links_open(struct roll_call *r)
{
    r->n_links = is_leader(r) ? r->comm->size - 1 : 1;
    r->polled = mem_alloc_array((size_t)r->n_links + 1, sizeof *r->polled);
    for (int link = 0; link < r->n_links; link++) {
        int fd = wakeup_socket(r->wakeup, link_rank(r, link));
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = FRAME_TIMEOUT_S}, sizeof(struct timeval));
        r->polled[link] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    r->polled[r->n_links] = (struct pollfd){.fd = r->wake, .events = POLLIN};
}

static void roll_call_free(struct roll_call *r)
{
    if (r->wake >= 0) close(r->wake);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    wakeup_close(r->wakeup);
    free(r->polled);
    free(r->answers);
    free(r->requested_by);
    free(r->ended);
    free(r->gpus);
    free(r->gpus_us);
    free(r->gpu_asked);
    free(r);
}

enum status roll_call_open(struct comm *comm, struct roll_call **roll_call_p)
{
    struct wakeup *wakeup;
    TRY(wakeup_open(comm, &wakeup));
    struct roll_call *r = mem_alloc(sizeof *r);
    r->comm = comm;
    r->wakeup = wakeup;
    r->answers = mem_alloc_array((size_t)comm->size, sizeof *r->answers);
    r->requested_by = mem_alloc_array((size_t)comm->size, sizeof *r->requested_by);
    r->ended = mem_alloc_array((size_t)comm->size, sizeof *r->ended);
    r->gpus = mem_alloc_array((size_t)comm->size, sizeof *r->gpus);
    r->gpus_us = mem_alloc_array((size_t)comm->size, sizeof *r->gpus_us);
    r->gpu_asked = mem_alloc_array((size_t)comm->size, sizeof *r->gpu_asked);
    r->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&r->lock, NULL);
    monotonic_cond_init(&r->changed);
    links_open(r);
    int error = r->wake < 0 ? errno : pthread_create(&r->thread, NULL, roll_call_thread, r);
    if (error) {
        roll_call_free(r);
        return status_fail(STATUS_INTERNAL, "roll call: pthread_create: %s", strerror(error));
    }
    *roll_call_p = r;
    return STATUS_OK;
}

static void end_send(struct roll_call *r, const char *sentence)
{
    struct frame end = {.kind = END};
    snprintf(end.sentence, sizeof end.sentence, "%s", sentence);
    pthread_mutex_lock(&r->lock);
    for (int link = 0; link < r->n_links; link++)
        if (r->polled[link].fd >= 0) frame_send(r->polled[link].fd, &end);
    pthread_mutex_unlock(&r->lock);
}

void roll_call_on_loss(struct roll_call *r, roll_call_lost_fn *lost, void *arg)
{
    pthread_mutex_lock(&r->lock);
    r->lost = lost;
    r->lost_arg = arg;
    pthread_mutex_unlock(&r->lock);
}

void roll_call_report(struct roll_call *r, const char *sentence)
{
    if (!is_leader(r)) end_send(r, *sentence ? sentence : "failed");
}

void roll_call_close(struct roll_call *r)
{
    roll_call_on_loss(r, NULL, NULL);
    end_send(r, "");
    r->stopping = true;
    thread_wake(r);
    pthread_join(r->thread, NULL);
    roll_call_free(r);
}

void roll_call_serve_gpu(struct roll_call *r, roll_call_gpu_fn *read, void *arg)
{
    pthread_mutex_lock(&r->lock);
    r->gpu_read = read;
    r->gpu_arg = arg;
    pthread_mutex_unlock(&r->lock);
}

void roll_call_read_gpus(struct roll_call *r, struct gpu_report *reports)
{
    const struct frame ask = {.kind = GPU_ASK};
    const int64_t now_us = clock_now_us();
    pthread_mutex_lock(&r->lock);
    for (int link = 0; link < r->n_links; link++) {
        const int rank = link_rank(r, link), fd = r->polled[link].fd;
        reports[rank] = r->gpus[rank];
        if (now_us - r->gpus_us[rank] > (int64_t)roll_call_gpu_age_ms * 1000) reports[rank].known = false;
        if (fd >= 0 && !r->gpu_asked[rank]) r->gpu_asked[rank] = frame_send(fd, &ask);
    }
    pthread_mutex_unlock(&r->lock);
}

void roll_call_enter(struct roll_call *r)
{
    atomic_fetch_add(&r->place, 1);
}

void roll_call_leave(struct roll_call *r)
{
    atomic_fetch_add(&r->place, 1);
}

enum roll_call_result roll_call_ask(struct roll_call *r, int timeout_ms, char sentence[ROLL_CALL_SENTENCE_MAX])
{
    int64_t until_us = clock_now_us() + ((int64_t)timeout_ms + RESULT_GRACE_MS) * 1000;
    pthread_mutex_lock(&r->lock);
    unsigned before = r->n_results;
    if (is_leader(r)) {
        call_request(r, timeout_ms);
        thread_wake(r);
    } else {
        const struct frame call = {.kind = CALL, .timeout_ms = timeout_ms};
        frame_send(wakeup_socket(r->wakeup, 0), &call);
    }
    while (r->n_results == before && !r->leader_lost && monotonic_cond_wait(&r->changed, &r->lock, until_us))
        continue;
    bool answered = r->n_results != before;
    enum roll_call_result result = answered ? r->result : ROLL_CALL_SILENT;
    char name[WAKEUP_NAME_MAX];
    if (answered)
        memcpy(sentence, r->sentence, sizeof r->sentence);
    else
        snprintf(sentence, ROLL_CALL_SENTENCE_MAX, "%s %s", wakeup_name(r->wakeup, 0, name),
                 r->leader_lost ? "is gone" : "does not answer");
    pthread_mutex_unlock(&r->lock);
    return result;
}

uint64_t roll_call_progress(struct roll_call *r)
{
    pthread_mutex_lock(&r->lock);
    const uint64_t progress = r->progress;
    pthread_mutex_unlock(&r->lock);
    return progress;
}
