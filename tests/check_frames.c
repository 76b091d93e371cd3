// SPDX-License-Identifier: Apache-2.0
// Tests net/: compares sizes of header blocks with the examples of RFC 7541, appendix C, and checks each limit of
// frames just below and just above it. Frames arrive whole and byte by byte.
#include <stdlib.h>
#include <string.h>

#include "lib/net/frames.h"
#include "tests/suite.h"

// --- header blocks

static enum header_found block_in_pieces(struct header_counter *c, const uint8_t *bytes, size_t size, size_t piece)
{
    enum header_found found = HEADER_OK;
    header_block_start(c);
    for (size_t at = 0; at < size && found == HEADER_OK; at += piece)
        found = header_block_add(c, bytes + at, size - at < piece ? size - at : piece);
    return found == HEADER_OK ? header_block_end(c) : found;
}

// Examples of appendices C.3 to C.6, each with three blocks of one connection. `bytes`: decoded size of the block.
// `table`: bytes in the dynamic table afterwards.
static const struct example {
    const char *hex;
    int headers;
    size_t bytes, table;
    bool first;
} examples[] = {
    {"828684410f7777772e6578616d706c652e636f6d", 4, 180, 57, true}, // C.3.1
    {"828684be58086e6f2d6361636865", 5, 233, 110, false},
    {"828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565", 5, 245, 164, false},
    {"828684418cf1e3c2e5f23a6ba0ab90f4ff", 4, 180, 57, true}, // C.4.1, Huffman-coded
    {"828684be5886a8eb10649cbf", 5, 233, 110, false},
    {"828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf", 5, 245, 164, false},
};

static size_t bytes_of(const char *hex, uint8_t *bytes)
{
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        char digits[3] = {hex[2 * i], hex[2 * i + 1]};
        bytes[i] = (uint8_t)strtoul(digits, NULL, 16);
    }
    return n;
}

START_TEST(examples_of_the_rfc_have_their_sizes)
{
    struct header_counter c;
    uint8_t bytes[100];
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        const struct example *e = &examples[i];
        if (e->first) header_counter_init(&c, 10000, 100);
        size_t n = bytes_of(e->hex, bytes);
        ck_assert_int_eq(block_in_pieces(&c, bytes, n, _i ? (size_t)_i : n), HEADER_OK);
        ck_assert_int_eq(c.n_headers, e->headers);
        ck_assert_uint_eq(c.bytes, e->bytes);
        ck_assert_uint_eq(c.table_bytes, e->table);
    }
}
END_TEST

// Appendix C.5: responses with a table of 256 bytes, which evicts entries.
START_TEST(entries_fall_out_of_a_small_table)
{
    static const struct {
        const char *hex;
        size_t table;
    } blocks[] = {
        {"3fe1014803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d54"
         "6e1768747470733a2f2f7777772e6578616d706c652e636f6d",
         222},
        {"4803333037c1c0bf", 222},
        {"88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f3d4153444a4b48514b"
         "425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b2076657273696f6e3d31",
         215},
    };
    struct header_counter c;
    uint8_t bytes[200];
    header_counter_init(&c, 10000, 100); // the first block sets the table to 256 bytes
    for (size_t i = 0; i < 3; i++) {
        size_t n = bytes_of(blocks[i].hex, bytes);
        ck_assert_int_eq(block_in_pieces(&c, bytes, n, 1), HEADER_OK);
        ck_assert_uint_eq(c.table_bytes, blocks[i].table);
    }
}
END_TEST

static enum header_found found_in(const char *hex, size_t max_bytes, int max_headers)
{
    struct header_counter c;
    uint8_t bytes[200];
    header_counter_init(&c, max_bytes, max_headers);
    return block_in_pieces(&c, bytes, bytes_of(hex, bytes), 1);
}

