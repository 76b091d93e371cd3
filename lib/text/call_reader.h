// SPDX-License-Identifier: Apache-2.0
// Reads one tool call, a JSON object like {"name": "f", "arguments": {...}}, as its bytes arrive. Llama models write
// "parameters", other models "arguments". The arguments are copied as the model wrote them, so a client receives
// exactly the generated text. There are two exceptions: some models write the object as a string, which is decoded, and
// null stands for no arguments. The tool's schema is not checked here.
//
// One owner, one thread. Buffers are at most as large as the answer.
#pragma once

#include "lib/text/unicode.h"

enum call_reader_state {
    CALL_READER_START, // before the object's brace
    CALL_READER_KEY,   // expects a key, the end of the object, or a comma
    CALL_READER_IN_KEY,
    CALL_READER_COLON,
    CALL_READER_VALUE,
    CALL_READER_IN_VALUE,
    CALL_READER_DONE,   // the object has ended
    CALL_READER_BROKEN, // the text is not a tool call
};

struct call_reader {
    enum call_reader_state state;
    struct bytes key, value; // JSON text of the current member
    struct bytes name;       // decoded name
    struct bytes arguments;  // JSON text of the arguments so far. In state DONE the text is complete and never empty
    bool named;              // `name` is complete
    bool argued;             // the value of a member with arguments has begun
    bool strict;             // an unknown key breaks the object
    int depth;               // nesting depth of lists and objects within the value
    bool quoted, escaped;    // inside a string; after a backslash
};

void call_reader_reset(struct call_reader *reader, bool strict); // prepares for the next call; keeps the memory
void call_reader_fini(struct call_reader *reader);

// Reads bytes until the object ends or is broken. Returns the number of bytes used.
size_t call_reader_push(struct call_reader *reader, const char *text, size_t n);

// Returns true if the object can be a call: it has a name, and a part of its arguments is in `arguments`. An object
// that ended without arguments has the arguments {}.
bool call_reader_is_call(const struct call_reader *reader);
// Returns true if name and arguments are complete. The object may go on.
bool call_reader_is_complete(const struct call_reader *reader);
