// SPDX-License-Identifier: Apache-2.0
// Fuzzes the checker of HTTP/2 frames. The first byte is the size of the pieces in which the client's bytes arrive. The
// result must be the same as for bytes that arrive together. The counts of calls and bytes must stay right while the
// server ends calls.
#include "lib/net/frames.h"

#include <string.h>

#include "tests/fuzz/fuzz.h"

enum { MAX_CALLS = 8, HEADER_BYTES = 4096, UNANSWERED = 30, FREE = 4 };
static const struct frames_limits limits = {MAX_CALLS, HEADER_BYTES, 16, 50, 10, 20, 10, UNANSWERED, 10, FREE};

struct result {
    enum frames_found found;
    int n_calls;
    size_t held;
    bool may_pass;
};

static void check(const struct frames *f)
{
    int n = 0;
    size_t held = FRAMES_CONNECTION_BYTES;
    for (int i = 0; i < f->n_places; i++) {
        if (!f->calls[i].id) continue;
        n++;
        held += FRAMES_CALL_BYTES + (size_t)f->calls[i].header_bytes + f->calls[i].message_bytes;
    }
    FUZZ_CHECK(n == f->n_calls && n <= MAX_CALLS && held == f->held_bytes);
    FUZZ_CHECK(f->unanswered.left <= UNANSWERED);
    FUZZ_CHECK(f->credit >= 0 && f->credit <= UNANSWERED && f->unpaid >= 0);
    FUZZ_CHECK(f->headers.table_bytes <= HEADER_TABLE_BYTES && f->headers.n <= HEADER_TABLE_ENTRIES);
}

static struct result receive(const uint8_t *bytes, size_t size, size_t piece)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    struct frames f;
    struct result r = {.found = FRAMES_OK};
    frames_init(&f, &limits, 1000000);
    frames_receive(&f, (const uint8_t *)preface, sizeof preface - 1, 1000000);
    for (size_t at = 0; at < size && r.found == FRAMES_OK; at += piece) {
        r.found = frames_receive(&f, bytes + at, size - at < piece ? size - at : piece, 1000000);
        check(&f);
    }
    r.n_calls = f.n_calls;
    r.held = r.found == FRAMES_OK ? frames_held_bytes(&f) : 0;
    r.may_pass = r.found == FRAMES_OK && frames_may_pass(&f);
    frames_send(&f, bytes, size); // the server's frames, which end some calls
    check(&f);
    uint8_t goodbye[FRAMES_GOODBYE_BYTES];
    FUZZ_CHECK(frames_goodbye(&f, r.found, goodbye) <= sizeof goodbye);
    frames_fini(&f);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) return 0;
    struct result whole = receive(data + 1, size - 1, size), parts = receive(data + 1, size - 1, data[0] % 16 + 1u);
    FUZZ_CHECK(whole.found == parts.found && whole.n_calls == parts.n_calls && whole.held == parts.held);
    FUZZ_CHECK(whole.may_pass == parts.may_pass);
    return 0;
}
