// SPDX-License-Identifier: Apache-2.0
// Writes a grammar into a message of the client protocol.
#pragma once

#include "lib/text/grammar_spec.h"
#include "proto/forepack/v1/inference.pb-c.h"

// The message borrows the text.
static inline void grammar_to_message(const struct grammar_spec *spec, Forepack__V1__SamplingOptions *m)
{
    switch (spec->kind) {
    case GRAMMAR_JSON_SCHEMA:
        m->guided_case = FOREPACK__V1__SAMPLING_OPTIONS__GUIDED_GUIDED_JSON;
        m->guided_json = spec->text;
        break;
    case GRAMMAR_REGEX:
        m->guided_case = FOREPACK__V1__SAMPLING_OPTIONS__GUIDED_GUIDED_REGEX;
        m->guided_regex = spec->text;
        break;
    case GRAMMAR_LARK:
        m->guided_case = FOREPACK__V1__SAMPLING_OPTIONS__GUIDED_GUIDED_GRAMMAR;
        m->guided_grammar = spec->text;
        break;
    default: break;
    }
}
