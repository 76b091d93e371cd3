// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_resume.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "lib/text/generation_json.h"

void http_resume_add_id(const struct answer *a, struct bytes *events)
{
    char id[80];
    const struct request *r = a->request;
    if (!events->n) return;
    events->n--; // the empty line that ends the last event
    snprintf(id, sizeof id, "id: %d-%llx-%llx\n\n", a->n_tokens, (unsigned long long)r->spec.sampling.seed,
             (unsigned long long)r->mark);
    json_add(events, id);
}

// Returns the id of the event that the client had last, or NULL. The header applies to streams that may be resumed.
static const char *event_id(const struct http_generation *g, const struct http_input *in)
{
    if (in->fields.last_event_id) return in->fields.last_event_id;
    return g->api->resumes && in->fields.stream ? http_header(g->x, "last-event-id") : NULL;
}

static enum status stream_check(const struct http_generation *g, const struct http_input *in)
{
    if (!g->api->resumes) return status_fail(STATUS_UNSUPPORTED, "resumable: not supported by this API: leave it out");
    if (!in->fields.stream) return status_fail(STATUS_INVALID, "resumable: only with stream");
    if (in->fields.n * in->n_prompts != 1 || in->echo)
        return status_fail(STATUS_INVALID, "resumable: only with one prompt, n 1 and no echo");
    return STATUS_OK;
}

static enum status ids_read(const json_t *list, unsigned n, struct http_input *in)
{
    if (json_array_size(list) != n)
        return status_fail(STATUS_INVALID, "resume_token_ids: %zu given, but the event's id says %u",
                           json_array_size(list), n);
    uint32_t *ids = http_input_alloc(in, n, sizeof *ids);
    for (size_t i = 0; i < n; i++) {
        json_int_t id;
        if (!json_whole(json_array_get(list, i), &id) || id < 0 || id > INT_MAX)
            return status_fail(STATUS_INVALID, "resume_token_ids: must be a list of token ids");
        ids[i] = (uint32_t)id;
    }
    in->resume.token_ids = ids;
    in->resume.n_token_ids = n;
    in->resume.received_tokens = 0;
    return STATUS_OK;
}

static enum status id_read(const char *id, struct http_input *in, unsigned *n_p)
{
    unsigned long long seed, mark;
    int length = 0;
    if (strspn(id, "0123456789abcdef-") != strlen(id) ||
        sscanf(id, "%9u-%16llx-%16llx%n", n_p, &seed, &mark, &length) != 3 || id[length])
        return status_fail(STATUS_INVALID, "last_event_id: must be the id of an event of the answer");
    Forepack__V1__SamplingOptions *sampling = &in->fields.sampling_options;
    sampling->seed_given_case = FOREPACK__V1__SAMPLING_OPTIONS__SEED_GIVEN_SEED;
    sampling->seed = seed;
    forepack__v1__resume__init(&in->resume);
    in->resume.mark = mark;
    in->resume.received_tokens = *n_p;
    in->fields.message.resume = &in->resume;
    return STATUS_OK;
}

enum status http_resume_read(struct http_generation *g, struct http_input *in)
{
    const json_t *ids = in->fields.resume_token_ids;
    const char *id = event_id(g, in);
    unsigned n = 0;
    if (ids && !id) return status_fail(STATUS_INVALID, "resume_token_ids: only with last_event_id");
    g->resumable = in->fields.resumable || id;
    if (!g->resumable) return STATUS_OK;
    TRY(stream_check(g, in));
    if (!id) return STATUS_OK;
    TRY(id_read(id, in, &n));
    return ids ? ids_read(ids, n, in) : STATUS_OK;
}
