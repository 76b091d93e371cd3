// SPDX-License-Identifier: Apache-2.0
#include "engine/join_messages.h"

#include <stdbool.h>
#include <string.h>

static const uint8_t magic[4] = {'F', 'P', 'J', '1'};

enum join_reading join_frame_read(const uint8_t *bytes, size_t n, size_t limit, size_t mac_bytes,
                                  struct join_frame *frame_p, size_t *used_p)
{
    if (n < 4) return JOIN_PARTIAL;
    const size_t length = (size_t)bytes[0] << 24 | (size_t)bytes[1] << 16 | (size_t)bytes[2] << 8 | bytes[3];
    if (length < 1 + mac_bytes || length > limit) return JOIN_BAD;
    if (n >= JOIN_HEAD_BYTES && (bytes[4] < JOIN_HELLO || bytes[4] > JOIN_ENDED)) return JOIN_BAD;
    if (n - 4 < length) return JOIN_PARTIAL;
    *frame_p = (struct join_frame){.type = bytes[4], .payload = bytes + JOIN_HEAD_BYTES, .n = length - 1 - mac_bytes};
    if (mac_bytes) frame_p->mac = frame_p->payload + frame_p->n;
    *used_p = 4 + length;
    return JOIN_WHOLE;
}

void join_head_write(uint8_t head[JOIN_HEAD_BYTES], enum join_type type, size_t payload_bytes, size_t mac_bytes)
{
    const size_t length = 1 + payload_bytes + mac_bytes;
    for (int i = 0; i < 4; i++)
        head[i] = (uint8_t)(length >> (24 - 8 * i));
    head[4] = (uint8_t)type;
}

static bool is_printable(uint8_t c)
{
    return c > ' ' && c < 127;
}

// Reads a text after its length. Returns false if it does not fit or has other characters.
static bool text_read(const uint8_t **at, const uint8_t *end, char text_p[JOIN_TEXT_MAX + 1])
{
    if (*at == end) return false;
    const size_t n = *(*at)++;
    if (n > JOIN_TEXT_MAX || n > (size_t)(end - *at)) return false;
    for (size_t i = 0; i < n; i++)
        if (!is_printable((*at)[i])) return false;
    memcpy(text_p, *at, n);
    text_p[n] = 0;
    *at += n;
    return true;
}

enum status join_hello_read(const uint8_t *payload, size_t n, struct join_hello *hello_p)
{
    struct join_hello hello;
    const uint8_t *at = payload + sizeof magic + JOIN_NONCE_BYTES, *end = payload + n;
    if (n < sizeof magic + JOIN_NONCE_BYTES || memcmp(payload, magic, sizeof magic) != 0)
        return status_fail(STATUS_INVALID, "the peer does not speak the protocol of --lead and --join");
    memcpy(hello.nonce, payload + sizeof magic, JOIN_NONCE_BYTES);
    if (!text_read(&at, end, hello.version) || !text_read(&at, end, hello.host) || at != end)
        return status_fail(STATUS_INVALID, "the peer's greeting is malformed");
    *hello_p = hello;
    return STATUS_OK;
}

static uint8_t *text_write(uint8_t *at, const char *text)
{
    const size_t n = strnlen(text, JOIN_TEXT_MAX);
    *at++ = (uint8_t)n;
    for (size_t i = 0; i < n; i++)
        *at++ = is_printable((uint8_t)text[i]) ? (uint8_t)text[i] : '?';
    return at;
}

size_t join_hello_write(const struct join_hello *hello, uint8_t payload[JOIN_GREETING_MAX])
{
    _Static_assert(sizeof magic + JOIN_NONCE_BYTES + 2 * (1 + JOIN_TEXT_MAX) < JOIN_GREETING_MAX, "a greeting fits");
    memcpy(payload, magic, sizeof magic);
    memcpy(payload + sizeof magic, hello->nonce, JOIN_NONCE_BYTES);
    uint8_t *at = text_write(payload + sizeof magic + JOIN_NONCE_BYTES, hello->version);
    return (size_t)(text_write(at, hello->host) - payload);
}

// --- the command

static bool has_prefix(const char *text, const char *const *prefixes)
{
    for (; *prefixes; prefixes++)
        if (strncmp(text, *prefixes, strlen(*prefixes)) == 0) return true;
    return false;
}

static bool has_suffix(const char *text, const char *const *suffixes)
{
    const size_t n = strlen(text);
    for (; *suffixes; suffixes++)
        if (n >= strlen(*suffixes) && strcmp(text + n - strlen(*suffixes), *suffixes) == 0) return true;
    return false;
}

// Settings of transports, mappings and the daemon itself. Settings that name files, folders or programs are refused.
static bool setting_is_allowed(const char *name)
{
    static const char *const parts[] = {"btl",  "coll", "ess",  "grpcomm", "hwloc", "mpi",   "mtl", "oob",    "opal",
                                        "orte", "osc",  "pmix", "pml",     "ras",   "rmaps", "rml", "routed", NULL};
    static const char *const ends[] = {"_path",    "_agent",  "_args",        "_file", "_files", "_prefix",
                                       "_dir",     "_script", "_tmpdir_base", "_dirs", "_exec",  "_libs",
                                       "_library", "_cmd",    "_debugger",    NULL};
    if (name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_")]) return false;
    return has_prefix(name, parts) && !has_suffix(name, ends);
}

// Settings of the launcher, which a follower ignores: it starts no further daemon.
static bool setting_is_left_out(const char *name)
{
    return strcmp(name, "plm") == 0 || strncmp(name, "plm_", 4) == 0;
}

static bool is_text(const char *word)
{
    for (; *word; word++)
        if (*word < ' ' || *word == 127) return false;
    return true;
}

// Divides the payload into words. Returns their number, or 0 if the payload is malformed.
static size_t words_divide(const uint8_t *payload, size_t n, const char *words[JOIN_WORDS_MAX])
{
    const char *at = (const char *)payload, *end = at + n;
    size_t count = 0;
    if (n && end[-1]) return 0;
    for (; at < end; at += strlen(at) + 1) {
        if (count == JOIN_WORDS_MAX || !is_text(at)) return 0;
        words[count++] = at;
    }
    return count;
}

enum status join_command_read(const uint8_t *payload, size_t n, const char *words_p[JOIN_WORDS_MAX + 1])
{
    const char *words[JOIN_WORDS_MAX];
    const size_t count = words_divide(payload, n, words);
    if (!count) return status_fail(STATUS_INVALID, "the leader's command is malformed");
    if (strcmp(words[0], "orted") != 0)
        return status_fail(STATUS_INVALID, "the leader's command '%s': only orted may be started", words[0]);
    size_t kept = 1;
    for (size_t i = 1; i < count; i++) {
        const bool sets = strcmp(words[i], "-mca") == 0 || strcmp(words[i], "--mca") == 0;
        if (strcmp(words[i], "--daemonize") == 0 || strcmp(words[i], "--tree-spawn") == 0) continue;
        if (!sets || count - i < 3)
            return status_fail(STATUS_INVALID, "orted's argument '%s': only -mca NAME VALUE may be given", words[i]);
        const bool left_out = setting_is_left_out(words[i + 1]);
        if (!left_out && !setting_is_allowed(words[i + 1]))
            return status_fail(STATUS_INVALID, "orted's setting '%s' may not be given", words[i + 1]);
        for (size_t w = i; !left_out && w < i + 3; w++)
            words_p[kept++] = words[w];
        i += 2;
    }
    words_p[0] = words[0];
    words_p[kept] = NULL;
    return STATUS_OK;
}
