// SPDX-License-Identifier: Apache-2.0
#include "router/front/live/live_pages.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/monotonic_cond.h"
#include "lib/base/thread.h"
#include "lib/page/page.h"
#include "router/front/http/http_call.h"
#include "router/front/http/http_service.h"
#include "router/front/live/live_snapshot.h"

// The first event of a new page does not wait for the next second, but only until FIRST_EVENT_US have passed since the
// last snapshot. So new pages cause at most five snapshots a second.
enum { SECOND_US = 1000000, FIRST_EVENT_US = 200000 };

struct live_page {
    struct http_exchange *x;     // holds a reference
    struct principal *principal; // holds a reference; NULL: no API keys are used
    bool begun;                  // the page's stream of events has begun, or is about to begin
};

struct live_pages {
    const struct front *front;
    pthread_t thread;
    // Used only by the pages' thread:
    struct live_history history;
    struct bytes history_event, snapshot_event; // the events as they are sent

    struct live_snapshot snapshot; // the core's thread fills it in while the pages' thread waits
    pthread_mutex_t lock;          // guards all members below; not held while anything is written or sent
    pthread_cond_t changed;
    struct live_page pages[LIVE_PAGES_MAX];
    int n;
    bool has_new;   // a new page has not begun its stream
    bool is_copied; // the core's thread has filled in `snapshot`
    bool stopping;
};

// --- snapshots

static void event_copy(struct core *c, void *arg, int64_t now_us)
{
    struct live_pages *pages = arg;
    core_get_metrics(c, now_us, &pages->snapshot.core);
    memcpy(pages->snapshot.bins, core_get_recent_bins(c), sizeof pages->snapshot.bins);
    pages->snapshot.now_us = now_us;
    pthread_mutex_lock(&pages->lock);
    pages->is_copied = true;
    pthread_cond_signal(&pages->changed);
    pthread_mutex_unlock(&pages->lock);
}

static void snapshot_take(struct live_pages *pages)
{
    const struct front *front = pages->front;
    struct live_snapshot *snapshot = &pages->snapshot;
    loop_post(front->loop, event_copy, pages);
    pthread_mutex_lock(&pages->lock);
    while (!pages->is_copied)
        pthread_cond_wait(&pages->changed, &pages->lock);
    pages->is_copied = false;
    pthread_mutex_unlock(&pages->lock);
    snapshot->model_name = front->model_names[0];
    snapshot->unix_s = (int64_t)time(NULL);
    snapshot->uptime_s = (snapshot->now_us - front->started_us) / SECOND_US;
}

// --- events

static void events_write(struct live_pages *pages)
{
    struct live_point point = live_history_last(&pages->history);
    struct bytes *history = &pages->history_event, *snapshot = &pages->snapshot_event;
    history->n = snapshot->n = 0;
    JSON_ADD(history, "event: history\ndata: ");
    live_history_write(&pages->history, history);
    JSON_ADD(history, "\n\n");
    JSON_ADD(snapshot, "event: snapshot\ndata: ");
    live_snapshot_write(&pages->snapshot, &point, snapshot);
    JSON_ADD(snapshot, "\n\n");
}

static bool page_is_allowed(const struct live_page *page)
{
    return !page->principal || principal_check_operator(page->principal) == STATUS_OK;
}

static void page_send(const struct live_pages *pages, const struct live_page *page)
{
    if (!page->begun) {
        http_add_header(page->x, "Cache-Control", "no-store");
        http_add_header(page->x, "X-Accel-Buffering", "no"); // proxies must forward events immediately
        http_stream_begin(page->x, 200, "text/event-stream");
        http_stream_send(page->x, pages->history_event.data, pages->history_event.n);
    } else if (!page_is_allowed(page)) {
        http_stream_end(page->x);
        return;
    } else if (http_stream_send(page->x, NULL, 0) > 0) {
        return; // the page has not read the last event
    }
    http_stream_send(page->x, pages->snapshot_event.data, pages->snapshot_event.n);
}

static struct live_page page_ref(const struct live_page *page)
{
    http_ref(page->x);
    principal_ref(page->principal);
    return *page;
}

static void page_unref(const struct live_page *page)
{
    http_unref(page->x);
    principal_unref(page->principal);
}

// Lists all pages, or, without `all`, the pages whose streams have not begun. The caller calls page_unref() for each.
static int pages_copy(struct live_pages *pages, bool all, struct live_page list[LIVE_PAGES_MAX])
{
    int n = 0;
    pthread_mutex_lock(&pages->lock);
    for (int i = 0; i < pages->n; i++) {
        struct live_page *page = &pages->pages[i];
        if (!all && page->begun) continue;
        list[n++] = page_ref(page);
        page->begun = true;
    }
    pages->has_new = false;
    pthread_mutex_unlock(&pages->lock);
    return n;
}

// --- the thread

