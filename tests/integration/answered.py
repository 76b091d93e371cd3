# SPDX-License-Identifier: Apache-2.0
"""Requests that arrived at a router over HTTP, by what the router counts."""
import urllib.request

from prometheus_client.parser import text_string_to_metric_families


def answered(url, status):
    """Returns the number of answers of a class of statuses ("5xx") so far: each request that arrives has one."""
    with urllib.request.urlopen(url + "/metrics") as page:
        families = text_string_to_metric_families(page.read().decode())
        return sum(sample.value for family in families for sample in family.samples
                   if sample.name == "forepack:http_responses_total" and sample.labels["status"] == status)
