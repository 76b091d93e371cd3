// SPDX-License-Identifier: Apache-2.0
// Bytes that a stranger or a follower sends to the leader of a group over several hosts, and a leader to a follower.
// Input: a byte, whose lowest bit says that frames have a MAC, and then the bytes of the connection. Checks that frames
// lie within the bytes and do not depend on where the bytes are cut, that a greeting is written as it was read, and
// that a command that is accepted has only words of the payload and only settings.
#include "engine/join_messages.h"
#include "tests/fuzz/fuzz.h"

static void check_hello(const struct join_frame *frame)
{
    struct join_hello hello;
    uint8_t again[JOIN_GREETING_MAX];
    if (join_hello_read(frame->payload, frame->n, &hello) != STATUS_OK) return;
    FUZZ_CHECK(join_hello_write(&hello, again) == frame->n);
    FUZZ_CHECK(memcmp(again, frame->payload, frame->n) == 0);
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

static void check_command(const struct join_frame *frame)
{
    static const char *words[JOIN_WORDS_MAX + 1];
    const char *start = (const char *)frame->payload, *end = start + frame->n;
    size_t n = 0;
    if (join_command_read(frame->payload, frame->n, words) != STATUS_OK) return;
    FUZZ_CHECK(strcmp(words[0], "orted") == 0);
    for (; words[n]; n++) {
        FUZZ_CHECK(words[n] >= start && words[n] < end);
        FUZZ_CHECK(memchr(words[n], 0, (size_t)(end - words[n])));
    }
    FUZZ_CHECK(n % 3 == 1);
    for (size_t i = 1; i < n; i += 3) {
        FUZZ_CHECK(strcmp(words[i], "-mca") == 0 || strcmp(words[i], "--mca") == 0);
        FUZZ_CHECK(!ends_with(words[i + 1], "component_path") && !ends_with(words[i + 1], "launch_agent"));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_script script = {data, size};
    const bool has_mac = fuzz_byte(&script) & 1;
    const size_t limit = has_mac ? JOIN_FRAME_MAX : JOIN_GREETING_MAX, mac_bytes = has_mac ? JOIN_MAC_BYTES : 0;
    struct join_frame frame, cut;
    size_t used, used_cut;
    while (join_frame_read(script.at, script.left, limit, mac_bytes, &frame, &used) == JOIN_WHOLE) {
        FUZZ_CHECK(used <= script.left && used >= JOIN_HEAD_BYTES + mac_bytes);
        FUZZ_CHECK(frame.payload == script.at + JOIN_HEAD_BYTES && JOIN_HEAD_BYTES + frame.n + mac_bytes == used);
        FUZZ_CHECK(join_frame_read(script.at, used - 1, limit, mac_bytes, &cut, &used_cut) == JOIN_PARTIAL);
        FUZZ_CHECK(join_frame_read(script.at, used, limit, mac_bytes, &cut, &used_cut) == JOIN_WHOLE);
        if (frame.type == JOIN_HELLO) check_hello(&frame);
        if (frame.type == JOIN_START) check_command(&frame);
        fuzz_part(&script, used);
    }
    return 0;
}
