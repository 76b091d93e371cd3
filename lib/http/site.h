// SPDX-License-Identifier: Apache-2.0
// Decides which web pages may use the server, by the headers Host and Origin, which a browser does not let a page
// choose. Writes the headers of CORS (Fetch Standard). Does no input or output. Any thread may call.
//
// Host: the owner of a web page can make the page's name resolve to the server's address (DNS rebinding). The browser
// then takes page and server for one origin, but Host still has the page's name. Origin: a page of another site may
// send a simple POST without asking first. It cannot read the answer, but the server would do the work.
#pragma once

#include <stdbool.h>

#include "lib/base/status.h"
#include "lib/http/buffer.h"
#include "lib/http/parse.h"

// Lists are separated by commas and are borrowed. Zeroed: every page may send requests, and none may read an answer.
struct http_site {
    bool check_host;     // serve only addresses, localhost and `hosts`
    const char *hosts;   // "llm.example.org,llm": names without a port; NULL: none
    bool check_origin;   // refuse POST and the like from pages of other origins that are not in `origins`
    const char *origins; // "https://a.example.org,http://localhost:3000": pages that may use the server; "*": all
    const char *exposed; // headers of answers that these pages may read; NULL: none
};

// Check a list of `hosts` or `origins` and return INVALID with a sentence that names the bad entry. NULL is allowed.
enum status http_hosts_check(const char *hosts);
enum status http_origins_check(const char *origins);

// Returns 0, or the status of a refusal with its reason in *sentence_p. The status is 421 (the server does not serve
// this host) or 403 (it does not serve this page).
int http_site_check(const struct http_site *site, const struct http_head *head, const char *texts,
                    const char **sentence_p);

// Appends the CORS headers of an answer to the request, which may be none.
void http_site_add_headers(const struct http_site *site, const struct http_head *head, const char *texts,
                           struct http_buffer *lines);

// Returns true if the request is a preflight of an allowed page, and appends the further headers of its answer.
bool http_site_preflight(const struct http_site *site, const struct http_head *head, const char *texts,
                         struct http_buffer *lines);
