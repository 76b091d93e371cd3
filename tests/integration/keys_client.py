# SPDX-License-Identifier: Apache-2.0
"""API keys as the official clients send them, against a router without nodes.

Usage: keys_client.py URL KEY KEY_OF_ONE_REQUEST_PER_MINUTE
"""
import sys

import anthropic
import openai

url, key, few = sys.argv[1:4]
turns = [{"role": "user", "content": "Hi"}]


def openai_with(secret):
    return openai.OpenAI(base_url=url + "/v1", api_key=secret, max_retries=0, timeout=600)


def anthropic_with(**secret):
    return anthropic.Anthropic(base_url=url, **secret, max_retries=0, timeout=600)


def fails(kind, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        return error
    raise AssertionError("not refused")


error = fails(openai.AuthenticationError, openai_with("wrong").models.list)
assert error.code == "invalid_api_key" and "wrong" not in error.message, error
model = openai_with(key).models.list().data[0].id

ask = {"model": model, "messages": turns}
error = fails(anthropic.AuthenticationError, anthropic_with(api_key="wrong").messages.count_tokens, **ask)
assert error.body["error"]["type"] == "authentication_error", error.body
assert anthropic_with(api_key=key).messages.count_tokens(**ask).input_tokens > 0  # header x-api-key
assert anthropic_with(auth_token=key).messages.count_tokens(**ask).input_tokens > 0  # header authorization

create = anthropic_with(api_key=few).messages.create
fails(anthropic.InternalServerError, create, max_tokens=4, **ask)  # 503: there are no nodes
error = fails(anthropic.RateLimitError, create, max_tokens=4, **ask)
assert error.body["error"]["type"] == "rate_limit_error", error.body
assert int(error.response.headers["retry-after"]) >= 1
fails(openai.RateLimitError, openai_with(few).responses.create, model=model, input="Hi")
print("ok keys")
