// SPDX-License-Identifier: Apache-2.0
// Streams that continue after they broke. With the field `resumable`, the last event of each group of new events has an
// id: the number of tokens so far, the seed and the mark (router/core/resume.h). A client sends its request again with
// this id, to any router, and gets the events that would have followed.
#pragma once

#include "router/front/http/http_generation.h"

// Reads the fields resumable, last_event_id and resume_token_ids, and the header Last-Event-ID. Sets g->resumable, and
// the seed and the field `resume` of the message. Call it when the other fields are read.
enum status http_resume_read(struct http_generation *g, struct http_input *in);
// Adds the id to the last of the events, unless there are none.
void http_resume_add_id(const struct answer *a, struct bytes *events);
