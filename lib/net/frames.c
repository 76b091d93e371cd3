// SPDX-License-Identifier: Apache-2.0
// Parses frames as RFC 9113, sections 4 and 6, defines them. A gRPC message within DATA begins with a head of 5 bytes.
#include "lib/net/frames.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

enum { DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION };
enum { END_STREAM = 1, ACK = 1, END_HEADERS = 4, PADDED = 8, HAS_PRIORITY = 0x20 };
enum {
    FRAME_HEAD_BYTES = 9,
    CONTROL_BYTES_MAX = 16384, // limit of a frame that is not DATA; SETTINGS allow no larger frame
    EMPTY_UNIT_BYTES = 256,    // each further unit of an empty frame costs as much as one more empty frame
    EMPTY_PER_USEFUL = 4,      // empty frames that a client may send for each useful frame of either side
    CALL_UNIT_BYTES = 1024,    // each whole unit of a call's headers costs as much as one more call
    PLACES_MIN = 8,
};

static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
enum { PREFACE_BYTES = sizeof preface - 1 };

const char *frames_found_name(enum frames_found found)
{
    static const char *const names[] = {
        [FRAMES_OK] = "it keeps the limits",
        [FRAMES_NOT_HTTP2] = "it does not speak HTTP/2",
        [FRAMES_BAD] = "a frame is malformed",
        [FRAMES_HEADERS_TOO_LARGE] = "the headers of a call are too large",
        [FRAMES_TOO_MANY_HEADERS] = "a call has too many headers",
        [FRAMES_BAD_HEADERS] = "headers are malformed",
        [FRAMES_TOO_MANY_CALLS] = "it has too many open calls",
        [FRAMES_TOO_MANY_EMPTY] = "it sends too many frames that carry nothing",
        [FRAMES_TOO_MANY_RESETS] = "it resets too many new calls",
        [FRAMES_TOO_MANY_UNANSWERED] = "it opens too many calls that get no answer",
    };
    return names[found];
}

// --- allowances

static void allowance_refill(struct frames_allowance *a, int max, int per_second, int64_t now_us)
{
    int64_t more = (now_us - a->at_us) * per_second / 1000000;
    if (more <= 0) return;
    a->at_us = now_us;
    if (a->left < max) a->left = a->left + more < max ? a->left + more : max;
}

static enum frames_found empty_charge(struct frames *f, uint32_t size)
{
    f->empty.left -= 1 + size / EMPTY_UNIT_BYTES;
    return f->empty.left < 0 ? FRAMES_TOO_MANY_EMPTY : FRAMES_OK;
}

// Adds the empty frames that a useful frame permits. The limit has room for one answer to every open call, because the
// client acknowledges each answer.
static void empty_earn(struct frames *f)
{
    int64_t max = f->limits->max_empty + (int64_t)EMPTY_PER_USEFUL * f->limits->max_calls;
    f->empty.left = f->empty.left + EMPTY_PER_USEFUL < max ? f->empty.left + EMPTY_PER_USEFUL : max;
}

// Adds the reset that the end of a call permits: a client may reset its side of a call that the server has ended. The
// limit has room for the ends of all open calls.
static void reset_earn(struct frames *f)
{
    if (f->resets.left < (int64_t)f->limits->max_resets + f->limits->max_calls) f->resets.left++;
}

// --- the table of calls, with linear probing

static uint32_t place_of(const struct frames *f, uint32_t id)
{
    return id * 2654435769u >> 7 & (uint32_t)(f->n_places - 1);
}

static struct frames_call *call_find(const struct frames *f, uint32_t id)
{
    uint32_t mask = (uint32_t)(f->n_places - 1);
    if (!f->n_places) return NULL;
    for (uint32_t i = place_of(f, id); f->calls[i].id; i = (i + 1) & mask)
        if (f->calls[i].id == id) return &f->calls[i];
    return NULL;
}

