# SPDX-License-Identifier: Apache-2.0
"""KServe's protocol through NVIDIA's tritonclient.

Usage: kserve_client.py served HOST:PORT PROMPTS.jsonl FOREPACK MODEL
       kserve_client.py in_flight|memory HOST:PORT
       kserve_client.py keys HOST:PORT KEY KEY_OF_ONE_REQUEST_PER_MINUTE
"""
import json
import queue
import subprocess
import sys

import grpc
import numpy as np
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

mode, server = sys.argv[1:3]
WAIT = 600  # seconds, an upper bound
client = triton.InferenceServerClient(server)
channel = grpc.insecure_channel(server)
stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)


def tensor(name, array, datatype):
    made = triton.InferInput(name, list(array.shape), datatype)
    return made.set_data_from_numpy(array)


def text(name, *values):
    return tensor(name, np.array([v.encode() for v in values], dtype=np.object_), "BYTES")


def switch(name, on):
    return tensor(name, np.array([on]), "BOOL")


def sampling(**fields):
    return text("sampling_parameters", json.dumps(fields))


def fails(code, fragment, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except InferenceServerException as error:
        assert error.status() == "StatusCode." + code, error
        assert fragment in error.message(), error
        return error
    raise AssertionError("not refused")


class Stream:
    """start_stream() and the results that its callback receives."""

    def __init__(self, **named):
        self.client = triton.InferenceServerClient(server)
        self.came = queue.Queue()
        self.client.start_stream(lambda result, error: self.came.put((result, error)), **named)

    def ask(self, request_id, *inputs, **named):
        self.client.async_stream_infer("main", list(inputs), request_id=request_id, **named)

    def get(self):
        return self.came.get(timeout=WAIT)

    def gather(self, n):
        """All responses of `n` requests by id, until each has its final one."""
        answers = {}
        while n:
            result, error = self.get()
            assert error is None, error
            response = result.get_response()
            answers.setdefault(response.id, []).append(result)
            n -= response.parameters["triton_final_response"].bool_param
        return answers


def ids_of(results):
    parts = [result.as_numpy("output_ids") for result in results]
    return np.concatenate([part for part in parts if part is not None]).tolist()


def text_of(results):
    return b"".join(result.as_numpy("text_output")[0] for result in results).decode()


def health():
    """Returns the state that a gRPC probe of the service sees: 1 serving, 2 not serving."""
    name = b"inference.GRPCInferenceService"
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    return check(b"\x0a" + bytes([len(name)]) + name, timeout=WAIT)[1]


def check_server():
    assert health() == 1
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("main") and client.is_model_ready("main", "1") and client.is_model_ready("")
    assert not client.is_model_ready("absent") and not client.is_model_ready("main", "2")
    fails("NOT_FOUND", "model 'main' has no version '2'", client.get_model_metadata, "main", "2")
    assert client.get_server_metadata().name == "forepack"
    metadata = client.get_model_metadata("main")
    assert metadata.name == "main" and list(metadata.versions) == ["1"]
    assert [(i.name, i.datatype, list(i.shape)) for i in metadata.inputs][:2] == [
        ("text_input", "BYTES", [1]), ("input_ids", "INT32", [-1])]
    assert metadata.outputs[0].name == "text_output"
    config = client.get_model_config("main").config
    assert config.model_transaction_policy.decoupled and config.max_batch_size == 0
    assert [model.name for model in client.get_model_repository_index().models] == ["main"]
    fails("UNIMPLEMENTED", "this server has no method", client.get_inference_statistics)


def check_infer(prompt, told):
    """The same tokens as through `forepack generate`, for the prompt as text and as ids, raw and typed."""
    greedy = sampling(temperature="0", max_tokens="8", ignore_eos=True)  # strings, as in Triton's examples
    outputs = [triton.InferRequestedOutput(name) for name in ("output_ids", "text_output", "finish_reason")]
    result = client.infer("main", [text("text_input", prompt), greedy, switch("exclude_input_in_output", True)],
                          outputs=outputs, request_id="a \u00fc")
    response = result.get_response()
    assert result.as_numpy("output_ids").tolist() == told["token_ids"], response
    assert result.as_numpy("text_output").tolist() == [told["text"].encode()]
    assert result.as_numpy("finish_reason").tolist() == [b"length"]
    assert (response.id, response.model_name, response.model_version) == ("a \u00fc", "main", "1")
    assert response.parameters["completion_tokens"].int64_param == 8
    assert response.parameters["prefill"].string_param == "whole:off"
    n_prompt = response.parameters["prompt_tokens"].int64_param

    # If exclude_input_in_output is missing, the text starts with the prompt.
    result = client.infer("", [text("text_input", prompt), greedy])
    assert result.as_numpy("text_output")[0].decode() == prompt + told["text"]
    assert result.as_numpy("output_ids") is None and result.get_response().model_name == "main"

    # Request parameters, and tensors of one parameter.
    flags = [switch("return_" + name, True) for name in ("finish_reason", "num_input_tokens", "num_output_tokens",
                                                         "cumulative_logprob", "logprobs")]
    result = client.infer("main", [text("text_input", prompt), tensor("max_tokens", np.array([[3]], np.int32), "INT32"),
                                   tensor("temperature", np.array([0], np.float32), "FP32")] + flags,
                          parameters={"max_tokens": 9, "ignore_eos": True, "logprobs": "2"})
    assert result.as_numpy("num_input_tokens").tolist() == [n_prompt]
    assert result.as_numpy("num_output_tokens").tolist() == [3]
    logprobs = json.loads(result.as_numpy("logprobs")[0])
    assert [next(iter(token)) for token in logprobs] == [str(i) for i in told["token_ids"][:3]], logprobs
    assert all(len(token) == 2 and token[next(iter(token))]["rank"] == 1 for token in logprobs), logprobs
    total = sum(next(iter(token.values()))["logprob"] for token in logprobs)
    assert abs(total - result.as_numpy("cumulative_logprob")[0]) < 1e-4

    # Ids of every width, with and without a dimension of one request, and typed contents.
    ids = np.array(told["prompt_ids"])
    for array, datatype in ((ids.astype(np.int32), "INT32"), (ids.astype(np.int64).reshape(1, -1), "INT64"),
                            (ids.astype(np.uint32), "UINT32")):
        result = client.infer("main", [tensor("input_ids", array, datatype), greedy])
        assert result.as_numpy("output_ids").tolist() == told["token_ids"]
    request = service_pb2.ModelInferRequest(model_name="main")
    request.inputs.add(name="input_ids", datatype="INT64", shape=[len(ids)]).contents.int64_contents.extend(ids.tolist())
    request.parameters["temperature"].double_param = 0
    request.parameters["max_tokens"].uint64_param = 8
    request.parameters["ignore_eos"].bool_param = True
    assert triton.InferResult(stub.ModelInfer(request, timeout=WAIT)).as_numpy("output_ids").tolist() == told["token_ids"]

    # Callbacks, and a prefill option.
    came = queue.Queue()
    call = client.async_infer("main", [text("text_input", prompt), greedy],
                              lambda result, error: came.put((result, error)), parameters={"prefill": "required"})
    result, error = came.get(timeout=WAIT)
    assert error is None and call is not None
    assert result.get_response().parameters["prefill"].string_param == "speculated"
    assert result.get_response().parameters["kept_tokens"].int64_param < n_prompt


def check_refusals(prompt):
    ask = [text("text_input", prompt)]
    few = {"max_tokens": 2}
    fails("NOT_FOUND", "model 'absent' is not served here", client.infer, "absent", ask)
    fails("NOT_FOUND", "has no version '7'", client.infer, "main", ask, "7")
    fails("INVALID_ARGUMENT", "input 'no_such': the model has no input", client.infer, "main", ask + [text("no_such", "")])
    fails("INVALID_ARGUMENT", "output 'no_such'", client.infer, "main", ask,
          outputs=[triton.InferRequestedOutput("no_such")])
    fails("INVALID_ARGUMENT", "has 2 elements: must have 1", client.infer, "main", [text("text_input", "a", "b")])
    fails("INVALID_ARGUMENT", "[tokens] or [1, tokens]", client.infer, "main",
          [tensor("input_ids", np.zeros((2, 3), np.int32), "INT32")])
    fails("INVALID_ARGUMENT", "input_ids: 4000000 at index 1", client.infer, "main",
          [tensor("input_ids", np.array([1, 4000000], np.int32), "INT32")])
    fails("INVALID_ARGUMENT", "temperature", client.infer, "main", ask, parameters={"temperature": -1.0})
    fails("INVALID_ARGUMENT", "'sampling_parameters'", client.infer, "main", ask + [text("sampling_parameters", "{")])
    fails("INVALID_ARGUMENT", "needs a call of ModelStreamInfer", client.infer, "main", ask + [switch("stream", True)])
    fails("UNIMPLEMENTED", "Triton's levels", client.infer, "main", ask, priority=1, parameters=few)
    fails("UNIMPLEMENTED", "has no sequences", client.infer, "main", ask, sequence_id=5, parameters=few)
    fails("UNIMPLEMENTED", "n: not supported", client.infer, "main", ask, parameters={"n": 2})
    fails("OUT_OF_RANGE", "maximum context length is", client.infer, "main", [text("text_input", "word " * 100000)])
    fails("DEADLINE_EXCEEDED", "", client.infer, "main", ask, timeout=1, parameters=few)
    raw = service_pb2.ModelInferRequest(model_name="main", raw_input_contents=[b"\xff\xff\xff\xffabc"])
    raw.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    try:
        stub.ModelInfer(raw, timeout=WAIT)
        raise AssertionError("not refused")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error
        assert "has a length of 4294967295 bytes, but 3 bytes follow" in error.details(), error


def check_streams(prompts, told):
    greedy = sampling(temperature=0, max_tokens=8, ignore_eos=True)
    stream = Stream()
    names = [triton.InferRequestedOutput(name) for name in ("text_output", "output_ids", "finish_reason")]
    for i, prompt in enumerate(prompts):  # in pieces and whole, several at once
        stream.ask(str(i), text("text_input", prompt), greedy, switch("stream", i != 1), outputs=names,
                   enable_empty_final_response=i == 2)
    answers = stream.gather(len(prompts))
    assert sorted(answers) == [str(i) for i in range(len(prompts))]
    for i, prompt in enumerate(prompts):
        results = answers[str(i)]
        assert ids_of(results) == told[i]["token_ids"]
        last = results[-1]
        if i == 2:  # the final response is empty
            assert not last.get_response().outputs and last.as_numpy("text_output") is None
            results, last = results[:-1], results[-2]
        assert text_of(results) == (prompt if i == 1 else "") + told[i]["text"]
        assert len(results) == 1 if i == 1 else len(results) > 1
        assert last.as_numpy("finish_reason").tolist() == [b"length"]
        assert all(r.as_numpy("finish_reason").tolist() == [b"None"] for r in results[:-1])
        assert last.get_response().parameters["completion_tokens"].int64_param == 8

    # An error belongs to its request: the stream goes on.
    stream.ask("bad", text("text_input", prompts[0]), text("no_such", "x"))
    result, error = stream.get()
    assert result is None and error.message().startswith("[request id: bad] input 'no_such'"), error
    stream.ask("again", text("text_input", prompts[0]), greedy, switch("stream", True))
    assert text_of(stream.gather(1)["again"]) == told[0]["text"]

    # The half-close: running requests end first.
    for i in range(3):
        stream.ask("late%d" % i, text("text_input", prompts[0]), greedy, switch("exclude_input_in_output", True))
    stream.client.stop_stream()
    assert text_of(stream.gather(3)["late2"]) == told[0]["text"]
    assert stream.came.empty()


def check_cancel(prompt):
    """Cancelled requests end; the script checks that they return their KV blocks."""
    endless = [text("text_input", prompt), sampling(max_tokens=900, ignore_eos=True)]
    stream = Stream()
    for i in range(4):
        stream.ask(str(i), *endless, switch("stream", True))
    stream.get()
    stream.client.stop_stream(cancel_requests=True)
    while True:
        result, error = stream.get()
        if error:
            break
    assert error.status() == "StatusCode.CANCELLED", error
    came = queue.Queue()
    call = client.async_infer("main", endless, lambda result, error: came.put((result, error)))
    call.cancel()
    assert came.get(timeout=WAIT)[1].status() == "StatusCode.CANCELLED"
    fails("DEADLINE_EXCEEDED", "", client.infer, "main", endless, client_timeout=0.05)


def generate(forepack, model, prompt):
    told = json.loads(subprocess.run([forepack, "generate", "--server", server, "--json", "--temperature", "0",
                                      "--max-tokens", "8", "--ignore-eos", "--prompt", prompt],
                                     check=True, capture_output=True).stdout)
    ids = subprocess.run([forepack, "tokenize", "--model", model, "-"], input=prompt.encode(), check=True,
                         capture_output=True).stdout
    told["prompt_ids"] = [int(i) for i in ids.split()]
    return told


def run_served():
    prompts = [json.loads(line)["prompt"] for line in open(sys.argv[3], encoding="utf-8")][:4]
    told = [generate(sys.argv[4], sys.argv[5], prompt) for prompt in prompts]
    check_server()
    check_infer(prompts[0], told[0])
    check_refusals(prompts[0])
    check_streams(prompts, told)
    check_cancel(prompts[0])


def run_memory():
    """A whole answer of over 1 MiB ends if the limit of all whole answers is 1 MiB. Its stream goes on, and streamed
    answers may be long."""
    hello, limits = text("text_input", "Hello"), {"logprobs": 20, "ignore_eos": True, "temperature": 0}
    large = [hello, sampling(max_tokens=1000, **limits), switch("return_logprobs", True)]
    fails("RESOURCE_EXHAUSTED", "whole answers take over 1 MiB of the router's memory", client.infer, "main", large)
    stream = Stream()
    stream.ask("large", *large)
    result, error = stream.get()
    assert error.message().startswith("[request id: large] whole answers take over 1 MiB"), error
    stream.ask("small", hello, sampling(max_tokens=20, **limits), switch("return_logprobs", True))
    assert len(json.loads(stream.gather(1)["small"][0].as_numpy("logprobs")[0])) == 20
    stream.ask("pieces", *large, switch("stream", True))
    assert sum(len(json.loads(r.as_numpy("logprobs")[0])) for r in stream.gather(1)["pieces"]) == 1000
    stream.client.stop_stream()


def run_in_flight():
    """The last of 1025 requests of a stream is refused while no request ends."""
    stream = Stream()
    for i in range(1025):
        stream.ask(str(i), text("text_input", "Hello"), sampling(max_tokens=2))
    result, error = stream.get()
    assert error.message().startswith("[request id: 1024] 1024 requests of this stream have not ended"), error
    stream.client.stop_stream(cancel_requests=True)


def run_keys():
    key, few = sys.argv[3:5]
    ask = [text("text_input", "Hello")]
    bearer = lambda secret: {"authorization": "Bearer " + secret}
    assert client.is_server_live() and not client.is_server_ready() and health() == 2  # open to every caller
    fails("UNAUTHENTICATED", "", client.is_model_ready, "main")
    fails("UNAUTHENTICATED", "", client.infer, "main", ask)
    fails("UNAUTHENTICATED", "", client.infer, "main", ask, headers=bearer("wrong"))
    assert not client.is_model_ready("main", headers=bearer(key))
    models = client.get_model_repository_index(headers=bearer(key)).models
    assert [(model.name, model.state) for model in models] == [("main", "UNAVAILABLE"), ("other", "UNAVAILABLE")]
    assert client.get_model_metadata("other", headers=bearer(key)).name == "other"
    fails("UNAVAILABLE", "", client.infer, "main", ask, headers=bearer(key))  # there are no nodes
    fails("PERMISSION_DENIED", "tenant", client.infer, "main", ask, headers=bearer(key), parameters={"tenant": "other"})
    fails("UNAVAILABLE", "", client.infer, "main", ask, headers=bearer(few))
    fails("RESOURCE_EXHAUSTED", "", client.infer, "main", ask, headers=bearer(few))
    stream = Stream(headers=bearer(few))
    stream.ask("q", *ask)
    assert stream.get()[1].message().startswith("[request id: q] "), "a quota ends the request, not the stream"
    stream.client.stop_stream()


{"served": run_served, "in_flight": run_in_flight, "memory": run_memory, "keys": run_keys}[mode]()
print("ok", mode)
