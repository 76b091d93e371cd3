// SPDX-License-Identifier: Apache-2.0
// The live page: GET /, its files, and GET /live/events, the stream of server-sent events that it shows.
//
// One thread copies a snapshot of the core each second and adds it to a history of five minutes. While pages are open,
// the thread formats the snapshot once for all pages. So another page costs only the sending of these bytes. A page
// that has not read its last event gets no new event; the thread never waits for a page.
//
// Events: "history" once, then a "snapshot" each second (live_snapshot.h). With API keys, the events need an operator's
// key. The page and its files contain no data of the cluster and need no key.
#pragma once

#include "lib/http/http.h"

enum { LIVE_PAGES_MAX = 32 }; // limit of open pages; further pages are refused with 503

struct front;
struct live_pages;

// Borrows the front, whose loop must run until live_pages_close().
struct live_pages *live_pages_open(const struct front *front);
// Ends the streams of all pages and refuses later ones. NULL is allowed here and in live_pages_free().
void live_pages_close(struct live_pages *pages);
// Frees the pages. Call it after the last exchange has closed.
void live_pages_free(struct live_pages *pages);

// Handlers of routes.
void live_page_get(struct http_exchange *x);   // "/"
void live_style_get(struct http_exchange *x);  // "/live/style.css"
void live_script_get(struct http_exchange *x); // "/live/page.js"
void live_events_get(struct http_exchange *x); // "/live/events"
void live_events_on_close(struct http_exchange *x, bool disconnected);
