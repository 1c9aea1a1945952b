"""What a server answers: any bytes, JSON or binary. What it does instead of HTTP: tests/torture/hostile.py."""

import json

import numpy as np
import pytest
import torch
from garbage import DEEP, damaged, lawful, often, twisted
from hypothesis import example, given, strategies as st

from hardcase.errors import Unanswered
from hardcase.models.adapters import ClientConfig
from hardcase_teams import http
from hardcase_teams.client import Client
from hardcase_teams.http import LENGTH, Http, MalformedAnswer, TensorSpec

URL = "http://127.0.0.1:9/v2/models/m/infer"
WANTED = TensorSpec("scores", "FP32", (None, 3))
SCORES = {"name": "scores", "datatype": "FP32", "shape": [2, 3]}
JSON = {"model_name": "m", "outputs": [{**SCORES, "data": [1, 2, 3, 4, 5, 6]}]}
BINARY = {"outputs": [{"name": "other", "datatype": "INT64", "shape": [1], "parameters": {"binary_data_size": 8}},
          {**SCORES, "parameters": {"binary_data_size": 24}}]}  # fmt: skip
TAIL = np.arange(2, dtype="<i8")[:1].tobytes() + np.arange(6, dtype="<f4").tobytes()
METADATA = {"name": "m", "versions": ["1"], "platform": "onnx", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 1, 4, 4]}],
            "outputs": [{**SCORES, "shape": [-1, 3]}]}  # fmt: skip


def text(document):
    return json.dumps(document).encode()


ODD = st.sampled_from(["", "9" * 5000, "1e3", "٣", "\0"])
LENGTHS = st.one_of(st.none(), st.integers(-9, 400).map(str), ODD)


@often(200)
@given(twisted(BINARY).map(text) | damaged(text(BINARY)), damaged(TAIL), LENGTHS)
def test_binary_of_any_kind(head, tail, length):
    headers = {LENGTH: str(len(head)) if length is None else length}
    lawful(lambda: http.decode(headers, head + tail, WANTED), MalformedAnswer)


def scripted(metadata, answer):
    """Stands for the network: metadata to whoever asks for them, the same answer to every question."""

    def ask(client, method, path, headers, body, **limits):
        return {}, metadata if method == "GET" else answer

    return ask


BODIES = st.one_of(st.just(JSON), twisted(JSON)).map(text) | damaged(text(JSON))
DESCRIPTIONS = st.one_of(st.just(METADATA), twisted(METADATA)).map(text) | damaged(text(METADATA))
NUMBER = {**SCORES, "shape": [1], "data": ["NUMBER"]}
INT8 = {**METADATA, "inputs": [{"name": "x", "datatype": "INT8", "shape": [-1, 16]}]}


@often(300)
@given(DESCRIPTIONS, BODIES)
@example(b"[" * DEEP, text(JSON))
@example(text(METADATA), b"[" * DEEP)
@example(text(METADATA), text({"outputs": [NUMBER]}).replace(b'"NUMBER"', b"9" * 5000))
@example(text(INT8), text(JSON))
def test_a_model_behind_any_server(metadata, answer):
    """A model, and answers of one row an image; or a problem, also when it is asked later."""
    images = torch.rand(2, 1, 4, 4)

    def ask():
        subject = Http(URL, 3, (1, 4, 4), config=ClientConfig(retries=0))
        logits = subject(images).logits
        assert logits.shape[0] == 2
        assert logits.dtype == torch.float32
        return logits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, "ask", scripted(metadata, answer))
        lawful(ask, Unanswered)


def test_an_answer_in_order_is_understood():
    """The fuzzed answers are damage to ones that are right."""
    assert http.decode({}, text(JSON), WANTED).tolist() == [[1, 2, 3], [4, 5, 6]]
    head = text(BINARY)
    found = http.decode({LENGTH: str(len(head))}, head + TAIL, WANTED)
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert http.specs(text(METADATA))[0] == TensorSpec("x", "FP32", (None, 1, 4, 4))
