// SPDX-License-Identifier: Apache-2.0
#include "engine/shm_mail.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/shm_segment.h"
#include "lib/base/mem.h"

// The ring has room for the rows of several decode passes, and little enough for the 64 MiB of /dev/shm in containers.
enum { PIECE_FLOATS = 1 << 14, RING_PIECES = 32 };

// Counts pieces, modulo 2^32.
struct counter {
    _Alignas(64) atomic_uint n; // a futex
    atomic_uint sleepers;       // 1 if the other rank sleeps, or is about to sleep, until `n` changes
};

struct ring {
    struct counter filled, emptied;
    size_t counts[RING_PIECES]; // floats of the message that the piece belongs to; `filled` orders accesses
    _Alignas(4096) float pieces[RING_PIECES][PIECE_FLOATS];
};

struct shm_mail {
    struct comm *over;
    struct ring *rings; // [size] in shared memory; rings[rank] is filled by `rank`
};

static void counter_futex(struct counter *counter, int operation, unsigned value)
{
    syscall(SYS_futex, &counter->n, operation, value, NULL, NULL, 0);
}

static void counter_add(struct counter *counter)
{
    atomic_fetch_add(&counter->n, 1);
    if (atomic_load(&counter->sleepers)) counter_futex(counter, FUTEX_WAKE, INT_MAX);
}

// Waits until the counter differs from `n`. The rank that adds reads `sleepers` after it wrote `n`, and this rank reads
// `n` after it wrote `sleepers`. Both accesses are sequentially consistent, so at least one rank sees the other's
// write.
static void counter_wait(struct shm_mail *mail, struct counter *counter, unsigned n)
{
    if (atomic_load(&counter->n) != n) return;
    mail->over->waits = true;
    atomic_store(&counter->sleepers, 1);
    while (atomic_load(&counter->n) == n)
        counter_futex(counter, FUTEX_WAIT, n);
    atomic_store(&counter->sleepers, 0);
    mail->over->waits = false;
}

static size_t piece_floats(size_t left)
{
    return left < PIECE_FLOATS ? left : PIECE_FLOATS;
}

void shm_mail_send(struct shm_mail *mail, const float *data, size_t count)
{
    struct ring *ring = &mail->rings[mail->over->rank];
    for (size_t at = 0, n; at < count; at += n) {
        const unsigned filled = atomic_load(&ring->filled.n); // only this rank changes it
        counter_wait(mail, &ring->emptied, filled - RING_PIECES);
        n = piece_floats(count - at);
        ring->counts[filled % RING_PIECES] = count;
        memcpy(ring->pieces[filled % RING_PIECES], data + at, n * sizeof *data);
        counter_add(&ring->filled);
    }
}

enum status shm_mail_receive(struct shm_mail *mail, int rank, float *data, size_t count)
{
    struct ring *ring = &mail->rings[rank];
    for (size_t at = 0, n; at < count; at += n) {
        const unsigned emptied = atomic_load(&ring->emptied.n); // only this rank changes it
        counter_wait(mail, &ring->filled, emptied);
        const size_t sent = ring->counts[emptied % RING_PIECES];
        if (sent != count)
            return status_fail(STATUS_INTERNAL, "message: rank %d sends %zu floats, rank %d receives %zu", rank, sent,
                               mail->over->rank, count);
        n = piece_floats(count - at);
        memcpy(data + at, ring->pieces[emptied % RING_PIECES], n * sizeof *data);
        counter_add(&ring->emptied);
    }
    return STATUS_OK;
}

enum status shm_mail_open(struct comm *over, struct shm_mail **mail_p)
{
    void *rings = NULL;
    TRY(shm_segments_open(over, 1, sizeof(struct ring), &rings));
    struct shm_mail *mail = mem_alloc(sizeof *mail);
    *mail = (struct shm_mail){.over = over, .rings = rings};
    *mail_p = mail;
    return STATUS_OK;
}

void shm_mail_close(struct shm_mail *mail)
{
    if (!mail) return;
    munmap(mail->rings, (size_t)mail->over->size * sizeof *mail->rings);
    free(mail);
}
