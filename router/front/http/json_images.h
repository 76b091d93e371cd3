// SPDX-License-Identifier: Apache-2.0
// Images in the conversation of a body, in the forms of all APIs: image_url, input_image and image. The model sees no
// images. They are refused, or replaced by the text of the router's option --image-text. Any thread may call.
#pragma once

#include <jansson.h>

// Replaces the images in `messages` or `input` of the body, and the images in results of tool calls.
void json_images_replace(json_t *body, const char *text);

// Returns advice for the refusal of a part of this type. It follows other advice, and is empty unless the type is an
// image.
const char *json_image_remedy(const char *type);
