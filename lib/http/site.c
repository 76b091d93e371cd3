// SPDX-License-Identifier: Apache-2.0
#include "lib/http/site.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

enum { ADDRESS_ROOM = INET6_ADDRSTRLEN };

// --- lists

// Returns the next entry of a list, and its size, or NULL at the end. *at_p moves past the entry.
static const char *next_entry(const char **at_p, size_t *size_p)
{
    const char *entry = *at_p;
    if (!entry) return NULL;
    *size_p = strcspn(entry, ",");
    *at_p = entry[*size_p] ? entry + *size_p + 1 : NULL;
    return entry;
}

static bool list_has(const char *list, const char *text, size_t size)
{
    size_t n;
    for (const char *entry; (entry = next_entry(&list, &n));)
        if (n == size && strncasecmp(entry, text, n) == 0) return true;
    return false;
}

// --- options

static bool is_host_character(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || strchr("-._", c);
}

static size_t host_length(const char *text, size_t size)
{
    size_t n = 0;
    while (n < size && is_host_character(text[n]))
        n++;
    return n;
}

enum status http_hosts_check(const char *hosts)
{
    size_t n;
    for (const char *name; (name = next_entry(&hosts, &n));)
        if (n == 0 || host_length(name, n) != n)
            return status_fail(STATUS_INVALID, "'%.*s': must be a host name without a port, such as llm.example.org",
                               (int)n, name);
    return STATUS_OK;
}

// Returns the length of "scheme://", or 0 if the text does not start with it.
static size_t scheme_length(const char *text, size_t size)
{
    size_t n = 0;
    while (n < size && (is_host_character(text[n]) || text[n] == '+') && text[n] != '_')
        n++;
    return n > 0 && size - n > 3 && memcmp(text + n, "://", 3) == 0 ? n + 3 : 0;
}

static bool is_digits(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (text[i] < '0' || text[i] > '9') return false;
    return true;
}

// Returns the size of the host in HOST or HOST:PORT, where HOST may be an IPv6 address in brackets, or 0.
static size_t split_port(const char *text, size_t size)
{
    const char *bracket = size && *text == '[' ? memchr(text, ']', size) : NULL;
    const char *colon = bracket ? bracket + 1 : memchr(text, ':', size);
    size_t n = bracket ? (size_t)(bracket + 1 - text) : colon ? (size_t)(colon - text) : size;
    if (n == size) return n;
    return *colon == ':' && is_digits(colon + 1, size - n - 1) ? n : 0;
}

static bool is_ipv6(const char *text, size_t size)
{
    char address[ADDRESS_ROOM];
    struct in6_addr ignored;
    if (size < 3 || size - 2 >= sizeof address || *text != '[' || text[size - 1] != ']') return false;
    memcpy(address, text + 1, size - 2);
    address[size - 2] = '\0';
    return inet_pton(AF_INET6, address, &ignored) == 1;
}

static bool is_ipv4(const char *text, size_t size)
{
    char address[ADDRESS_ROOM];
    struct in_addr ignored;
    if (size >= sizeof address) return false;
    memcpy(address, text, size);
    address[size] = '\0';
    return inet_pton(AF_INET, address, &ignored) == 1;
}

static bool is_origin(const char *text, size_t size)
{
    size_t scheme = scheme_length(text, size);
    if (!scheme) return size == 4 && memcmp(text, "null", 4) == 0;
    const char *host = text + scheme;
    size_t n = split_port(host, size - scheme);
    return n > 0 && (host_length(host, n) == n || is_ipv6(host, n));
}

enum status http_origins_check(const char *origins)
{
    if (!origins || strcmp(origins, "*") == 0) return STATUS_OK;
    size_t n;
    for (const char *origin; (origin = next_entry(&origins, &n));)
        if (!is_origin(origin, n))
            return status_fail(STATUS_INVALID,
                               "'%.*s': must be an origin without a path, such as https://chat.example.org or "
                               "http://localhost:3000, or * alone for all origins",
                               (int)n, origin);
    return STATUS_OK;
}

