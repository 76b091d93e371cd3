// SPDX-License-Identifier: Apache-2.0
// The messages between the hosts of a group: frames, greetings, the command that a follower may start, proofs.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "engine/join_link.h"
#include "lib/base/mem.h"
#include "tests/suite.h"

static enum join_reading read_frame(const uint8_t *bytes, size_t n, size_t mac_bytes)
{
    struct join_frame frame;
    size_t used;
    return join_frame_read(bytes, n, JOIN_GREETING_MAX, mac_bytes, &frame, &used);
}

START_TEST(a_frame_is_read_once_it_is_whole)
{
    uint8_t bytes[] = {0, 0, 0, 0, 0, 'a', 'b'};
    struct join_frame frame;
    size_t used;
    join_head_write(bytes, JOIN_FAILED, 2, 0);
    for (size_t n = 0; n < sizeof bytes; n++)
        ck_assert_int_eq(read_frame(bytes, n, 0), JOIN_PARTIAL);
    ck_assert_int_eq(join_frame_read(bytes, sizeof bytes, JOIN_GREETING_MAX, 0, &frame, &used), JOIN_WHOLE);
    ck_assert_uint_eq(used, sizeof bytes);
    ck_assert_int_eq(frame.type, JOIN_FAILED);
    ck_assert_uint_eq(frame.n, 2);
    ck_assert_mem_eq(frame.payload, "ab", 2);
}
END_TEST

static const struct {
    uint8_t head[5];
    size_t mac_bytes;
} bad_frames[] = {
    {{0, 0, 0, 0, 1}, 0},                // empty
    {{0, 0, 2, 1, 1}, 0},                // longer than the limit
    {{0xff, 0xff, 0xff, 0xff, 1}, 0},    // as long as can be
    {{0, 0, 0, 32, 1}, JOIN_MAC_BYTES},  // too short for its MAC
    {{0, 0, 0, 1, 0}, 0},                // no type
    {{0, 0, 0, 1, JOIN_ENDED + 1}, 0},   // unknown type
    {{'G', 'E', 'T', ' ', '/'}, 0},      // another protocol
    {{0x16, 0x03, 0x01, 0x02, 0x00}, 0}, // TLS
};

START_TEST(a_bad_frame_is_refused_by_its_head)
{
    ck_assert_int_eq(read_frame(bad_frames[_i].head, 5, bad_frames[_i].mac_bytes), JOIN_BAD);
}
END_TEST

static size_t greeting(uint8_t payload[JOIN_GREETING_MAX])
{
    struct join_hello hello = {.nonce = {1, 2, 3}, .version = "1.2.3", .host = "a host"};
    return join_hello_write(&hello, payload);
}

START_TEST(a_greeting_is_read_as_it_was_written)
{
    uint8_t payload[JOIN_GREETING_MAX];
    struct join_hello hello;
    ck_assert_int_eq(join_hello_read(payload, greeting(payload), &hello), STATUS_OK);
    ck_assert_str_eq(hello.version, "1.2.3");
    ck_assert_str_eq(hello.host, "a?host");
    ck_assert_uint_eq(hello.nonce[2], 3);
}
END_TEST

START_TEST(a_greeting_that_is_cut_longer_or_not_text_is_refused)
{
    uint8_t payload[JOIN_GREETING_MAX];
    struct join_hello hello;
    const size_t n = greeting(payload);
    for (size_t cut = 0; cut < n; cut++)
        ck_assert_int_eq(join_hello_read(payload, cut, &hello), STATUS_INVALID);
    payload[n] = 0;
    ck_assert_int_eq(join_hello_read(payload, n + 1, &hello), STATUS_INVALID);
    payload[n - 1] = '\n';
    ck_assert_int_eq(join_hello_read(payload, n, &hello), STATUS_INVALID);
    greeting(payload);
    payload[36] = 255; // length of the version
    ck_assert_int_eq(join_hello_read(payload, n, &hello), STATUS_INVALID);
}
END_TEST

#define COMMAND(text) join_command_read((const uint8_t *)(text), sizeof(text) - 1, words)

START_TEST(the_command_of_mpirun_is_accepted_without_what_a_follower_ignores)
{
    const char *words[JOIN_WORDS_MAX + 1];
    ck_assert_int_eq(
        COMMAND("orted\0--daemonize\0-mca\0ess\0env\0--mca\0btl_tcp_if_include\0eth0\0-mca\0plm_rsh_agent\0"
                "/tmp/a b\0-mca\0orte_hnp_uri\0001.0;tcp://10.0.0.1:1\0"),
        STATUS_OK);
    static const char *const expected[] = {"orted",        "-mca",
                                           "ess",          "env",
                                           "--mca",        "btl_tcp_if_include",
                                           "eth0",         "-mca",
                                           "orte_hnp_uri", "1.0;tcp://10.0.0.1:1"};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        ck_assert_str_eq(words[i], expected[i]);
    ck_assert_ptr_null(words[sizeof expected / sizeof *expected]);
}
END_TEST

#define REFUSED(text)                                                                                                  \
    {                                                                                                                  \
        text, sizeof(text) - 1                                                                                         \
    }
