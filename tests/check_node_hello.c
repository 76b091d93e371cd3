// SPDX-License-Identifier: Apache-2.0
// The Hello of a node describes the model and the tokenizer that the node has opened, even if their directory has
// changed since. Loading takes minutes, and a symbolic link to the current version of a model may be switched
// meanwhile.
#include <stdlib.h>
#include <unistd.h>

#include "engine/node_main.h"
#include "lib/base/mem.h"
#include "tests/model_fixture.h"
#include "tests/suite.h"

// Writes a checkpoint with a tokenizer. `other` selects another version of both.
static char *version_write(bool other)
{
    struct tiny_model spec = tiny_model_spec("llama");
    spec.seed += other;
    spec.tokenizer = true;
    char *dir = tiny_model_temp(&spec);
    if (other) edit_file(dir, "tokenizer.json", "\"add_prefix_space\":false", "\"add_prefix_space\":true ");
    return dir;
}

static void link_set(const char *link, const char *target)
{
    char *next = mem_format("%s.next", link);
    ck_assert_int_eq(symlink(target, next), 0);
    ck_assert_int_eq(rename(next, link), 0);
    free(next);
}

// Returns the Hello of a node that is started on `current`. Once the model is open, `current` becomes a link to `then`.
static Forepack__Cluster__V1__Hello hello_of(const char *current, const char *then)
{
    const struct node_options options = {.model = (char *)current,
                                         .load = "auto",
                                         .backend = "reference",
                                         .dtype = "auto",
                                         .kv_dtype = "auto",
                                         .packed_cache = "off",
                                         .allreduce_dtype = "auto",
                                         .threads = 1,
                                         .token_budget = 16,
                                         .max_seqs = 2,
                                         .kv_blocks = 64};
    const struct model_options model = node_model_options(&options);
    struct comm *comm;
    struct engine *engine;
    struct tokenizer *tokenizer;
    Forepack__Cluster__V1__Hello hello;
    ck_assert_int_eq(comm_open_self(&comm), STATUS_OK);
    ck_assert_int_eq(tokenizer_open(options.model, &tokenizer), STATUS_OK);
    ck_assert_msg(engine_open(&model, comm, &engine) == STATUS_OK, "%s", status_message());
    link_set(current, then);
    node_hello_fill(&hello, &options, engine_model(engine), tokenizer, comm, FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER);
    engine_close(engine);
    tokenizer_free(tokenizer);
    comm->ops->close(comm);
    return hello;
}

START_TEST(the_hello_is_that_of_the_files_that_were_opened)
{
    char *old = version_write(false), *new = version_write(true), *current = mem_format("%s.current", old);
    link_set(current, old);
    const Forepack__Cluster__V1__Hello before = hello_of(current, old), while_switched = hello_of(current, new),
                                       after = hello_of(current, new);
    ck_assert_uint_eq(while_switched.model_fingerprint, before.model_fingerprint);
    ck_assert_uint_eq(while_switched.tokenizer_fingerprint, before.tokenizer_fingerprint);
    ck_assert_uint_ne(after.model_fingerprint, before.model_fingerprint);
    ck_assert_uint_ne(after.tokenizer_fingerprint, before.tokenizer_fingerprint);
    unlink(current);
    free(current);
    tiny_model_remove(new);
    tiny_model_remove(old);
}
END_TEST

SUITE("node_hello")
{
    TEST(the_hello_is_that_of_the_files_that_were_opened);
}
