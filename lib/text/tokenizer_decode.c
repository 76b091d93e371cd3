// SPDX-License-Identifier: Apache-2.0
// Converts ids to text. Each token is decoded once, when the tokenizer is opened. A text is the joined pieces, without
// the characters that the decoder strips from the start, and with ill-formed UTF-8 repaired.
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/tokenizer_parts.h"

// Returns the character for a byte in GPT-2's alphabet: printable bytes of Latin-1 stand for themselves, and the other
// 68 are U+0100 and up.
static int32_t byte_level_character(int byte)
{
    static const int gap[][2] = {{0, 0x20}, {0x7F, 0xA0}, {0xAD, 0xAD}};
    int before = 0;
    for (int i = 0; i < 3; i++) {
        if (byte < gap[i][0]) break;
        if (byte <= gap[i][1]) return 0x100 + before + byte - gap[i][0];
        before += gap[i][1] - gap[i][0] + 1;
    }
    return byte;
}

bool byte_level_decode(const char *text, size_t n, struct bytes *out)
{
    size_t begin = out->n;
    for (size_t at = 0, length; at < n; at += length) {
        int32_t c = utf8_decode(text + at, &length);
        int byte = c < 0x100 ? c : -1;
        if (c >= 0x100 && c < 0x144) // the 68 bytes that are not printable
            for (byte = 0; byte_level_character(byte) != c;)
                byte++;
        if (byte < 0 || byte_level_character(byte) != c) {
            out->n = begin;
            return false;
        }
        char one = (char)byte;
        bytes_add(out, &one, 1);
    }
    return true;
}

// Returns the byte of a byte-fallback token ("<0x0A>"), or -1 for any other token.
static int byte_fallback_value(const char *token)
{
    if (strlen(token) != 6 || strncmp(token, "<0x", 3) != 0 || token[5] != '>') return -1;
    if (!isxdigit((unsigned char)token[3]) || !isxdigit((unsigned char)token[4])) return -1;
    return (int)strtol(token + 3, NULL, 16);
}

enum { REPLACED_BYTES_MAX = 1 << 20 }; // limit of one token
enum { PIECES_BYTES_MAX = 256 << 20 }; // limit of all tokens together: as much as a tokenizer.json may have

// Replaces all matches of the pattern in `piece`.
static enum status replace_matches(const struct pattern *pattern, const char *by, size_t n_by,
                                   struct pattern_scratch *scratch, struct bytes *piece)
{
    struct bytes out = {0};
    const char *text = piece->data ? piece->data : "";
    struct pattern_walk walk = pattern_walk_start(pattern, scratch, text, piece->n);
    size_t from = 0, start, end;
    bool found = true;
    for (;;) {
        enum status status = pattern_walk_next(&walk, &start, &end, &found);
        if (status == STATUS_OK && found && out.n + n_by > REPLACED_BYTES_MAX)
            status = status_fail(STATUS_DATA, "the decoder replaces a token by more than %d bytes", REPLACED_BYTES_MAX);
        if (status) {
            bytes_free(&out);
            return status;
        }
        if (!found) break;
        bytes_add(&out, text + from, start - from);
        bytes_add(&out, by, n_by);
        from = end;
    }
    bytes_add(&out, text + from, piece->n - from);
    bytes_free(piece);
    *piece = out;
    return pattern_scratch_spend(scratch, out.n);
}

static enum status decode_token(const struct tokenizer *t, const char *token, struct pattern_scratch *scratch,
                                struct bytes *out)
{
    const struct decoder *d = &t->decoder;
    struct bytes piece = {0};
    enum status status = STATUS_OK;
    if (d->byte_level) {
        if (!byte_level_decode(token, strlen(token), out)) bytes_add(out, token, strlen(token));
        return STATUS_OK;
    }
    int byte = d->byte_fallback ? byte_fallback_value(token) : -1;
    if (byte >= 0) {
        char one = (char)byte;
        bytes_add(out, &one, 1);
        return STATUS_OK;
    }
    bytes_add(&piece, token, strlen(token));
    for (int i = 0; i < d->n_replace && status == STATUS_OK; i++)
        status = replace_matches(d->replace[i].pattern, d->replace[i].text, d->replace[i].n, scratch, &piece);
    if (status == STATUS_OK) bytes_add(out, piece.data, piece.n);
    bytes_free(&piece);
    return status;
}