START_TEST(bad_blocks_are_found)
{
    ck_assert_int_eq(found_in("80", 1000, 10), HEADER_BAD);               // index 0
    ck_assert_int_eq(found_in("be", 1000, 10), HEADER_BAD);               // no such entry
    ck_assert_int_eq(found_in("7f80808080808000", 1000, 10), HEADER_BAD); // a number without end
    ck_assert_int_eq(found_in("8220", 1000, 10), HEADER_BAD);             // an update after a header
    ck_assert_int_eq(found_in("202020", 1000, 10), HEADER_BAD);           // three updates
    ck_assert_int_eq(found_in("3fe21f", 1000, 10), HEADER_BAD);           // a table of 4,097 bytes
    ck_assert_int_eq(found_in("3fe11f", 1000, 10), HEADER_OK);            // a table of 4,096 bytes
    ck_assert_int_eq(found_in("0001610161", 1000, 10), HEADER_OK);        // a: a
    ck_assert_int_eq(found_in("00016101", 1000, 10), HEADER_BAD);         // the value is missing
    ck_assert_int_eq(found_in("00016184ffffffff", 1000, 10), HEADER_BAD); // the end-of-string code inside the string
    ck_assert_int_eq(found_in("00016181fe", 1000, 10), HEADER_BAD);       // padding with a zero
}
END_TEST

START_TEST(blocks_are_bounded)
{
    ck_assert_int_eq(found_in("0001610161", 34, 1), HEADER_OK);
    ck_assert_int_eq(found_in("0001610161", 33, 1), HEADER_TOO_LARGE);
    ck_assert_int_eq(found_in("8282", 84, 2), HEADER_OK);
    ck_assert_int_eq(found_in("8282", 83, 2), HEADER_TOO_LARGE);
    ck_assert_int_eq(found_in("8282", 84, 1), HEADER_TOO_MANY);
    ck_assert_int_eq(found_in("000161ffffff7f", 1000, 10), HEADER_TOO_LARGE); // refused before the string arrives
}
END_TEST

// --- frames

enum { MAX_CALLS = 4, HEADER_BYTES = 200, HEADERS = 5, EMPTY = 20, RESETS = 3, UNANSWERED = 50, FREE = 4 };
static const struct frames_limits limits = {MAX_CALLS, HEADER_BYTES, HEADERS, EMPTY, 1, RESETS, 1, UNANSWERED, 1, FREE};

static struct frames f;
static int64_t now_us;

static void setup(void)
{
    now_us = 1000000;
    frames_init(&f, &limits, now_us);
}

static void teardown(void)
{
    frames_fini(&f);
}

static size_t piece; // size of the pieces in which bytes arrive; 0: whole

static enum frames_found receive(const void *bytes, size_t size)
{
    enum frames_found found = FRAMES_OK;
    size_t step = piece ? piece : size;
    for (size_t at = 0; at < size && found == FRAMES_OK; at += step)
        found = frames_receive(&f, (const uint8_t *)bytes + at, size - at < step ? size - at : step, now_us);
    return found;
}

enum { DATA, HEADERS_FRAME, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION };
enum { END_STREAM = 1, END_HEADERS = 4, PADDED = 8, WITH_PRIORITY = 0x20 };

static size_t frame_write(uint8_t *to, int type, int flags, uint32_t id, const void *payload, size_t size)
{
    const uint8_t head[9] = {(uint8_t)(size >> 16), (uint8_t)(size >> 8), (uint8_t)size,
                             (uint8_t)type,         (uint8_t)flags,       (uint8_t)(id >> 24),
                             (uint8_t)(id >> 16),   (uint8_t)(id >> 8),   (uint8_t)id};
    memcpy(to, head, sizeof head);
    if (size) memcpy(to + sizeof head, payload, size);
    return sizeof head + size;
}

static enum frames_found frame(int type, int flags, uint32_t id, const void *payload, size_t size)
{
    static uint8_t bytes[70000];
    return receive(bytes, frame_write(bytes, type, flags, id, payload, size));
}

static void sent(int type, int flags, uint32_t id, size_t size)
{
    static uint8_t bytes[70000], zeros[60000];
    size_t n = frame_write(bytes, type, flags, id, zeros, size);
    for (size_t at = 0; at < n; at++)
        frames_send(&f, bytes + at, 1);
}

