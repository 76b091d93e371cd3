// SPDX-License-Identifier: Apache-2.0
#include "cli/resume.h"

#include <stdlib.h>

#include "lib/base/mem.h"

void resume_clear(struct request_spec *spec)
{
    free(spec->resume_ids);
    spec->resume_ids = NULL;
    spec->n_resume_ids = 0;
    spec->resume_mark = 0;
    spec->resumes = false;
}

void resume_prepare(struct request_spec *spec, struct answer *answer)
{
    size_t n = json_array_size(answer->token_ids);
    resume_clear(spec);
    spec->resumes = true;
    spec->resume_mark = n ? answer->mark : 0;
    spec->resume_ids = mem_alloc_array(n + 1, sizeof *spec->resume_ids);
    for (; spec->n_resume_ids < n; spec->n_resume_ids++)
        spec->resume_ids[spec->n_resume_ids] =
            (uint32_t)json_integer_value(json_array_get(answer->token_ids, spec->n_resume_ids));
    if (!n) json_array_clear(answer->prompt_logprobs); // they come again
    json_decref(answer->completion);
    answer->completion = NULL;
    answer->error_code = 0;
    answer->text_again_bytes = answer->text_bytes - answer->text_sent_bytes;
    answer->resumed += n > 0;
}
