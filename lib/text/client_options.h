// SPDX-License-Identifier: Apache-2.0
// Options of the router about what clients may send, which `forepack up` has, too, and passes on:
//
//     static struct { ...; struct client_options clients; } o;
//     static const struct option options[] = { ..., IMAGE_TEXT_ROW(o.clients), CLIENT_RULE_ROWS(o.clients), {0} };
#pragma once

#include "lib/base/options.h"
#include "lib/text/generation.h"

struct client_options {
    char *image_text, *prune_rule, *drafts_rule; // owned by the options
};

// Rows for an option table. `o` is a static struct client_options.
// clang-format off
#define IMAGE_TEXT_ROW(o)                                                                                              \
    {.name = "image-text", .type = OPTION_STRING, .value = &(o).image_text, .placeholder = "TEXT",                     \
     .help = "text that the model reads in place of each image of a conversation, such as '[image]'. Default: requests " \
             "with images are refused"}
#define CLIENT_RULE_ROWS(o)                                                                                            \
    {.name = "prune-rule", .type = OPTION_STRING, .value = &(o).prune_rule, .placeholder = "RULE", .default_text = "any", \
     .help = "limit of pruning for requests whose API key has no rule, whatever they ask for: any; never; "            \
             "quality-at-least:Q, with a least quality; keep-at-least:R, with a least keep rate; required"},           \
    {.name = "drafts-rule", .type = OPTION_CHOICE, .value = &(o).drafts_rule, .default_text = "auto",                  \
     .choices = DRAFT_MODES,                                                                                           \
     .help = "off: no answer uses draft tokens, whatever a request asks for, unless its API key has drafts=auto"}
// clang-format on
