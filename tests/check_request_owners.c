// SPDX-License-Identifier: Apache-2.0
// router/core: ids of requests belong to the tenant of an API key. Another tenant may use the same id, but cannot abort
// this request. Without keys all clients share one set of ids.
#include <stdlib.h>

#include "lib/base/mem.h"
#include "tests/core_fixture.h"
#include "tests/suite.h"

static struct fixture f;

static struct client *submit(const char *id, uint64_t owner)
{
    struct client *client = fixture_request(&f, 8, 4);
    client->r->spec.prefill.mode = PREFILL_OFF;
    client->r->spec.owner = owner;
    client->r->id = mem_string(id);
    fixture_submit(&f, client);
    return client;
}

static void setup(void)
{
    fixture_init(&f);
    fixture_start(&f);
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    fixture_attach(&f, &hello);
}

static void teardown(void)
{
    fixture_stop(&f);
}

START_TEST(an_id_is_unique_within_its_tenant)
{
    struct client *mine = submit("a", 1), *again = submit("a", 1), *other = submit("a", 2);
    ck_assert_int_eq(again->ends, 1);
    ck_assert_int_eq(again->status, STATUS_EXISTS);
    ck_assert(!mine->ends);
    ck_assert(!other->ends);
}
END_TEST

START_TEST(a_tenant_aborts_its_own_requests_only)
{
    struct client *mine = submit("a", 1), *other = submit("a", 2), *third = submit("b", 2);
    ck_assert(!core_abort(f.c, "b", 1, f.now_us));
    ck_assert(core_abort(f.c, "a", 1, f.now_us));
    ck_assert(mine->ends);
    ck_assert(!other->ends);
    ck_assert(!third->ends);
    ck_assert(!core_abort(f.c, "a", 1, f.now_us));
}
END_TEST

START_TEST(an_operator_aborts_the_requests_of_all_tenants)
{
    struct client *one = submit("a", 1), *two = submit("a", 2), *third = submit("b", 2);
    ck_assert(core_abort(f.c, "a", 0, f.now_us));
    ck_assert(one->ends);
    ck_assert(two->ends);
    ck_assert(!third->ends);
}
END_TEST

// The sanitizers find leaks.
START_TEST(choices_of_a_prompt_own_their_parts)
{
    struct request *first = request_create(), *second = request_create();
    first->spec.n_tokens = 2;
    first->spec.tokens = mem_alloc_array(2, sizeof *first->spec.tokens);
    first->spec.tenant = mem_string("acme");
    ck_assert_int_eq(logit_bias_add(&first->spec.sampling.logit_bias, 5, 1), STATUS_OK);
    request_copy_spec(first, second);
    request_free(first);
    ck_assert_int_eq(second->spec.sampling.logit_bias.n, 1);
    ck_assert_str_eq(second->spec.tenant, "acme");
    request_free(second);
}
END_TEST

SUITE("request_owners")
{
    FIXTURE(setup, teardown);
    TEST(an_id_is_unique_within_its_tenant);
    TEST(a_tenant_aborts_its_own_requests_only);
    TEST(an_operator_aborts_the_requests_of_all_tenants);
    TEST(choices_of_a_prompt_own_their_parts);
}
