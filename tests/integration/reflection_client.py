# SPDX-License-Identifier: Apache-2.0
"""A gRPC client that learns the API by server reflection, with the packages grpcio and grpcio-reflection of PyPI.

Usage: reflection_client.py HOST:PORT
"""
import sys

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

channel = grpc.insecure_channel(sys.argv[1], options=[("grpc.enable_http_proxy", 0)])
database = ProtoReflectionDescriptorDatabase(channel)
assert {"forepack.v1.Inference", "grpc.health.v1.Health"} <= set(database.get_services())
method = DescriptorPool(database).FindServiceByName("forepack.v1.Inference").FindMethodByName("Generate")
request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
generate = channel.unary_stream("/forepack.v1.Inference/Generate", request.SerializeToString, response.FromString)


def tokens(**sampling):
    got, completion = [], None
    for answer in generate(request(text="The badge number of Romas is", sampling={"max_tokens": 6, **sampling}), timeout=600):
        got += answer.chunk.token_ids
        completion = answer.completion if answer.HasField("completion") else completion
    assert completion.finish_reason in ("stop", "length"), completion
    assert completion.usage.completion_tokens >= len(got)
    return got


free = tokens(ignore_eos=True)
assert len(free) == 6 and tokens(ignore_eos=True) == free
assert free[0] not in tokens(ignore_eos=True, logit_bias={free[0]: -100})
assert tokens(ignore_eos=True, logit_bias={free[0]: 100}) == 6 * [free[0]]
try:
    tokens(logit_bias={99999999: 1})
    raise AssertionError("not refused")
except grpc.RpcError as error:
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and "logit_bias" in error.details(), error
print("ok reflection")