static void greet(void)
{
    ck_assert_int_eq(receive("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24), FRAMES_OK);
    ck_assert_int_eq(frame(SETTINGS, 0, 0, NULL, 0), FRAMES_OK);
}

static enum frames_found call(uint32_t id)
{
    return frame(HEADERS_FRAME, END_HEADERS, id, "\x82", 1); // one header of 42 bytes
}

#define OK(expression) ck_assert_int_eq(expression, FRAMES_OK)

START_TEST(another_protocol_is_refused)
{
    piece = (size_t)_i;
    ck_assert_int_eq(receive("GET / HTTP/1.1\r\n\r\n", 18), FRAMES_NOT_HTTP2);
}
END_TEST

START_TEST(concurrent_calls_are_bounded)
{
    piece = (size_t)_i;
    greet();
    for (uint32_t i = 0; i < MAX_CALLS; i++)
        OK(call(2 * i + 1));
    sent(HEADERS_FRAME, 0, 1, 10);
    sent(DATA, END_STREAM, 1, 30000); // the server ends a call
    OK(call(101));
    OK(frame(RST_STREAM, 0, 3, "\0\0\0\0", 4)); // the client resets a call
    OK(call(103));
    sent(RST_STREAM, 0, 5, 4); // the server resets a call
    OK(call(105));
    ck_assert_int_eq(call(107), FRAMES_TOO_MANY_CALLS);
}
END_TEST

// A server that goes away ignores later calls without ending them. They must not count for ever.
START_TEST(calls_after_goaway_are_not_counted)
{
    static const uint8_t all[8] = {0x7f, 0xff, 0xff, 0xff}, third[8] = {0, 0, 0, 3};
    uint8_t bytes[32];
    piece = (size_t)_i;
    greet();
    OK(call(1));
    OK(call(3));
    frames_send(&f, bytes, frame_write(bytes, GOAWAY, 0, 0, all, sizeof all)); // the first of two
    OK(call(5));
    ck_assert_int_eq(f.n_calls, 3);
    size_t size = frame_write(bytes, GOAWAY, 0, 0, third, sizeof third);
    for (size_t i = 0; i < size; i++)
        frames_send(&f, bytes + i, 1);
    ck_assert_int_eq(f.n_calls, 2);
    for (uint32_t i = 0; i < 2 * MAX_CALLS; i++)
        OK(call(2 * i + 7));
    ck_assert_int_eq(f.n_calls, 2);
    sent(HEADERS_FRAME, END_STREAM, 1, 3);
    sent(HEADERS_FRAME, END_STREAM, 3, 3);
    ck_assert_uint_eq(frames_held_bytes(&f), FRAMES_CONNECTION_BYTES);
    uint8_t goodbye[FRAMES_GOODBYE_BYTES];
    frames_goodbye(&f, FRAMES_TOO_MANY_CALLS, goodbye);
    ck_assert_uint_eq(goodbye[12], 3); // the last stream id of GOAWAY never rises
}
END_TEST

START_TEST(headers_are_bounded_over_continuations)
{
    piece = (size_t)_i;
    static const uint8_t name[] = "\x00\x01x\x7f\x00"; // x, and a value of 127 bytes: 160 bytes
    uint8_t value[128];
    memset(value, 'v', sizeof value);
    greet();
    OK(frame(HEADERS_FRAME, 0, 1, "\x00\x01x\x7f\x01", 5)); // 128 bytes: 161 with the name and 32
    OK(frame(CONTINUATION, 0, 1, value, 64));
    OK(frame(CONTINUATION, END_HEADERS, 1, value, 64));
    OK(frame(HEADERS_FRAME, 0, 3, name, 5));
    OK(frame(CONTINUATION, 0, 3, value, 127));
    ck_assert_int_eq(frame(CONTINUATION, END_HEADERS, 3, "\x00\x01x\x08", 4), FRAMES_HEADERS_TOO_LARGE); // 201
}
END_TEST

START_TEST(a_block_of_the_largest_size_passes)
{
    piece = (size_t)_i;
    uint8_t value[128];
    memset(value, 'v', sizeof value);
    greet();
    OK(frame(HEADERS_FRAME, 0, 3, "\x00\x01x\x7f\x00", 5));
    OK(frame(CONTINUATION, 0, 3, value, 127));
    OK(frame(CONTINUATION, END_HEADERS, 3,
             "\x00\x01x\x07"
             "1234567",
             11)); // 200
    for (int i = 0; i < HEADERS; i++)
        OK(frame(i ? CONTINUATION : HEADERS_FRAME, i + 1 == HEADERS ? END_HEADERS : 0, 5, "\x00\x00\x00", 3));
    for (int i = 0; i < HEADERS; i++)
        OK(frame(i ? CONTINUATION : HEADERS_FRAME, 0, 7, "\x00\x00\x00", 3));
    ck_assert_int_eq(frame(CONTINUATION, 0, 7, "\x00\x00\x00", 3), FRAMES_TOO_MANY_HEADERS);
}
END_TEST

// Frames that carry nothing. `size` is the size of the payload, `stream` is 0 or 1.
static const struct {
    int type, flags;
    size_t size;
    uint32_t stream;
} empties[] = {{PING, 0, 8, 0},   {SETTINGS, 0, 0, 0}, {WINDOW_UPDATE, 0, 4, 1}, {PRIORITY, 0, 5, 1}, {DATA, 0, 0, 1},
               {GOAWAY, 0, 8, 0}, {0x30, 0, 3, 0},     {DATA, PADDED, 1, 1},     {DATA, PADDED, 5, 1}};

START_TEST(frames_that_carry_nothing_are_bounded)
{
    piece = (size_t)_i;
    static const uint8_t padding[8] = {4};
    for (size_t kind = 0; kind < sizeof empties / sizeof *empties; kind++) {
        greet();     // takes one empty frame from the allowance
        OK(call(1)); // adds four empty frames
        f.empty.left = EMPTY;
        for (int i = 0; i < EMPTY; i++)
            OK(frame(empties[kind].type, empties[kind].flags, empties[kind].stream,
                     empties[kind].size == 1 ? (const uint8_t *)"\0" : padding, empties[kind].size));
        now_us += 1000000; // adds one empty frame
        OK(frame(PING, 0, 0, "12345678", 8));
        sent(DATA, 0, 1, 5); // adds four empty frames
        for (int i = 0; i < 4; i++)
            OK(frame(PING, 0, 0, "12345678", 8));
        ck_assert_int_eq(frame(empties[kind].type, empties[kind].flags, empties[kind].stream,
                               empties[kind].size == 1 ? (const uint8_t *)"\0" : padding, empties[kind].size),
                         FRAMES_TOO_MANY_EMPTY);
        teardown();
        setup();
    }
}
END_TEST

START_TEST(empty_continuations_are_bounded)
{
    piece = (size_t)_i;
    greet();
    f.empty.left = EMPTY;
    OK(frame(HEADERS_FRAME, 0, 1, "\x82", 1));
    for (int64_t left = f.empty.left; left > 0; left--)
        OK(frame(CONTINUATION, 0, 1, NULL, 0));
    ck_assert_int_eq(frame(CONTINUATION, 0, 1, NULL, 0), FRAMES_TOO_MANY_EMPTY);
}
END_TEST

START_TEST(resets_are_bounded)
{
    piece = (size_t)_i;
    greet();
    for (uint32_t i = 0; i < RESETS; i++) {
        OK(call(2 * i + 1));
        OK(frame(RST_STREAM, 0, 2 * i + 1, "\0\0\0\0", 4));
    }
    OK(call(101));
    sent(HEADERS_FRAME, END_STREAM, 101, 3); // a call that the server ends allows another reset
    OK(call(103));
    OK(frame(RST_STREAM, 0, 105, "\0\0\0\0", 4)); // the client resets a call that it never opened
    ck_assert_int_eq(frame(RST_STREAM, 0, 103, "\0\0\0\0", 4), FRAMES_TOO_MANY_RESETS);
}
END_TEST

// A client may reset many calls at once if none of them is new.
START_TEST(old_calls_may_be_reset)
{
    piece = (size_t)_i;
    greet();
    for (uint32_t i = 0; i < MAX_CALLS; i++)
        OK(call(2 * i + 1));
    f.resets.left = 0;
    now_us += FRAMES_NEW_CALL_US;
    for (uint32_t i = 0; i + 1 < MAX_CALLS; i++)
        OK(frame(RST_STREAM, 0, 2 * i + 1, "\0\0\0\0", 4));
    f.resets.left = 0;
    OK(call(101));
    now_us += FRAMES_NEW_CALL_US - 1;
    f.resets = (struct frames_allowance){0, now_us};
    ck_assert_int_eq(frame(RST_STREAM, 0, 101, "\0\0\0\0", 4), FRAMES_TOO_MANY_RESETS);
}
END_TEST

// The server ends several calls together, and the client resets its side of each.
START_TEST(every_ended_call_may_be_reset)
{
    piece = (size_t)_i;
    greet();
    for (uint32_t i = 0; i < MAX_CALLS; i++)
        OK(call(2 * i + 1));
    for (uint32_t i = 0; i < MAX_CALLS; i++)
        sent(HEADERS_FRAME, END_STREAM, 2 * i + 1, 3);
    for (uint32_t i = 0; i < MAX_CALLS; i++)
        OK(frame(RST_STREAM, 0, 2 * i + 1, "\0\0\0\0", 4));
    for (uint32_t i = MAX_CALLS; i < MAX_CALLS + RESETS; i++) {
        OK(call(2 * i + 1));
        OK(frame(RST_STREAM, 0, 2 * i + 1, "\0\0\0\0", 4));
    }
    OK(call(1001));
    ck_assert_int_eq(frame(RST_STREAM, 0, 1001, "\0\0\0\0", 4), FRAMES_TOO_MANY_RESETS);
}
END_TEST

// Opens a call that the server ends with a status, after a message or without one.
static enum frames_found call_ended(uint32_t id, bool answered)
{
    enum frames_found found = call(id);
    sent(HEADERS_FRAME, 0, id, 3);
    if (answered) sent(DATA, 0, id, 10);
    sent(HEADERS_FRAME, END_STREAM, id, 3);
    return found;
}

START_TEST(calls_without_an_answer_are_bounded)
{
    piece = (size_t)_i;
    uint32_t id = 1;
    greet();
    for (int i = 0; i < 3 * UNANSWERED; i++, id += 2)
        OK(call_ended(id, true)); // does not count
    for (int i = 0; i < UNANSWERED - 1; i++, id += 2)
        OK(call_ended(id, false));
    now_us += 1000000; // allows one more
    OK(call_ended(id, false));
    OK(call(id + 2));
    ck_assert_int_eq(call(id + 4), FRAMES_TOO_MANY_UNANSWERED);
}
END_TEST

START_TEST(some_calls_are_free)
{
    piece = (size_t)_i;
    greet();
    for (uint32_t i = 0; i < FREE; i++)
        OK(call_ended(2 * i + 1, false));
    ck_assert_int_eq(frames_take_unpaid(&f), 0);
    OK(call(101));
    OK(call(103));
    ck_assert_int_eq(frames_take_unpaid(&f), 2);
    ck_assert_int_eq(frames_take_unpaid(&f), 0);
    sent(DATA, END_STREAM, 101, 1); // allows two calls: the next and one more
    OK(call_ended(105, false));
    OK(call_ended(107, false));
    ck_assert_int_eq(frames_take_unpaid(&f), 0);
    OK(call(109));
    ck_assert_int_eq(frames_take_unpaid(&f), 1);
    f.credit = UNANSWERED - 1;
    sent(DATA, END_STREAM, 109, 1);
    ck_assert_int_eq(f.credit, UNANSWERED);
}
END_TEST

START_TEST(large_headers_cost_more_calls)
{
    uint8_t block[3 + 3 + 2000] = {0, 1, 'x', 127, ((2000 - 127) & 127) | 128, (2000 - 127) >> 7};
    piece = (size_t)_i;
    greet();
    f.headers.max_bytes = 8000;
    f.unanswered.left = 3; // a header of 2,033 bytes takes two, one of 2,048 bytes three
    OK(frame(HEADERS_FRAME, END_HEADERS, 1, block, sizeof block));
    ck_assert_int_eq(f.unanswered.left, 1);
    sent(DATA, 0, 1, 1);
    sent(DATA, 0, 1, 1); // only the first message of a call returns its cost
    ck_assert_int_eq(f.unanswered.left, 3);
    block[4] += 15;
    uint8_t larger[sizeof block + 15] = {0};
    memcpy(larger, block, sizeof block);
    OK(frame(HEADERS_FRAME, END_HEADERS, 3, larger, sizeof larger));
    ck_assert_int_eq(f.unanswered.left, 0);
}
END_TEST

static void expect_bad(int type, int flags, uint32_t id, const void *payload, size_t size)
{
    greet();
    OK(call(1));
    ck_assert_int_eq(frame(type, flags, id, payload, size), FRAMES_BAD);
    teardown();
    setup();
}

START_TEST(malformed_frames_are_refused)
{
    static const uint8_t zeros[20000];
    piece = (size_t)_i;
    expect_bad(HEADERS_FRAME, END_HEADERS, 2, "\x82", 1);
    expect_bad(HEADERS_FRAME, END_HEADERS, 0, "\x82", 1);
    expect_bad(HEADERS_FRAME, END_HEADERS | PADDED, 3, "\x05\x82", 2);
    expect_bad(HEADERS_FRAME, END_HEADERS | PADDED, 3, NULL, 0);
    expect_bad(HEADERS_FRAME, END_HEADERS | PADDED, 3, "\x01\x82\0", 3); // C-core would read the padding as headers
    expect_bad(HEADERS_FRAME, END_HEADERS | WITH_PRIORITY, 3, zeros, 4);
    expect_bad(HEADERS_FRAME, END_HEADERS | WITH_PRIORITY | PADDED, 3, "\x01\0\0\0\0\0", 6);
    expect_bad(HEADERS_FRAME, END_HEADERS, 3, zeros, 16385);
    expect_bad(CONTINUATION, END_HEADERS, 1, "\x82", 1);
    expect_bad(DATA, 0, 3, "x", 1);
    expect_bad(DATA, PADDED, 1, "\x02x", 2);
    expect_bad(PING, 0, 0, zeros, 7);
    expect_bad(SETTINGS, 0, 0, zeros, 5);
    expect_bad(WINDOW_UPDATE, 0, 1, zeros, 5);
    expect_bad(RST_STREAM, 0, 1, zeros, 5);
    expect_bad(PRIORITY, 0, 1, zeros, 4);
    expect_bad(PUSH_PROMISE, 0, 1, zeros, 8);
    expect_bad(0x40, 0, 1, zeros, 16385);
    greet();
    OK(frame(HEADERS_FRAME, 0, 1, "\x82", 1));
    ck_assert_int_eq(frame(PING, 0, 0, zeros, 8), FRAMES_BAD); // within a header block
}
END_TEST

START_TEST(what_a_connection_holds_is_known)
{
    piece = (size_t)_i;
    greet();
    ck_assert_uint_eq(frames_held_bytes(&f), FRAMES_CONNECTION_BYTES);
    OK(frame(HEADERS_FRAME, 0, 1, "\x82", 1));
    ck_assert_uint_eq(frames_held_bytes(&f), FRAMES_CONNECTION_BYTES + FRAMES_CALL_BYTES + 42);
    OK(frame(CONTINUATION, END_HEADERS, 1, NULL, 0));
    size_t call_bytes = FRAMES_CONNECTION_BYTES + FRAMES_CALL_BYTES + 42;
    ck_assert_uint_eq(frames_held_bytes(&f), call_bytes);
    OK(frame(DATA, 0, 1, "\0\0\0\0\x0Ahello", 10)); // five bytes of ten
    ck_assert_uint_eq(frames_held_bytes(&f), call_bytes + 5);
    OK(frame(DATA, PADDED, 1, "\x03worldxyz", 9));
    ck_assert_uint_eq(frames_held_bytes(&f), call_bytes);
    OK(frame(DATA, 0, 1, "\0\0\0\0\0\0\0\0\0\x02x", 11)); // an empty message, and half of another
    ck_assert_uint_eq(frames_held_bytes(&f), call_bytes + 1);
    sent(HEADERS_FRAME, END_STREAM, 1, 0);
    ck_assert_uint_eq(frames_held_bytes(&f), FRAMES_CONNECTION_BYTES);
    OK(frame(DATA, END_STREAM, 1, "x", 1)); // sent before the client knew of the end
}
END_TEST

START_TEST(unfinished_parts_have_an_age)
{
    piece = 1;
    ck_assert_int_eq(frames_unfinished_since_us(&f), now_us);
    greet();
    ck_assert_int_eq(frames_unfinished_since_us(&f), INT64_MAX);
    now_us = 2000000;
    OK(receive("\0\0", 2));
    now_us = 3000000;
    OK(receive("\1\1\0\0\0\0\1\x82", 8)); // HEADERS without their end
    ck_assert_int_eq(frames_unfinished_since_us(&f), 2000000);
    OK(frame(CONTINUATION, END_HEADERS, 1, NULL, 0));
    ck_assert_int_eq(frames_unfinished_since_us(&f), INT64_MAX);
    now_us = 4000000;
    OK(frame(HEADERS_FRAME, 0, 3, "\x82", 1));
    ck_assert_int_eq(frames_unfinished_since_us(&f), 4000000);
    OK(frame(CONTINUATION, END_HEADERS, 3, NULL, 0));
    OK(receive("\0\0\5\0\0\0\0\0\1x", 10)); // DATA may come slowly
    ck_assert_int_eq(frames_unfinished_since_us(&f), INT64_MAX);
}
END_TEST

// Opens many calls and ends them in another order.
START_TEST(the_table_of_calls_keeps_all)
{
    piece = (size_t)_i;
    enum { CALLS = 3000 };
    static const struct frames_limits wide = {CALLS, HEADER_BYTES, HEADERS, 100000, 1, 100000, 1, 100000, 1, FREE};
    f.limits = &wide;
    f.empty.left = f.resets.left = f.unanswered.left = 100000;
    greet();
    for (uint32_t i = 0; i < CALLS; i++)
        OK(call(2 * i + 1));
    for (uint32_t i = 0; i < CALLS; i++)
        sent(RST_STREAM, 0, 2 * (i * 7 % CALLS) + 1, 4);
    ck_assert_int_eq(f.n_calls, 0);
    ck_assert_uint_eq(frames_held_bytes(&f), FRAMES_CONNECTION_BYTES);
    ck_assert_int_le(f.n_places, 16);
}
END_TEST

START_TEST(a_goodbye_comes_between_frames_only)
{
    piece = (size_t)_i;
    uint8_t bytes[FRAMES_GOODBYE_BYTES];
    greet();
    OK(call(1));
    size_t first = frames_goodbye(&f, FRAMES_TOO_MANY_CALLS, bytes);
    ck_assert_uint_eq(first, 9 + 9 + 8 + strlen(frames_found_name(FRAMES_TOO_MANY_CALLS)));
    ck_assert_uint_eq(bytes[3], SETTINGS);
    ck_assert_uint_eq(bytes[9 + 3], GOAWAY);
    ck_assert_uint_eq(bytes[9 + 12], 1); // the last call
    sent(SETTINGS, 0, 0, 6);
    ck_assert_uint_eq(frames_goodbye(&f, FRAMES_TOO_MANY_CALLS, bytes), first - 9);
    frames_send(&f, (const uint8_t *)"\0\0\5", 3);
    ck_assert_uint_eq(frames_goodbye(&f, FRAMES_TOO_MANY_CALLS, bytes), 0);
    for (int i = FRAMES_OK; i <= FRAMES_TOO_MANY_UNANSWERED; i++)
        ck_assert_uint_le(9 + 9 + 8 + strlen(frames_found_name((enum frames_found)i)), FRAMES_GOODBYE_BYTES);
}
END_TEST

SUITE("frames")
{
    TCASE("headers");
    LOOP(examples_of_the_rfc_have_their_sizes, 0, 4);
    TEST(entries_fall_out_of_a_small_table);
    TEST(bad_blocks_are_found);
    TEST(blocks_are_bounded);

    TCASE("frames");
    FIXTURE(setup, teardown);
    LOOP(another_protocol_is_refused, 0, 2);
    LOOP(concurrent_calls_are_bounded, 0, 2);
    LOOP(headers_are_bounded_over_continuations, 0, 2);
    LOOP(a_block_of_the_largest_size_passes, 0, 2);
    LOOP(frames_that_carry_nothing_are_bounded, 0, 2);
    LOOP(empty_continuations_are_bounded, 0, 2);
    LOOP(calls_after_goaway_are_not_counted, 0, 2);
    LOOP(resets_are_bounded, 0, 2);
    LOOP(old_calls_may_be_reset, 0, 2);
    LOOP(every_ended_call_may_be_reset, 0, 2);
    LOOP(calls_without_an_answer_are_bounded, 0, 2);
    LOOP(some_calls_are_free, 0, 2);
    LOOP(large_headers_cost_more_calls, 0, 2);
    LOOP(malformed_frames_are_refused, 0, 2);
    LOOP(what_a_connection_holds_is_known, 0, 2);
    TEST(unfinished_parts_have_an_age);
    TEST(the_table_of_calls_keeps_all);
    LOOP(a_goodbye_comes_between_frames_only, 0, 2);
}
