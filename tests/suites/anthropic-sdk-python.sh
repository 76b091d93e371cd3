#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tests of Anthropic's Python library for the endpoints that the router has.
suite=anthropic-sdk-python api= more_names=(src/anthropic/resources/messages/messages.py)
tests=(tests/api_resources/test_messages.py tests/api_resources/test_models.py)
. "$(dirname "$0")/sdk.sh"