static void call_put(struct frames *f, const struct frames_call *call)
{
    uint32_t i = place_of(f, call->id);
    while (f->calls[i].id)
        i = (i + 1) & (uint32_t)(f->n_places - 1);
    f->calls[i] = *call;
}

static void calls_resize(struct frames *f, int n_places)
{
    struct frames_call *old = f->calls;
    int n_old = f->n_places;
    f->calls = mem_alloc_array((size_t)n_places, sizeof *f->calls);
    f->n_places = n_places;
    for (int i = 0; i < n_old; i++)
        if (old[i].id) call_put(f, &old[i]);
    free(old);
}

static struct frames_call *call_add(struct frames *f, uint32_t id)
{
    if (2 * (f->n_calls + 1) > f->n_places) calls_resize(f, f->n_places ? 2 * f->n_places : PLACES_MIN);
    call_put(f, &(struct frames_call){.id = id, .opened_us = f->now_us});
    f->n_calls++;
    f->held_bytes += FRAMES_CALL_BYTES;
    return call_find(f, id);
}

// Empties the place and moves later calls of the same run up, so that no search stops too early.
static void place_clear(struct frames *f, uint32_t hole)
{
    uint32_t mask = (uint32_t)(f->n_places - 1);
    for (uint32_t i = (hole + 1) & mask; f->calls[i].id; i = (i + 1) & mask) {
        if (((i - place_of(f, f->calls[i].id)) & mask) < ((i - hole) & mask)) continue;
        f->calls[hole] = f->calls[i];
        hole = i;
    }
    f->calls[hole].id = 0;
}

static void call_remove(struct frames *f, uint32_t id)
{
    struct frames_call *call = call_find(f, id);
    if (!call) return;
    f->held_bytes -= FRAMES_CALL_BYTES + (size_t)call->header_bytes + call->message_bytes;
    f->n_calls--;
    place_clear(f, (uint32_t)(call - f->calls));
    if (f->n_places > PLACES_MIN && 8 * f->n_calls < f->n_places) calls_resize(f, f->n_places / 2);
}

static int64_t call_cost(const struct frames_call *call)
{
    return 1 + call->header_bytes / CALL_UNIT_BYTES;
}

static void call_charge(struct frames *f, const struct frames_call *call)
{
    f->unanswered.left -= call_cost(call);
    f->credit -= call_cost(call);
    if (f->credit >= 0) return;
    f->unpaid -= f->credit;
    f->credit = 0;
}

// Returns the cost of a call once the server answers it. A client whose calls are answered may open any number. The
// credit becomes one larger, so that it follows the number of calls that the client usually has.
static void call_answer(struct frames *f, uint32_t id)
{
    struct frames_call *call = call_find(f, id);
    if (!call || call->answered) return;
    call->answered = true;
    f->unanswered.left += call_cost(call);
    f->credit += call_cost(call) + 1;
    if (f->unanswered.left > f->limits->max_unanswered) f->unanswered.left = f->limits->max_unanswered;
    if (f->credit > f->limits->max_unanswered) f->credit = f->limits->max_unanswered;
}

// --- frames of either side