// --- Host

static const char *field(const struct http_head *head, const char *texts, const char *name)
{
    return http_pair(texts + head->fields, name);
}

static bool host_is_served(const struct http_site *site, const char *host)
{
    size_t n = split_port(host, strlen(host));
    if (n == strlen("localhost") && strncasecmp(host, "localhost", n) == 0) return true;
    return n > 0 && (is_ipv4(host, n) || is_ipv6(host, n) || list_has(site->hosts, host, n));
}

// --- Origin

// Returns true if the page comes from the host that the request is for. The scheme is not compared, because a proxy may
// have ended TLS.
static bool is_same_origin(const char *origin, const char *host)
{
    size_t scheme = scheme_length(origin, strlen(origin));
    if (!scheme || !host) return false;
    size_t n = strlen(host), name = split_port(host, n);
    const char *standard = strncasecmp(origin, "https:", 6) == 0 ? ":443" : ":80"; // browsers leave this port out
    if (strcmp(host + name, standard) == 0) n = name;
    return strlen(origin + scheme) == n && strncasecmp(origin + scheme, host, n) == 0;
}

static bool allows_all(const struct http_site *site)
{
    return site->origins && strcmp(site->origins, "*") == 0;
}

static bool origin_is_allowed(const struct http_site *site, const char *origin)
{
    return allows_all(site) || list_has(site->origins, origin, strlen(origin));
}

// Returns true for methods that change nothing (RFC 9110, section 9.2.1).
static bool is_safe(const char *method)
{
    return strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0 || strcmp(method, "OPTIONS") == 0;
}

int http_site_check(const struct http_site *site, const struct http_head *head, const char *texts,
                    const char **sentence_p)
{
    const char *host = field(head, texts, "host"), *origin = field(head, texts, "origin");
    if (site->check_host && host && !host_is_served(site, host)) {
        *sentence_p = "the host name of the request is not one of this server: use its address or localhost, or start "
                      "the server with this name in --allowed-hosts";
        return 421;
    }
    if (site->check_origin && origin && !is_safe(texts + head->method) && !is_same_origin(origin, host) &&
        !origin_is_allowed(site, origin)) {
        *sentence_p = "a web page of another origin sent the request: start the server with this origin in "
                      "--cors-origin if the page may use it";
        return 403;
    }
    return 0;
}

// --- CORS

static void add_line(struct http_buffer *lines, const char *name, const char *value)
{
    http_buffer_text(lines, name);
    http_buffer_text(lines, ": ");
    http_buffer_text(lines, value);
    http_buffer_text(lines, "\r\n");
}

void http_site_add_headers(const struct http_site *site, const struct http_head *head, const char *texts,
                           struct http_buffer *lines)
{
    if (!site->origins) return;
    const char *origin = field(head, texts, "origin");
    if (!allows_all(site)) add_line(lines, "Vary", "Origin");
    if (!origin || !origin_is_allowed(site, origin)) return;
    add_line(lines, "Access-Control-Allow-Origin", allows_all(site) ? "*" : origin);
    if (site->exposed) add_line(lines, "Access-Control-Expose-Headers", site->exposed);
}

bool http_site_preflight(const struct http_site *site, const struct http_head *head, const char *texts,
                         struct http_buffer *lines)
{
    const char *origin = field(head, texts, "origin");
    const char *headers = field(head, texts, "access-control-request-headers");
    if (!origin || strcmp(texts + head->method, "OPTIONS") != 0 || !origin_is_allowed(site, origin)) return false;
    if (!field(head, texts, "access-control-request-method")) return false;
    add_line(lines, "Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE");
    if (headers) add_line(lines, "Access-Control-Allow-Headers", headers);
    add_line(lines, "Access-Control-Max-Age", "7200"); // the longest time that Chromium keeps an answer
    if (field(head, texts, "access-control-request-private-network"))
        add_line(lines, "Access-Control-Allow-Private-Network", "true"); // a page of the internet, a server at home
    return true;
}
