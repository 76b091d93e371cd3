# SPDX-License-Identifier: Apache-2.0
"""Ends a running request by its id, over gRPC, for clients of protocols that cannot."""
import grpc


def abort(server, request_id):
    channel = grpc.insecure_channel(server, options=[("grpc.enable_http_proxy", 0)])
    raw = channel.unary_unary("/forepack.v1.Inference/Abort", lambda data: data, lambda data: data)
    answer = raw(b"\x0a" + bytes([len(request_id)]) + request_id.encode(), timeout=600)  # AbortRequest
    assert answer == b"\x08\x01", answer  # one request was running