static uint32_t number32(const uint8_t *b)
{
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

// Reads bytes of the frame's head and returns how many it used. The head is whole once head_size is FRAME_HEAD_BYTES.
static size_t reader_take_head(struct frames_reader *r, const uint8_t *bytes, size_t size)
{
    size_t missing = FRAME_HEAD_BYTES - r->head_size, n = size < missing ? size : missing;
    memcpy(r->head + r->head_size, bytes, n);
    r->head_size += (uint8_t)n;
    if (r->head_size < FRAME_HEAD_BYTES) return n;
    r->size = r->left = number32(r->head) >> 8;
    r->type = r->head[3];
    r->flags = r->head[4];
    r->id = number32(r->head + 5) & 0x7fffffff;
    return n;
}

// --- the client's header blocks

static enum frames_found headers_result(enum header_found found)
{
    switch (found) {
    case HEADER_OK: return FRAMES_OK;
    case HEADER_TOO_LARGE: return FRAMES_HEADERS_TOO_LARGE;
    case HEADER_TOO_MANY: return FRAMES_TOO_MANY_HEADERS;
    default: return FRAMES_BAD_HEADERS;
    }
}

static enum frames_found call_open(struct frames *f, uint32_t id)
{
    if (id % 2 == 0) return FRAMES_BAD;
    if (f->n_calls >= f->limits->max_calls) return FRAMES_TOO_MANY_CALLS;
    f->last_id = id;
    if (id > f->served_id) return empty_charge(f, 0); // C-core ignores the call and never ends it
    call_add(f, id);
    empty_earn(f);
    return FRAMES_OK;
}

// Begins a header block. The block opens a call, ends the client's side of a call, or belongs to a call that the server
// has ended meanwhile. Padding is refused: C-core ignores the flag and reads padding as headers.
static enum frames_found headers_begin(struct frames *f)
{
    enum frames_found found = FRAMES_OK;
    if (f->in.id == 0 || f->in.flags & PADDED) return FRAMES_BAD;
    struct frames_call *call = call_find(f, f->in.id);
    if (call && call->half_closed) return FRAMES_BAD;
    if (f->in.id > f->last_id)
        found = call_open(f, f->in.id);
    else
        found = empty_charge(f, 0);
    f->block_id = f->in.id;
    f->block_ends = (f->in.flags & END_STREAM) != 0;
    f->skip = f->in.flags & HAS_PRIORITY ? 5 : 0;
    header_block_start(&f->headers);
    return f->in.left < f->skip ? FRAMES_BAD : found;
}

static enum frames_found block_end(struct frames *f)
{
    enum header_found found = header_block_end(&f->headers);
    struct frames_call *call = call_find(f, f->block_id); // the server may have ended it meanwhile
    if (found != HEADER_OK) return headers_result(found);
    if (call) {
        call->header_bytes += (uint32_t)f->headers.bytes;
        f->held_bytes += f->headers.bytes;
        call->half_closed = f->block_ends;
        call_charge(f, call);
    }
    f->headers.bytes = 0;
    f->block_id = 0;
    return f->unanswered.left < 0 ? FRAMES_TOO_MANY_UNANSWERED : FRAMES_OK;
}

// Adds the frame's bytes to the header block, except the bytes to skip.
static enum frames_found block_add(struct frames *f, const uint8_t *bytes, size_t size)
{
    size_t skipped = f->skip < size ? f->skip : size;
    f->skip -= (uint32_t)skipped;
    return headers_result(header_block_add(&f->headers, bytes + skipped, size - skipped));
}

// --- the client's messages

static void message_bytes_add(struct frames *f, struct frames_call *call, size_t n)
{
    call->message_left -= (uint32_t)n;
    call->message_bytes += (uint32_t)n;
    f->held_bytes += n;
}

// Stops counting a complete message as held: the server reads a complete message immediately.
static void message_end(struct frames *f, struct frames_call *call)
{
    f->held_bytes -= call->message_bytes;
    call->message_bytes = 0;
    call->prefix_size = 0;
}

static void messages_add(struct frames *f, struct frames_call *call, const uint8_t *bytes, size_t size)
{
    while (size) {
        if (call->prefix_size < sizeof call->prefix) {
            call->prefix[call->prefix_size++] = *bytes++;
            size--;
            if (call->prefix_size == sizeof call->prefix) call->message_left = number32(call->prefix + 1);
        } else {
            size_t n = size < call->message_left ? size : call->message_left;
            message_bytes_add(f, call, n);
            bytes += n;
            size -= n;
        }
        if (call->prefix_size == sizeof call->prefix && !call->message_left) message_end(f, call);
    }
}

static enum frames_found data_begin(struct frames *f)
{
    struct frames_call *call = call_find(f, f->in.id);
    if (f->in.id == 0 || f->in.id > f->last_id || (call && call->half_closed)) return FRAMES_BAD;
    f->pad_pending = (f->in.flags & PADDED) != 0;
    return f->in.left < f->pad_pending ? FRAMES_BAD : FRAMES_OK;
}

static void data_add(struct frames *f, const uint8_t *bytes, size_t size)
{
    size_t end = f->in.left > f->pad ? f->in.left - f->pad : 0;
    struct frames_call *call = call_find(f, f->in.id);
    size_t n = size < end ? size : end;
    f->carries |= call && n;
    if (call) messages_add(f, call, bytes, n);
}

static enum frames_found data_end(struct frames *f)
{
    struct frames_call *call = call_find(f, f->in.id);
    bool ends = call && f->in.flags & END_STREAM;
    if (ends) call->half_closed = true;
    if (!f->carries && !ends) return empty_charge(f, call ? f->in.size : 0); // an ended call may still get data
    empty_earn(f);
    return FRAMES_OK;
}

// --- the client's frames

// Charges the reset of a call, unless the call is old: clients that give up waiting reset many old calls together. A
// call need not exist: gRPC's clients also reset calls that they cancel before they have sent the headers.
static enum frames_found reset_charge(struct frames *f)
{
    const struct frames_call *call = call_find(f, f->in.id);
    if (f->in.id == 0) return FRAMES_BAD;
    bool old = call && f->now_us - call->opened_us >= FRAMES_NEW_CALL_US;
    call_remove(f, f->in.id);
    if (old) return FRAMES_OK;
    return --f->resets.left < 0 ? FRAMES_TOO_MANY_RESETS : FRAMES_OK;
}

static enum frames_found sized_charge(struct frames *f, bool sized)
{
    return sized ? empty_charge(f, f->in.size) : FRAMES_BAD;
}

static enum frames_found frame_begin(struct frames *f)
{
    const struct frames_reader *in = &f->in;
    f->pad = f->skip = 0;
    f->pad_pending = f->carries = false;
    if (f->block_id && (in->type != CONTINUATION || in->id != f->block_id)) return FRAMES_BAD;
    if (in->type != DATA && in->size > CONTROL_BYTES_MAX) return FRAMES_BAD;
    switch (in->type) {
    case DATA: return data_begin(f);
    case HEADERS: return headers_begin(f);
    case CONTINUATION: return f->block_id ? empty_charge(f, 0) : FRAMES_BAD;
    case RST_STREAM: return in->size == 4 ? reset_charge(f) : FRAMES_BAD;
    case PRIORITY: return sized_charge(f, in->size == 5);
    case SETTINGS: return sized_charge(f, in->size % 6 == 0 && in->id == 0);
    case PING: return sized_charge(f, in->size == 8 && in->id == 0);
    case WINDOW_UPDATE: return sized_charge(f, in->size == 4);
    case PUSH_PROMISE: return FRAMES_BAD;
    default: return empty_charge(f, in->size); // GOAWAY, and types that C-core ignores
    }
}

static enum frames_found frame_end(struct frames *f)
{
    f->in.head_size = 0;
    f->settled |= f->in.type == SETTINGS;
    if (f->in.type == DATA) return data_end(f);
    bool block = f->in.type == HEADERS || f->in.type == CONTINUATION;
    return block && f->in.flags & END_HEADERS ? block_end(f) : FRAMES_OK;
}

static enum frames_found payload_add(struct frames *f, const uint8_t *bytes, size_t size)
{
    if (f->in.type == DATA)
        data_add(f, bytes, size);
    else if (f->in.type == HEADERS || f->in.type == CONTINUATION)
        return block_add(f, bytes, size);
    return FRAMES_OK;
}

// Reads bytes of the frame's payload and writes to `*taken_p` how many it used.
static enum frames_found payload_take(struct frames *f, const uint8_t *bytes, size_t size, size_t *taken_p)
{
    enum frames_found found = FRAMES_OK;
    if (f->pad_pending) {
        f->pad = bytes[0];
        f->pad_pending = false;
        f->in.left--;
        *taken_p = 1;
        return f->pad + f->skip > f->in.left ? FRAMES_BAD : FRAMES_OK;
    }
    *taken_p = size < f->in.left ? size : f->in.left;
    found = payload_add(f, bytes, *taken_p);
    f->in.left -= (uint32_t)*taken_p;
    return found;
}

static enum frames_found frame_take(struct frames *f, const uint8_t *bytes, size_t size, size_t *taken_p)
{
    enum frames_found found = FRAMES_OK;
    if (f->in.head_size < FRAME_HEAD_BYTES) {
        if (f->in.head_size == 0 && !f->block_id) f->since_us = f->now_us;
        *taken_p = reader_take_head(&f->in, bytes, size);
        if (f->in.head_size < FRAME_HEAD_BYTES) return FRAMES_OK;
        found = frame_begin(f);
    } else {
        found = payload_take(f, bytes, size, taken_p);
    }
    return found == FRAMES_OK && f->in.left == 0 ? frame_end(f) : found;
}

static enum frames_found preface_take(struct frames *f, const uint8_t *bytes, size_t size, size_t *taken_p)
{
    size_t missing = PREFACE_BYTES - f->preface, n = size < missing ? size : missing;
    *taken_p = n;
    if (memcmp(bytes, preface + f->preface, n) != 0) return FRAMES_NOT_HTTP2;
    f->preface += (uint8_t)n;
    return FRAMES_OK;
}

// --- public

void frames_init(struct frames *f, const struct frames_limits *limits, int64_t now_us)
{
    *f = (struct frames){.limits = limits,
                         .held_bytes = FRAMES_CONNECTION_BYTES,
                         .since_us = now_us,
                         .served_id = UINT32_MAX,
                         .credit = limits->free_calls};
    f->empty = (struct frames_allowance){limits->max_empty, now_us};
    f->resets = (struct frames_allowance){limits->max_resets, now_us};
    f->unanswered = (struct frames_allowance){limits->max_unanswered, now_us};
    header_counter_init(&f->headers, limits->max_header_bytes, limits->max_headers);
}

void frames_fini(struct frames *f)
{
    free(f->calls);
}

enum frames_found frames_receive(struct frames *f, const uint8_t *bytes, size_t size, int64_t now_us)
{
    enum frames_found found = FRAMES_OK;
    f->now_us = now_us;
    allowance_refill(&f->empty, f->limits->max_empty, f->limits->empty_per_second, now_us);
    allowance_refill(&f->resets, f->limits->max_resets, f->limits->resets_per_second, now_us);
    allowance_refill(&f->unanswered, f->limits->max_unanswered, f->limits->unanswered_per_second, now_us);
    for (size_t at = 0, taken; at < size && found == FRAMES_OK; at += taken) {
        if (f->preface < PREFACE_BYTES)
            found = preface_take(f, bytes + at, size - at, &taken);
        else
            found = frame_take(f, bytes + at, size - at, &taken);
    }
    return found;
}

// Reads the last stream that the server still serves: the first four bytes of GOAWAY.
static void goaway_add(struct frames *f, const uint8_t *bytes, size_t size)
{
    size_t at = f->out.size - f->out.left;
    for (size_t i = 0; i < size && at + i < sizeof f->goaway_id; i++)
        f->goaway_id = f->goaway_id << 8 | bytes[i];
}

// Removes the calls that the server ignores, because it never ends them.
static void goaway_end(struct frames *f)
{
    if (f->goaway_id < f->served_id) f->served_id = f->goaway_id;
    f->goaway_id = 0;
    for (int i = 0; i < f->n_places;) {
        int n_places = f->n_places;
        uint32_t id = f->calls[i].id;
        if (id > f->served_id) call_remove(f, id); // moves other calls
        if (f->n_places != n_places)
            i = 0;
        else if (id <= f->served_id)
            i++;
    }
}

void frames_send(struct frames *f, const uint8_t *bytes, size_t size)
{
    struct frames_reader *r = &f->out;
    for (size_t at = 0, n; at < size; at += n) {
        if (r->head_size < FRAME_HEAD_BYTES) {
            n = reader_take_head(r, bytes + at, size - at);
            if (r->head_size < FRAME_HEAD_BYTES) return;
        } else {
            n = size - at < r->left ? size - at : r->left;
            if (r->type == GOAWAY) goaway_add(f, bytes + at, n);
            r->left -= (uint32_t)n;
        }
        if (r->left) continue;
        r->head_size = 0;
        f->greeted = true;
        if (r->type == GOAWAY) goaway_end(f);
        bool data = r->type == DATA || r->type == HEADERS;
        if (data || ((r->type == PING || r->type == SETTINGS) && !(r->flags & ACK))) empty_earn(f);
        if (r->type == DATA && r->size) call_answer(f, r->id);
        if (data && r->flags & END_STREAM) reset_earn(f);
        if (r->type == RST_STREAM || (data && r->flags & END_STREAM)) call_remove(f, r->id);
    }
}

size_t frames_goodbye(const struct frames *f, enum frames_found found, uint8_t bytes[FRAMES_GOODBYE_BYTES])
{
    static const uint8_t settings[FRAME_HEAD_BYTES] = {0, 0, 0, SETTINGS};
    enum { PROTOCOL_ERROR = 1, ENHANCE_YOUR_CALM = 11, GOAWAY_BYTES = 8 };
    const char *text = frames_found_name(found);
    const uint32_t last = f->last_id < f->served_id ? f->last_id : f->served_id; // it never rises (RFC 9113, 6.8)
    size_t n = 0, text_bytes = strnlen(text, FRAMES_GOODBYE_BYTES / 2);
    if (f->out.head_size) return 0; // in the middle of a frame
    if (!f->greeted) memcpy(bytes, settings, n = sizeof settings);
    bool malformed = found == FRAMES_NOT_HTTP2 || found == FRAMES_BAD || found == FRAMES_BAD_HEADERS;
    const uint8_t goaway[FRAME_HEAD_BYTES + GOAWAY_BYTES] = {
        [2] = (uint8_t)(GOAWAY_BYTES + text_bytes),
        [3] = GOAWAY,
        [9] = (uint8_t)(last >> 24),
        [10] = (uint8_t)(last >> 16),
        [11] = (uint8_t)(last >> 8),
        [12] = (uint8_t)last,
        [16] = malformed ? PROTOCOL_ERROR : ENHANCE_YOUR_CALM,
    };
    memcpy(bytes + n, goaway, sizeof goaway);
    memcpy(bytes + n + sizeof goaway, text, text_bytes);
    return n + sizeof goaway + text_bytes;
}

int64_t frames_unfinished_since_us(const struct frames *f)
{
    bool data = f->in.head_size == FRAME_HEAD_BYTES && f->in.type == DATA;
    bool unfinished = f->preface < PREFACE_BYTES || f->block_id || (f->in.head_size && !data);
    return unfinished ? f->since_us : INT64_MAX;
}

bool frames_may_pass(const struct frames *f)
{
    return f->settled && frames_unfinished_since_us(f) == INT64_MAX;
}

int64_t frames_take_unpaid(struct frames *f)
{
    int64_t unpaid = f->unpaid;
    f->unpaid = 0;
    return unpaid;
}

size_t frames_held_bytes(const struct frames *f)
{
    return f->held_bytes + f->headers.bytes;
}
