// SPDX-License-Identifier: Apache-2.0
#include "cli/demo.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/program_path.h"
#include "lib/base/version.h"

char *demo_path(const char *name)
{
    // Folders of an installed program, and of a program in build/<preset>/bin of the repository.
    static const char *const folders[] = {FOREPACK_INSTALL_DATA, "../../../deploy"};
    char *real = NULL;
    for (int i = 0; i < 2 && !real; i++) {
        char *relative = mem_format("%s/demo-model/%s", folders[i], name);
        char *path = program_path(relative);
        real = realpath(path, NULL);
        free(path);
        free(relative);
    }
    return real;
}

// The calibration of the demo's speculator contains the fingerprint of its main model.
bool demo_has_fingerprint(uint64_t fingerprint)
{
    char *path = demo_path("speculator/calibration.json"), text[17];
    json_t *calibration = path ? json_load_file(path, 0, NULL) : NULL;
    const char *model = json_string_value(json_object_get(json_object_get(calibration, "main"), "model"));
    snprintf(text, sizeof text, "%016" PRIx64, fingerprint);
    bool same = model && strcmp(model, text) == 0;
    json_decref(calibration);
    free(path);
    return same;
}