static void pages_update(struct live_pages *pages, bool is_second)
{
    struct live_page list[LIVE_PAGES_MAX];
    snapshot_take(pages);
    if (is_second) live_history_add(&pages->history, &pages->snapshot);
    int n = pages_copy(pages, is_second, list);
    if (n) {
        // pages may be the only clients, so that nothing else reloads the keys
        identity_reload(pages->front->identity);
        events_write(pages);
    }
    core_metrics_fini(&pages->snapshot.core);
    for (int i = 0; i < n; i++) {
        page_send(pages, &list[i]);
        page_unref(&list[i]);
    }
}

static void *pages_run(void *arg)
{
    struct live_pages *pages = arg;
    int64_t second_us = clock_now_us(), updated_us = 0;
    pthread_mutex_lock(&pages->lock);
    while (!pages->stopping) {
        int64_t due_us = second_us, first_us = updated_us + FIRST_EVENT_US;
        if (pages->has_new && first_us < due_us) due_us = first_us;
        if (clock_now_us() < due_us) {
            monotonic_cond_wait(&pages->changed, &pages->lock, due_us);
            continue;
        }
        pthread_mutex_unlock(&pages->lock);
        updated_us = clock_now_us();
        pages_update(pages, updated_us >= second_us);
        while (second_us <= updated_us)
            second_us += SECOND_US;
        pthread_mutex_lock(&pages->lock);
    }
    pthread_mutex_unlock(&pages->lock);
    return NULL;
}

struct live_pages *live_pages_open(const struct front *front)
{
    struct live_pages *pages = mem_alloc(sizeof *pages);
    pages->front = front;
    pthread_mutex_init(&pages->lock, NULL);
    monotonic_cond_init(&pages->changed);
    thread_start(&pages->thread, "live", pages_run, pages);
    return pages;
}

void live_pages_close(struct live_pages *pages)
{
    if (!pages) return;
    pthread_mutex_lock(&pages->lock);
    pages->stopping = true;
    pthread_cond_signal(&pages->changed);
    pthread_mutex_unlock(&pages->lock);
    pthread_join(pages->thread, NULL);
    struct live_page list[LIVE_PAGES_MAX];
    int n = pages_copy(pages, true, list);
    for (int i = 0; i < n; i++) {
        if (!list[i].begun) http_stream_begin(list[i].x, 200, "text/event-stream");
        http_stream_end(list[i].x);
        page_unref(&list[i]);
    }
}

void live_pages_free(struct live_pages *pages)
{
    if (!pages) return;
    bytes_free(&pages->history_event);
    bytes_free(&pages->snapshot_event);
    pthread_cond_destroy(&pages->changed);
    pthread_mutex_destroy(&pages->lock);
    free(pages);
}

// --- handlers

static struct live_pages *pages_of(const struct http_exchange *x)
{
    return ((const struct http_service *)http_context(x))->live;
}

// Allows scripts and styles only from the router, and forbids other sites to embed the page.
static const char content_policy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'";

static void file_answer(struct http_exchange *x, const char *content_type, const void *bytes, size_t size)
{
    http_add_header(x, "Content-Security-Policy", content_policy);
    http_add_header(x, "X-Content-Type-Options", "nosniff");
    http_add_header(x, "Referrer-Policy", "no-referrer");
    http_add_header(x, "Cache-Control", "no-store"); // a cached old script must not talk to a newer router
    http_answer_as(x, content_type, bytes, size);
}

void live_page_get(struct http_exchange *x)
{
    file_answer(x, "text/html; charset=utf-8", page_live, page_live_size);
}

void live_style_get(struct http_exchange *x)
{
    file_answer(x, "text/css; charset=utf-8", page_style, page_style_size);
}

void live_script_get(struct http_exchange *x)
{
    file_answer(x, "text/javascript; charset=utf-8", page_script, page_script_size);
}

static bool page_add(struct live_pages *pages, struct http_exchange *x)
{
    pthread_mutex_lock(&pages->lock);
    bool fits = !pages->stopping && pages->n < LIVE_PAGES_MAX;
    if (fits) {
        const struct live_page page = {.x = x, .principal = ((struct http_call *)http_user(x))->principal};
        pages->pages[pages->n++] = page_ref(&page);
        pages->has_new = true;
        pthread_cond_signal(&pages->changed);
    }
    pthread_mutex_unlock(&pages->lock);
    return fits;
}

void live_events_get(struct http_exchange *x)
{
    if (strcmp(http_method(x), "HEAD") == 0) {
        http_respond(x, 200, "text/event-stream", "", 0);
    } else if (!page_add(pages_of(x), x)) {
        http_refuse(x, status_fail(STATUS_UNAVAILABLE,
                                   "%d live pages are open, or the router is shutting down: close "
                                   "one, or try again later",
                                   LIVE_PAGES_MAX));
    }
}

void live_events_on_close(struct http_exchange *x, bool disconnected)
{
    struct live_pages *pages = pages_of(x);
    struct live_page page = {.x = NULL};
    pthread_mutex_lock(&pages->lock);
    for (int i = 0; i < pages->n && !page.x; i++) {
        if (pages->pages[i].x != x) continue;
        page = pages->pages[i];
        pages->pages[i] = pages->pages[--pages->n];
    }
    pthread_mutex_unlock(&pages->lock);
    if (page.x) page_unref(&page);
    http_call_on_close(x, disconnected);
}
