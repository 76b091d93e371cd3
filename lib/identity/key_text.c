// SPDX-License-Identifier: Apache-2.0
// Converts names, hashes, limits and times to and from text, and makes keys.
#include "lib/identity/key_text.h"

#include <ctype.h>
#include <errno.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "lib/base/invariant.h"
#include "lib/base/mem.h"

#define HASH_PREFIX "sha256:"

// --- names and hashes

static enum status name_copy(const char *what, const char *word, char *name, size_t bytes_max)
{
    size_t size = strlen(word);
    bool valid = size && size <= bytes_max;
    for (size_t i = 0; i < size && valid; i++)
        valid = isalnum((unsigned char)word[i]) || strchr("._@:-", word[i]);
    if (!valid)
        return status_fail(STATUS_INVALID, "%s '%.40s': must be 1 to %zu letters, digits or . _ @ : -", what, word,
                           bytes_max);
    memcpy(name, word, size + 1);
    return STATUS_OK;
}

enum status api_key_name(struct api_key *key, const char *id, const char *tenant)
{
    TRY(name_copy("id", id, key->id, KEY_ID_BYTES));
    return name_copy("tenant", tenant, key->tenant, KEY_TENANT_BYTES);
}

static int hex_digit(char c)
{
    const char *digits = "0123456789abcdef", *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

enum status key_hash_parse(const char *word, uint8_t hash[KEY_HASH_BYTES])
{
    const char *hex = word + strlen(HASH_PREFIX);
    bool valid = strncmp(word, HASH_PREFIX, strlen(HASH_PREFIX)) == 0 && strlen(hex) == 2 * KEY_HASH_BYTES;
    for (int i = 0; i < KEY_HASH_BYTES && valid; i++) {
        int high = hex_digit(hex[2 * i]), low = hex_digit(hex[2 * i + 1]);
        valid = high >= 0 && low >= 0;
        hash[i] = (uint8_t)(16 * high + low);
    }
    if (valid) return STATUS_OK;
    // The message does not show the word, because it may be a key in place of its hash.
    return status_fail(STATUS_INVALID, "the second word must be " HASH_PREFIX " and 64 hexadecimal digits, lower case");
}

// --- limits

struct field {
    const char *name;
    size_t offset; // offset of an int64_t in api_key
    int64_t min, max;
};
static const struct field fields[] = {
    {"priority", offsetof(struct api_key, priority), -KEY_PRIORITY_MAX, KEY_PRIORITY_MAX},
    {"requests_per_minute", offsetof(struct api_key, limits.requests_per_minute), 1, 1000000000},
    {"tokens_per_minute", offsetof(struct api_key, limits.tokens_per_minute), 1, 1000000000000},
    {"tokens_per_day", offsetof(struct api_key, limits.tokens_per_day), 1, 1000000000000000},
    {"concurrency", offsetof(struct api_key, limits.concurrency), 1, 1000000},
};
enum { FIELDS = sizeof fields / sizeof fields[0] };
static const char *const word_fields[] = {"expires", "prune", "drafts"};
enum { WORD_FIELDS = sizeof word_fields / sizeof word_fields[0] };

unsigned key_field_bit(const char *name)
{
    unsigned bit = 1;
    for (int i = 0; i < FIELDS + WORD_FIELDS; i++, bit <<= 1)
        if (strcmp(i < FIELDS ? fields[i].name : word_fields[i - FIELDS], name) == 0) return bit;
    return 0;
}

enum status api_key_set(struct api_key *key, const char *name, const char *value)
{
    if (strcmp(name, "expires") == 0) return key_time_parse(value, &key->expires_s);
    if (strcmp(name, "prune") == 0) return prune_rule_parse(name, value, &key->rules.prune);
    if (strcmp(name, "drafts") == 0) return draft_rule_parse(name, value, &key->rules.drafts);
    for (int i = 0; i < FIELDS; i++) {
        const struct field *f = &fields[i];
        if (strcmp(name, f->name) != 0) continue;
        char *end;
        errno = 0;
        int64_t number = strtoll(value, &end, 10);
        bool digits = isdigit((unsigned char)*value) || *value == '-';
        if (!digits || *end || errno || number < f->min || number > f->max)
            return status_fail(STATUS_INVALID, "%s '%.40s': must be a whole number from %lld to %lld", name, value,
                               (long long)f->min, (long long)f->max);
        *(int64_t *)((char *)key + f->offset) = number;
        return STATUS_OK;
    }
    return status_fail(STATUS_INVALID,
                       "'%.40s': must be priority, requests_per_minute, tokens_per_minute, tokens_per_day, "
                       "concurrency, expires, prune or drafts",
                       name);
}

// Returns `line` with one more word, NAME=VALUE or NAME. Frees `line`.
static char *add_word(char *line, const char *name, const char *value)
{
    char *longer = mem_format("%s %s%s%s", line, name, value ? "=" : "", value ? value : "");
    free(line);
    return longer;
}

char *api_key_format(const struct api_key *key)
{
    char hex[2 * KEY_HASH_BYTES + 1], text[PRUNE_RULE_ROOM];
    for (int i = 0; i < KEY_HASH_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", key->hash[i]);
    char *line = mem_format("%s " HASH_PREFIX "%s %s", key->id, hex, key->tenant);
    for (int i = 0; i < FIELDS; i++) {
        int64_t value = *(const int64_t *)((const char *)key + fields[i].offset);
        snprintf(text, sizeof text, "%lld", (long long)value);
        if (value) line = add_word(line, fields[i].name, text);
    }
    prune_rule_format(&key->rules.prune, text);
    if (*text) line = add_word(line, "prune", text);
    if (key->rules.drafts) line = add_word(line, "drafts", draft_rule_name(key->rules.drafts));
    if (key->expires_s) {
        key_time_format(key->expires_s, text);
        line = add_word(line, "expires", text);
    }
    if (key->is_operator) line = add_word(line, "operator", NULL);
    if (key->revoked) line = add_word(line, "revoked", NULL);
    return line;
}

// --- times

// Parses "", or a time "T12:00:00" with a zone "Z" or "+02:00". Sets the seconds after midnight UTC.
static bool day_time_parse(const char *text, int64_t *seconds_p)
{
    int hour, minute, second, zone_hour = 0, zone_minute = 0, used = 0, more = 0;
    char sign;
    *seconds_p = 0;
    if (!*text) return true;
    if (sscanf(text, "T%2d:%2d:%2d%n", &hour, &minute, &second, &used) != 3 || used != 9) return false;
    if (hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59) return false;
    *seconds_p = hour * 3600 + minute * 60 + second;
    text += used;
    if (strcmp(text, "Z") == 0) return true;
    if (sscanf(text, "%c%2d:%2d%n", &sign, &zone_hour, &zone_minute, &more) != 3 || more != 6 || text[more])
        return false;
    if ((sign != '+' && sign != '-') || zone_hour < 0 || zone_hour > 23 || zone_minute < 0 || zone_minute > 59)
        return false;
    *seconds_p -= (sign == '+' ? 1 : -1) * (zone_hour * 3600 + zone_minute * 60);
    return true;
}

#define FIRST_S INT64_C(946684800)    // start of 2000
#define LAST_S  INT64_C(253402300799) // end of 9999

enum status key_time_parse(const char *text, int64_t *seconds_p)
{
    struct tm day = {0};
    int year, month, used = 0;
    int64_t seconds = 0;
    bool valid = sscanf(text, "%4d-%2d-%2d%n", &year, &month, &day.tm_mday, &used) == 3 && used == 10 &&
                 day_time_parse(text + used, &seconds);
    if (valid) {
        day.tm_year = year - 1900;
        day.tm_mon = month - 1;
        struct tm same = day;
        seconds += timegm(&same);
        // timegm() turns 31 February into a day of March, so compare the days.
        valid = same.tm_mday == day.tm_mday && same.tm_mon == day.tm_mon && seconds >= FIRST_S && seconds <= LAST_S;
    }
    if (!valid)
        return status_fail(STATUS_INVALID, "expires '%.40s': must be a time such as 2027-01-31 or 2027-01-31T12:00:00Z",
                           text);
    *seconds_p = seconds;
    return STATUS_OK;
}

void key_time_format(int64_t seconds, char text[24])
{
    struct tm tm;
    time_t time = (time_t)seconds;
    gmtime_r(&time, &tm);
    strftime(text, 24, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

// --- keys

void key_hash(const char *key, size_t size, uint8_t hash[KEY_HASH_BYTES])
{
    SHA256((const unsigned char *)key, size, hash);
}

// Returns a random digit. Draws again if a byte would make some digits likelier than others.
static char digit_random(void)
{
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    uint8_t byte;
    do {
        ssize_t n = getrandom(&byte, 1, 0);
        INVARIANT(n == 1, "getrandom() returned %zd", n);
    } while (byte >= 62 * 4);
    return digits[byte % 62];
}

void key_generate(char key[KEY_BYTES + 1], uint8_t hash[KEY_HASH_BYTES])
{
    memcpy(key, KEY_PREFIX, sizeof KEY_PREFIX - 1);
    for (int i = (int)sizeof KEY_PREFIX - 1; i < KEY_BYTES; i++)
        key[i] = digit_random();
    key[KEY_BYTES] = 0;
    key_hash(key, KEY_BYTES, hash);
}
