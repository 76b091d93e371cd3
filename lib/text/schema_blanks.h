// SPDX-License-Identifier: Apache-2.0
// Bounds the blanks that llguidance allows in the JSON of an answer. JSON allows any number of blanks between two
// tokens, and a model may never stop writing blanks. Any thread may call.
#pragma once

// Returns the schema with a rule that allows one blank, or a new line with its indentation. A schema that has a rule of
// its own, or is not a JSON object, stays as it is: llguidance reports errors. The caller frees the text.
char *schema_bound_blanks(const char *schema);
