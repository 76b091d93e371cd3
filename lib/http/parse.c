// SPDX-License-Identifier: Apache-2.0
#include "lib/http/parse.h"

#include <string.h>
#include <strings.h>

// --- characters

// Returns true for a tchar of RFC 9110. Methods and field names consist of these characters.
static bool is_token(unsigned char c)
{
    static const bool other[128] = {
        ['!'] = true, ['#'] = true, ['$'] = true, ['%'] = true, ['&'] = true, ['\''] = true, ['*'] = true, ['+'] = true,
        ['-'] = true, ['.'] = true, ['^'] = true, ['_'] = true, ['`'] = true, ['|'] = true,  ['~'] = true};
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c < 128 && other[c]);
}

static bool is_field_character(unsigned char c)
{
    return (c >= ' ' && c != 127) || c == '\t';
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

// --- the end of a head

enum http_parse http_scan_head(struct http_scan *scan, const char *bytes, size_t size)
{
    // Clients of other protocols are recognised by their first byte, without waiting for a time limit.
    if (scan->at == 0 && size > 0 && !is_token((unsigned char)bytes[0]) && bytes[0] != '\r') return HTTP_PARSE_BAD;
    const char *end;
    while (scan->at < size && (end = memchr(bytes + scan->at, '\n', size - scan->at))) {
        size_t newline = (size_t)(end - bytes);
        if (newline == scan->line || bytes[newline - 1] != '\r') return HTTP_PARSE_BAD;
        bool empty = newline == scan->line + 1;
        bool leading = scan->line == 0; // an empty line before the request, which RFC 9112 asks to ignore
        scan->at = newline + 1;
        scan->line = newline + 1;
        if (empty && !leading) return HTTP_PARSE_DONE;
    }
    scan->at = size;
    return HTTP_PARSE_MORE;
}

// --- the head

struct reader {
    const char *at, *end;
    char *texts;
    struct http_head *head;
    const char *sentence;
    int n_host, n_length, n_coding;
    const char *host, *target_host; // NULL: none
    size_t host_size, target_host_size;
    int coding_status; // refusal of the transfer coding, or 0
};

static int refuse(struct reader *r, int status, const char *sentence)
{
    r->sentence = sentence;
    return status;
}

static size_t add_text(struct reader *r, const char *text, size_t size)
{
    size_t at = r->head->text_size;
    memcpy(r->texts + at, text, size);
    r->texts[at + size] = '\0';
    r->head->text_size += size + 1;
    return at;
}

// Returns the character of the %XX at `at`, or 0 for an invalid %XX and for %00.
static char escape_read(const char *at, const char *end)
{
    int high = end - at > 2 ? hex_value(at[1]) : -1, low = end - at > 2 ? hex_value(at[2]) : -1;
    return high < 0 || low < 0 ? 0 : (char)(16 * high + low);
}

// Adds the path with its %XX decoded. Drops a slash at its end, as web servers do. Returns false if a %XX is invalid.
static bool add_path(struct reader *r, const char *at, const char *end)
{
    char *out = r->texts + r->head->text_size, *start = out;
    for (; at < end; at++) {
        *out = *at == '%' ? escape_read(at, end) : *at;
        if (!*out++) return false;
        if (*at == '%') at += 2;
    }
    if (out - start > 1 && out[-1] == '/') out--;
    *out++ = '\0';
    r->head->text_size += (size_t)(out - start);
    return true;
}

static bool query_is_sound(const char *at, const char *end)
{
    for (; at < end; at++)
        if (*at == '%' && !escape_read(at, end)) return false;
    return true;
}

static bool is_options(const struct reader *r)
{
    return strcmp(r->texts + r->head->method, "OPTIONS") == 0;
}

// Parses "/path?query", or "http://host/path?query" as in requests to proxies, or "*" of OPTIONS.
static int parse_target(struct reader *r, const char *at, const char *end)
{
    for (const char *c = at; c < end; c++)
        if (*c <= ' ' || *c >= 127 || *c == '#')
            return refuse(r, 400, "the request target contains a character that must be percent-encoded");
    if (end - at > 7 && (strncasecmp(at, "http://", 7) == 0 || (end - at > 8 && strncasecmp(at, "https://", 8) == 0))) {
        const char *host = at += 7 + (at[4] != ':');
        while (at < end && *at != '/' && *at != '?')
            at++;
        r->target_host = host;
        r->target_host_size = (size_t)(at - host);
    } else if (at == end || (*at != '/' && !(*at == '*' && end - at == 1 && is_options(r)))) {
        return refuse(r, 400, "the request target is not a path that starts with '/'");
    }
    const char *query = memchr(at, '?', (size_t)(end - at));
    r->head->path = r->head->text_size;
    const char *path_end = query ? query : end;
    if (path_end == at)
        add_text(r, "/", 1);
    else if (!add_path(r, at, path_end))
        return refuse(r, 400, "the path contains a '%' that is not followed by the two hex digits of a character");
    if (query && !query_is_sound(query, end))
        return refuse(r, 400, "the query contains a '%' that is not followed by the two hex digits of a character");
    r->head->query = add_text(r, query ? query + 1 : end, query ? (size_t)(end - query - 1) : 0);
    return 0;
}

static int parse_version(struct reader *r, const char *at, const char *end)
{
    if (end - at != 8 || memcmp(at, "HTTP/", 5) != 0 || at[6] != '.')
        return refuse(r, 400, "the request line does not end with the HTTP version");
    if (memcmp(at + 5, "1.1", 3) != 0 && memcmp(at + 5, "1.0", 3) != 0)
        return refuse(r, 505, "the HTTP version is neither 1.1 nor 1.0");
    r->head->http_1_0 = at[7] == '0';
    r->head->keep_alive = !r->head->http_1_0;
    return 0;
}

static int parse_request_line(struct reader *r, const char *at, const char *end)
{
    const char *method = at;
    while (at < end && is_token((unsigned char)*at))
        at++;
    if (at == method || at == end || *at != ' ') return refuse(r, 400, "the request line does not start with a method");
    r->head->method = add_text(r, method, (size_t)(at - method));
    const char *target = ++at;
    const char *blank = memchr(target, ' ', (size_t)(end - target));
    if (!blank) return refuse(r, 400, "the request line does not end with the HTTP version");
    int status = parse_version(r, blank + 1, end);
    return status ? status : parse_target(r, target, blank);
}

static bool same(const char *text, size_t size, const char *word)
{
    return strlen(word) == size && strncasecmp(text, word, size) == 0;
}

static int parse_length(struct reader *r, const char *value, size_t size)
{
    if (r->n_length++) return refuse(r, 400, "Content-Length is given more than once");
    uint64_t length = 0;
    for (size_t i = 0; i < size; i++) {
        if (value[i] < '0' || value[i] > '9') return refuse(r, 400, "Content-Length is not a number");
        length = 10 * length + (uint64_t)(value[i] - '0');
    }
    if (size == 0) return refuse(r, 400, "Content-Length is not a number");
    if (size > 19) length = INT64_MAX; // the sum has wrapped; INT64_MAX exceeds every limit
    r->head->has_length = true;
    r->head->content_length = length;
    return 0;
}

// Returns the next word of a list whose entries are separated by commas and blanks. *at_p moves past it. The word is
// empty at the end of the list.
static const char *next_word(const char **at_p, const char *end, size_t *size_p)
{
    const char *at = *at_p;
    while (at < end && (is_blank(*at) || *at == ','))
        at++;
    const char *word = at;
    while (at < end && *at != ',' && !is_blank(*at))
        at++;
    *at_p = at;
    *size_p = (size_t)(at - word);
    return word;
}

// Only `chunked` is supported. If it is not the last coding, or is given twice, the end of the body is unknown.
static int parse_coding(struct reader *r, const char *value, size_t size)
{
    if (r->n_coding++) return refuse(r, 400, "Transfer-Encoding is given more than once");
    r->head->chunked = same(value, size, "chunked");
    if (r->head->chunked) return 0;
    int n_chunked = 0;
    bool last = size == 0; // an empty value is as unclear
    size_t n;
    for (const char *at = value, *word; word = next_word(&at, value + size, &n), n > 0;) {
        last = same(word, n, "chunked");
        n_chunked += last;
    }
    r->coding_status = n_chunked > 1 || (n_chunked == 1 && !last) || size == 0 ? 400 : 501;
    return 0;
}

static void parse_connection(struct reader *r, const char *at, const char *end)
{
    size_t n;
    for (const char *word; word = next_word(&at, end, &n), n > 0;) {
        if (same(word, n, "close")) r->head->keep_alive = false;
        if (same(word, n, "keep-alive") && r->head->http_1_0) r->head->keep_alive = true;
    }
}

// Returns true for a name or an address, with or without a port. RFC 3986 also allows escapes and other marks in names,
// which DNS does not have.
static bool host_is_sound(const char *at, const char *end)
{
    const char *start = at;
    bool bracket = at < end && *at == '[';
    for (at += bracket; at < end && (is_token((unsigned char)*at) || (bracket && *at == ':')); at++)
        ;
    if (bracket && (at == end || *at++ != ']')) return false;
    if (at == start || (at < end && *at++ != ':')) return false;
    while (at < end && *at >= '0' && *at <= '9')
        at++;
    return at == end;
}

static int parse_host(struct reader *r, const char *value, size_t size)
{
    if (r->n_host++) return refuse(r, 400, "Host is given more than once");
    if (!host_is_sound(value, value + size)) return refuse(r, 400, "Host is not a host name or an address with a port");
    r->host = value;
    r->host_size = size;
    return 0;
}

static int parse_known_field(struct reader *r, const char *name, size_t name_size, const char *value, size_t size)
{
    if (same(name, name_size, "content-length")) return parse_length(r, value, size);
    if (same(name, name_size, "transfer-encoding")) return parse_coding(r, value, size);
    if (same(name, name_size, "connection")) parse_connection(r, value, value + size);
    if (same(name, name_size, "host")) return parse_host(r, value, size);
    if (same(name, name_size, "expect")) {
        if (!same(value, size, "100-continue")) return refuse(r, 417, "Expect is not '100-continue'");
        r->head->expect_continue = true;
    }
    return 0;
}

static int parse_field(struct reader *r, const char *at, const char *end)
{
    if (is_blank(*at)) return refuse(r, 400, "a header field is continued on a second line");
    const char *name = at;
    while (at < end && is_token((unsigned char)*at))
        at++;
    const char *name_end = at;
    if (at == name || at == end || *at != ':')
        return refuse(r, 400, "a header line is not a field name followed by a colon");
    for (at++; at < end && is_blank(*at);)
        at++;
    const char *value = at;
    for (; at < end; at++)
        if (!is_field_character((unsigned char)*at))
            return refuse(r, 400, "a header field contains a control character");
    while (end > value && is_blank(end[-1]))
        end--;
    add_text(r, name, (size_t)(name_end - name));
    add_text(r, value, (size_t)(end - value));
    return parse_known_field(r, name, (size_t)(name_end - name), value, (size_t)(end - value));
}

// Returns the next line without its CRLF. http_scan_head() has checked that every line has a CRLF.
static bool next_line(struct reader *r, const char **line_p, const char **end_p)
{
    const char *newline = memchr(r->at, '\n', (size_t)(r->end - r->at));
    if (!newline || newline == r->at) return false;
    *line_p = r->at;
    *end_p = newline - 1;
    r->at = newline + 1;
    return true;
}

static int check_fields(struct reader *r)
{
    const struct http_head *head = r->head;
    if (r->n_coding && head->has_length) return refuse(r, 400, "Content-Length and Transfer-Encoding are both given");
    if (r->n_coding && head->http_1_0) return refuse(r, 400, "HTTP/1.0 has no Transfer-Encoding");
    if (r->coding_status == 400) return refuse(r, 400, "Transfer-Encoding does not end with one 'chunked'");
    if (r->coding_status) return refuse(r, r->coding_status, "Transfer-Encoding is not 'chunked'");
    if (!head->http_1_0 && r->n_host == 0) return refuse(r, 400, "Host is missing");
    bool differ = r->target_host && r->host &&
                  (r->target_host_size != r->host_size || strncasecmp(r->target_host, r->host, r->host_size) != 0);
    return differ ? refuse(r, 400, "Host and the request target name different hosts") : 0;
}

static int parse_lines(struct reader *r)
{
    const char *line, *end;
    if (!next_line(r, &line, &end)) return refuse(r, 400, "the request line is missing");
    if (line == end && !next_line(r, &line, &end)) return refuse(r, 400, "the request line is missing");
    int status = parse_request_line(r, line, end);
    r->head->fields = r->head->text_size;
    for (int n = 0; !status && next_line(r, &line, &end) && line < end; n++) {
        if (n == HTTP_FIELDS_MAX) return refuse(r, 431, "the request has more than 100 header fields");
        status = parse_field(r, line, end);
    }
    add_text(r, "", 0);
    return status ? status : check_fields(r);
}

int http_parse_head(const char *bytes, size_t size, char *texts, struct http_head *head, const char **sentence_p)
{
    *head = (struct http_head){0};
    struct reader r = {.at = bytes, .end = bytes + size, .texts = texts, .head = head};
    int status = parse_lines(&r);
    if (status) *sentence_p = r.sentence;
    return status;
}

const char *http_pair(const char *pairs, const char *name)
{
    while (*pairs) {
        const char *value = pairs + strlen(pairs) + 1;
        if (strcasecmp(pairs, name) == 0) return value;
        pairs = value + strlen(value) + 1;
    }
    return NULL;
}

// --- a chunked body

enum {
    CHUNK_SIZE, // hex digits
    CHUNK_SIZE_LF,
    CHUNK_DATA,
    CHUNK_DATA_CR,
    CHUNK_DATA_LF,
    TRAILER_START, // start of a trailer's line
    TRAILER,
    TRAILER_LF,
    LAST_LF,
    CHUNK_DONE,
    EXTENSION_START, // after ';'
    EXTENSION_NAME,
    EXTENSION_EQUALS, // after '='
    EXTENSION_VALUE,
    EXTENSION_QUOTED,
    EXTENSION_ESCAPED,
    EXTENSION_END // after a quoted value, or a blank
};
enum { SIZE_DIGITS_MAX = 12 };

static bool step_size(struct http_chunks *c, char byte)
{
    int digit = hex_value(byte);
    if (digit >= 0) {
        c->left = 16 * c->left + (uint64_t)digit;
        return ++c->digits <= SIZE_DIGITS_MAX;
    }
    c->state = byte == '\r' ? CHUNK_SIZE_LF : EXTENSION_START;
    return c->digits > 0 && (byte == '\r' || byte == ';');
}

static bool step_extension_end(struct http_chunks *c, char byte)
{
    c->state = byte == '\r' ? CHUNK_SIZE_LF : byte == ';' ? EXTENSION_START : EXTENSION_END;
    return byte == '\r' || byte == ';' || is_blank(byte);
}

// Reads an extension: name, name=value or name="value".
static bool step_extension(struct http_chunks *c, char byte)
{
    bool token = is_token((unsigned char)byte), text = is_field_character((unsigned char)byte);
    if (++c->extensions > HTTP_EXTENSIONS_MAX) return false;
    switch (c->state) {
    case EXTENSION_START:
        if (token) c->state = EXTENSION_NAME;
        return token || is_blank(byte);
    case EXTENSION_NAME:
        if (byte != '=') return token || step_extension_end(c, byte);
        c->state = EXTENSION_EQUALS;
        return true;
    case EXTENSION_EQUALS: c->state = byte == '"' ? EXTENSION_QUOTED : EXTENSION_VALUE; return byte == '"' || token;
    case EXTENSION_VALUE: return token || step_extension_end(c, byte);
    case EXTENSION_QUOTED:
        if (byte == '"' || byte == '\\') c->state = byte == '"' ? EXTENSION_END : EXTENSION_ESCAPED;
        return text;
    case EXTENSION_ESCAPED: c->state = EXTENSION_QUOTED; return text;
    default: return step_extension_end(c, byte);
    }
}

static bool step_trailer(struct http_chunks *c, char byte)
{
    if (byte == '\r')
        c->state = TRAILER_LF;
    else if (!is_field_character((unsigned char)byte))
        return false;
    return ++c->trailers <= HTTP_TRAILERS_MAX;
}

static bool step_trailer_start(struct http_chunks *c, char byte)
{
    c->state = byte == '\r' ? LAST_LF : TRAILER;
    return byte == '\r' || is_token((unsigned char)byte);
}

static bool step_expect(struct http_chunks *c, char byte, char expected, int next)
{
    c->state = next;
    return byte == expected;
}

static bool step(struct http_chunks *c, char byte)
{
    switch (c->state) {
    case CHUNK_SIZE: return step_size(c, byte);
    case CHUNK_SIZE_LF: return step_expect(c, byte, '\n', c->left ? CHUNK_DATA : TRAILER_START);
    case CHUNK_DATA_CR: return step_expect(c, byte, '\r', CHUNK_DATA_LF);
    case CHUNK_DATA_LF: c->digits = 0; return step_expect(c, byte, '\n', CHUNK_SIZE);
    case TRAILER_START: return step_trailer_start(c, byte);
    case TRAILER: return step_trailer(c, byte);
    case TRAILER_LF: return step_expect(c, byte, '\n', TRAILER_START);
    case LAST_LF: return step_expect(c, byte, '\n', CHUNK_DONE);
    default: return c->state > CHUNK_DONE && step_extension(c, byte);
    }
}

enum http_parse http_read_chunks(struct http_chunks *c, const char *bytes, size_t size, size_t *at_p,
                                 const char **data_p, size_t *n_p)
{
    *n_p = 0;
    while (*at_p < size) {
        if (c->state == CHUNK_DATA) {
            size_t n = size - *at_p < c->left ? size - *at_p : (size_t)c->left;
            *data_p = bytes + *at_p;
            *n_p = n;
            *at_p += n;
            c->left -= n;
            if (c->left == 0) c->state = CHUNK_DATA_CR;
            return HTTP_PARSE_MORE;
        }
        if (!step(c, bytes[(*at_p)++])) return HTTP_PARSE_BAD;
        if (c->state == CHUNK_DONE) return HTTP_PARSE_DONE;
    }
    return HTTP_PARSE_MORE;
}
