// SPDX-License-Identifier: Apache-2.0
#include "router/front/request/client_rules.h"

struct client_rules client_rules_get(const struct client *client)
{
    struct client_rules own = {0};
    if (client->principal) own = principal_rules(client->principal);
    return client_rules_first(&own, &client->front->rules);
}
