#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tests of OpenAI's Python library for the endpoints that the router has.
suite=openai-python api=/v1 more_names=()
tests=(tests/api_resources/chat/test_completions.py tests/api_resources/test_completions.py
    tests/api_resources/test_responses.py tests/api_resources/responses/test_input_tokens.py
    tests/api_resources/test_models.py tests/api_resources/test_files.py tests/api_resources/test_batches.py)
. "$(dirname "$0")/sdk.sh"