static const struct {
    const char *text;
    size_t n;
} refused_commands[] = {
    REFUSED(""),
    REFUSED("orted"), // no NUL
    REFUSED("sh\0-c\0id\0"),
    REFUSED("/tmp/orted\0"),
    REFUSED("orted \0"),
    REFUSED("orted\0-x\0LD_PRELOAD=/tmp/a.so\0"),
    REFUSED("orted\0-mca\0ess\0"), // no value
    REFUSED("orted\0-mca\0"),
    REFUSED("orted\0-mca\0mca_base_component_path\0/tmp\0"),
    REFUSED("orted\0-mca\0orte_launch_agent\0/tmp/a\0"),
    REFUSED("orted\0-mca\0orte_fork_agent\0/tmp/a\0"),
    REFUSED("orted\0-mca\0opal_prefix\0/tmp\0"),
    REFUSED("orted\0-mca\0ess/../x\0env\0"),
    REFUSED("orted\0-mca\0ess\0env\n\0"),
};

START_TEST(any_other_command_is_refused)
{
    const char *words[JOIN_WORDS_MAX + 1];
    ck_assert_int_eq(join_command_read((const uint8_t *)refused_commands[_i].text, refused_commands[_i].n, words),
                     STATUS_INVALID);
}
END_TEST

START_TEST(a_command_of_too_many_words_is_refused)
{
    static uint8_t text[2 * (JOIN_WORDS_MAX + 1)];
    const char *words[JOIN_WORDS_MAX + 1];
    for (size_t i = 0; i < sizeof text; i += 2)
        text[i] = 'a';
    ck_assert_int_eq(join_command_read(text, sizeof text, words), STATUS_INVALID);
    ck_assert_str_eq(status_message(), "the leader's command is malformed");
}
END_TEST

static struct join_keys keys_of(const char *token, const char *follower, const char *leader, uint8_t session)
{
    const uint8_t sessions[JOIN_MAC_BYTES] = {session};
    struct join_keys keys;
    ck_assert_int_eq(join_keys_derive(token, (struct join_bytes){(const uint8_t *)follower, strlen(follower)},
                                      (struct join_bytes){(const uint8_t *)leader, strlen(leader)}, sessions, &keys),
                     STATUS_OK);
    return keys;
}

START_TEST(proofs_differ_by_token_greetings_session_and_side)
{
    const struct join_keys keys = keys_of("token", "ab", "c", 0);
    const struct join_keys others[] = {keys_of("tokem", "ab", "c", 0), keys_of("token", "a", "bc", 0),
                                       keys_of("token", "c", "ab", 0), keys_of("token", "ab", "c", 1)};
    ck_assert(!join_mac_equal(keys.follower_proof, keys.leader_proof));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        ck_assert(!join_mac_equal(keys.follower_proof, others[i].follower_proof));
    const struct join_keys again = keys_of("token", "ab", "c", 0);
    ck_assert(join_mac_equal(keys.follower_proof, again.follower_proof));
}
END_TEST

static struct join_link a, b;

static void setup(void)
{
    int fds[2];
    const struct join_keys keys = keys_of("token", "ab", "c", 0);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    join_link_open(&a, fds[0], NULL);
    join_link_open(&b, fds[1], NULL);
    join_link_use_keys(&a, keys.leader_frames, keys.follower_frames);
    join_link_use_keys(&b, keys.follower_frames, keys.leader_frames);
}

static void teardown(void)
{
    join_link_close(&a);
    join_link_close(&b);
}

static enum status receive(struct join_frame *frame)
{
    bool whole = false;
    ck_assert_int_eq(join_link_read(&b), STATUS_OK);
    enum status status = join_link_next(&b, frame, &whole);
    ck_assert(whole);
    return status;
}

START_TEST(a_frame_with_the_right_mac_arrives)
{
    struct join_frame frame;
    ck_assert_int_eq(join_link_send(&a, JOIN_START, (struct join_bytes){(const uint8_t *)"orted", 6}), STATUS_OK);
    ck_assert_int_eq(receive(&frame), STATUS_OK);
    ck_assert_str_eq((const char *)frame.payload, "orted");
}
END_TEST

START_TEST(a_frame_that_is_sent_again_is_refused)
{
    struct join_frame frame;
    ck_assert_int_eq(join_link_send(&a, JOIN_START, (struct join_bytes){(const uint8_t *)"orted", 6}), STATUS_OK);
    ck_assert_int_eq(receive(&frame), STATUS_OK);
    a.n_sent = 0;
    ck_assert_int_eq(join_link_send(&a, JOIN_START, (struct join_bytes){(const uint8_t *)"orted", 6}), STATUS_OK);
    ck_assert_int_eq(receive(&frame), STATUS_UNAUTHENTICATED);
}
END_TEST

START_TEST(a_frame_of_another_key_is_refused)
{
    struct join_frame frame;
    a.send_key[0] ^= 1;
    ck_assert_int_eq(join_link_send(&a, JOIN_START, (struct join_bytes){(const uint8_t *)"orted", 6}), STATUS_OK);
    ck_assert_int_eq(receive(&frame), STATUS_UNAUTHENTICATED);
}
END_TEST

SUITE("join")
{
    TEST(a_frame_is_read_once_it_is_whole);
    EACH(a_bad_frame_is_refused_by_its_head, bad_frames);
    TEST(a_greeting_is_read_as_it_was_written);
    TEST(a_greeting_that_is_cut_longer_or_not_text_is_refused);
    TEST(the_command_of_mpirun_is_accepted_without_what_a_follower_ignores);
    EACH(any_other_command_is_refused, refused_commands);
    TEST(a_command_of_too_many_words_is_refused);
    TEST(proofs_differ_by_token_greetings_session_and_side);
    TCASE("link");
    FIXTURE(setup, teardown);
    TEST(a_frame_with_the_right_mac_arrives);
    TEST(a_frame_that_is_sent_again_is_refused);
    TEST(a_frame_of_another_key_is_refused);
}