enum status tokenizer_make_pieces(struct tokenizer *t)
{
    size_t n_bytes = 0;
    for (int32_t id = 0; id < t->n_ids; id++)
        if (t->spelling[id]) n_bytes += strlen(t->spelling[id]);
    struct pattern_scratch *scratch = pattern_scratch_create(n_bytes);
    enum status status = STATUS_OK;
    t->piece_start = mem_alloc_array((size_t)t->n_ids + 1, sizeof *t->piece_start);
    for (int32_t id = 0; id < t->n_ids && status == STATUS_OK; id++) {
        if (t->spelling[id]) status = decode_token(t, t->spelling[id], scratch, &t->pieces);
        if (status == STATUS_OK && t->pieces.n > PIECES_BYTES_MAX)
            status = status_fail(STATUS_DATA, "the tokens decode to more than %d MiB", PIECES_BYTES_MAX >> 20);
        t->piece_start[id + 1] = (uint32_t)t->pieces.n;
    }
    pattern_scratch_free(scratch);
    return status;
}

void tokenizer_piece(const struct tokenizer *t, int32_t id, const char **bytes_p, size_t *size_bytes_p)
{
    bool known = id >= 0 && id < t->n_ids && t->pieces.data;
    *bytes_p = known ? t->pieces.data + t->piece_start[id] : "";
    *size_bytes_p = known ? t->piece_start[id + 1] - t->piece_start[id] : 0;
}

// Adds the first piece of a text. The Metaspace decoder removes its replacement characters from the first token.
static void add_first_piece(const struct tokenizer *t, int32_t id, struct bytes *out)
{
    const char *token = t->spelling[id], *mark = t->decoder.metaspace, *at;
    for (; (at = strstr(token, mark)); token = at + strlen(mark))
        bytes_add(out, token, (size_t)(at - token));
    bytes_add(out, token, strlen(token));
}

enum status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, int n, unsigned flags, char **text_p,
                             size_t *size_bytes_p)
{
    const struct decoder *d = &t->decoder;
    struct bytes joined = {0}, text = {0};
    bool first = !(flags & TOKENIZER_CONTINUATION);
    for (int i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= t->n_ids) {
            bytes_free(&joined);
            return status_fail(STATUS_INVALID, "token id %d: must be 0 to %d", ids[i], t->n_ids - 1);
        }
        if (!t->spelling[ids[i]] || (flags & TOKENIZER_SKIP_SPECIAL && t->special[ids[i]])) continue;
        const char *piece;
        size_t size;
        tokenizer_piece(t, ids[i], &piece, &size);
        if (joined.n + size > TOKENIZER_DECODE_LIMIT_BYTES) {
            bytes_free(&joined);
            return status_fail(STATUS_OUT_OF_RANGE, "the text of these tokens has over %zu MiB: send fewer",
                               TOKENIZER_DECODE_LIMIT_BYTES >> 20);
        }
        if (first && d->metaspace)
            add_first_piece(t, ids[i], &joined);
        else
            bytes_add(&joined, piece, size);
        first = false;
    }
    size_t start = 0, strip = d->strip ? strlen(d->strip) : 0;
    for (int left = d->strip_max; strip && left && !(flags & TOKENIZER_CONTINUATION); left--) {
        if (joined.n - start < strip || memcmp(joined.data + start, d->strip, strip) != 0) break;
        start += strip;
    }
    if (joined.n > start) utf8_repair(&text, joined.data + start, joined.n - start, true);
    bytes_free(&joined);
    bytes_reserve(&text, 1);
    text.data[text.n] = 0;
    *text_p = text.data;
    if (size_bytes_p) *size_bytes_p = text.n;
    return STATUS_OK;
}
