"""A model behind an address: asked in batches, patiently, never twice, with a secret that stays one."""

import json
import logging
import pickle
import ssl
import subprocess
import time

import numpy as np
import pytest
import torch
from serving import Server, answers_as_the_network, pictures, serving, write_onnx

from hardcase.errors import HardcaseError
from hardcase.models.adapters import Cached, ClientConfig, Retrying
from hardcase.testing.toys import SIZE
from hardcase_teams import http
from hardcase_teams.http import Http

IMAGE = (1, SIZE, SIZE)
QUICK = ClientConfig(timeout=5.0, retries=3, batch=8)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    """Back-off is tested by what it asks for, not by waiting."""
    monkeypatch.setattr(
        "hardcase_teams.client.sleep", lambda seconds: time.sleep(min(seconds, 0.01))
    )


def made(server, **how):
    return Http(server.url, 4, IMAGE, config=how.pop("config", QUICK), **how)


@pytest.mark.parametrize("binary", [True, False])
def test_the_same_answers_as_the_network_itself(model, binary):
    with serving(model, binary=binary) as server:
        subject = made(server)
        assert subject.binary is binary
        assert answers_as_the_network(subject)
        assert (subject.offers, subject.device.type) == ("scores", "cpu")
        server.seen.clear()
        subject(pictures())
        assert server.seen["binary" if binary else "json"] == 3, "20 images in requests of 8"
        assert server.seen["rows"] == 20 + 3, (
            "one row of every request shows that the order is kept"
        )


@pytest.mark.parametrize("fault", ["drop", 429, 500, 503, "garbage", "short", "shape"])
def test_a_fault_that_passes_changes_nothing(server, fault):
    subject, x = made(server), pictures(6)
    right = subject(x).logits
    server.faults.extend([fault, fault])
    assert torch.equal(subject(x).logits, right)
    assert not server.faults


def test_a_slow_answer_is_asked_for_again(server):
    subject, x = made(server, config=ClientConfig(timeout=1.0, retries=3)), pictures(3)
    server.delay = 3.0  # longer than the limit, which a busy machine keeps otherwise
    server.faults.append("slow")
    begun = time.monotonic()
    subject(x)
    assert time.monotonic() - begun < 2.7
    assert subject.tally["timeouts"] == 1


def test_the_server_says_how_long_to_wait(server, monkeypatch):
    waits = []
    monkeypatch.setattr("hardcase_teams.client.sleep", waits.append)
    subject = made(server)
    server.faults.extend([503, 503, 503])
    subject(pictures(2))
    assert all(2**n / 8 <= wait <= 2**n / 4 for n, wait in enumerate(waits[:3]))
    assert subject.client._pause(0, "7") == 7
    assert subject.client._pause(0, "999999") == 60
    assert subject.client._pause(0, "tomorrow") <= 0.25


def test_a_server_that_is_down_stops_the_search_and_says_so(server):
    subject = Retrying(made(server))
    subject(pictures(2))
    server.always = "drop"
    with pytest.raises(HardcaseError, match=r"does not answer any more: 127\.0\.0\.1:\d+"):
        subject(pictures(4))


def test_an_input_that_breaks_the_server_is_found_and_the_rest_goes_on(server):
    x = pictures(20)
    subject = Retrying(made(server), piece=8)
    right = subject(x).logits
    server.poison = x[13].numpy()
    logits = subject(x).logits
    assert logits.isnan().all(1).nonzero().flatten().tolist() == [13]
    kept = [i for i in range(20) if i != 13]
    assert torch.equal(logits[kept], right[kept])
    assert subject.tally["unanswered"] == 1


def test_an_input_on_which_the_server_hangs(server, monkeypatch):
    x = pictures(5)

    def hang(self, array):
        time.sleep(1.5)
        return 200, {}, b"{}"

    monkeypatch.setattr(Server, "poisoned", hang)
    subject = Retrying(made(server, config=ClientConfig(timeout=0.75, retries=4)), piece=8)
    subject(x)
    server.poison = x[2].numpy()
    begun = time.monotonic()
    logits = subject(x).logits
    assert logits.isnan().all(1).tolist() == [False, False, True, False, False]
    assert time.monotonic() - begun < 12, (
        "an answer that never comes is not waited for again and again"
    )


def test_a_request_that_is_too_large_is_halved(model):
    with serving(model, largest=4) as server:
        assert answers_as_the_network(Retrying(made(server), piece=8), 8)


def test_wrong_shapes_are_told(server):
    subject = made(server)
    server.always = "shape"
    with pytest.raises(HardcaseError, match=r"an answer of shape \(1, 2, 2\) for . images"):
        subject(pictures(3))


def test_nan_is_an_answer(server):
    subject = Cached(Retrying(made(server)), 10)
    server.faults.append("nan")
    assert subject(pictures(1)).logits.isnan().all()
    assert not subject(pictures(1)).logits.isnan().any(), (
        "an answer that is no number is not remembered"
    )
    assert subject.tally["unanswered"] == 0


def test_repeated_images_are_not_asked_again_and_counted_apart(server):
    subject, x = Cached(made(server), 15), pictures(10)
    first = subject(torch.cat([x, x[:4]])).logits
    assert torch.equal(first[10:], first[:4])
    assert subject.tally["cached"] == 4
    server.seen.clear()
    assert torch.equal(subject(x).logits, first[:10])
    assert server.seen["rows"] == 0
    assert subject.tally["cached"] == 14
    subject(pictures(25)[10:])
    assert len(subject.known) == 15


def test_many_requests_at_a_time_but_no_more(server):
    subject = made(server, config=ClientConfig(batch=2, concurrency=3, timeout=5))
    right = subject(pictures(24)).logits
    server.most = 0
    server.always, server.delay = "slow", 0.05
    assert torch.equal(subject(pictures(24)).logits, right), (
        "answers come back in the order of the images"
    )
    assert server.most == 3


def test_the_rate_is_kept(server, monkeypatch):
    subject = made(server, config=ClientConfig(batch=1, concurrency=4, rate=50.0))

    monkeypatch.setattr("hardcase_teams.client.sleep", time.sleep)
    server.times.clear()
    subject(pictures(11))
    assert server.times[-1] - server.times[0] >= 10 / 50 * 0.8


def test_a_server_that_names_labels_offers_no_more(tmp_path):
    with serving(write_onnx(tmp_path / "labels.onnx", labels=True)) as server:
        subject = made(server)
        assert subject.offers == "label"
        assert answers_as_the_network(subject, 9, labels=True)


def test_a_server_with_a_fixed_batch_and_channels_last(tmp_path):
    with serving(write_onnx(tmp_path / "fixed.onnx", batch=4, layout="nhwc")) as server:
        assert answers_as_the_network(made(server), 10)


def test_the_token_is_sent_and_told_to_nobody(model, monkeypatch, caplog):
    secret = "s3cret-t0ken"
    caplog.set_level(logging.DEBUG)
    with serving(model, token=secret) as server:
        with pytest.raises(HardcaseError, match="HARDCASE_TOKEN"):
            made(server)
        monkeypatch.setenv("HARDCASE_TOKEN", secret)
        subject = made(server)
        subject(pictures(2))
        assert secret.encode() not in pickle.dumps(subject)
        assert secret not in repr(subject) + caplog.text + subject.hash
        server.token = "another"
        with pytest.raises(HardcaseError) as caught:
            subject(pictures(1))
        assert secret not in str(caught.value), "the server repeated it"
        assert "not shown" in str(caught.value)
        server.token = secret
        again = pickle.loads(pickle.dumps(subject))
        assert torch.equal(again(pictures(2)).logits, subject(pictures(2)).logits)


@pytest.mark.parametrize(
    ("url", "token", "words"),
    [
        ("http://user:pass@host/v2/models/m/infer", None, "a user name, a password or a query"),
        ("http://host/v2/models/m/infer?key=abc", None, "a user name, a password or a query"),
        ("http://host/predict", None, "is not the address of a model"),
        ("ftp://host/v2/models/m/infer", None, "is not the address of a model"),
        ("http://[broken/v2/models/m/infer", None, "is not the address of a model"),
        ("http://example.org/v2/models/m/infer", "secret", "to example.org unencrypted"),
        ("https://example.org/v2/models/m/infer", "two words", "signs that no header can carry"),
    ],
)
def test_addresses_and_tokens_that_are_refused(monkeypatch, url, token, words):
    if token:
        monkeypatch.setenv("HARDCASE_TOKEN", token)
    with pytest.raises(HardcaseError, match=words) as caught:
        Http(url, 4, IMAGE)
    assert not any(word in str(caught.value) for word in ("pass@", "abc", "two words"))


def test_certificates_are_verified(model, tmp_path):
    """A server with a certificate that nobody vouches for is not asked."""
    done = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1", "-days", "2",
         "-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")], capture_output=True,
    )  # fmt: skip
    if done.returncode:
        pytest.skip("no certificate could be made: openssl is missing")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with (
        serving(model, tls=context) as server,
        pytest.raises(HardcaseError, match="certificate verify failed"),
    ):
        made(server, config=ClientConfig(timeout=5, retries=0))


def test_answers_in_another_order_are_noticed(model):
    with serving(model, binary=False) as server:
        subject, x = made(server), pictures(6)
        right = subject(x).logits
        real = server.answer

        def turned(times):
            left = [times]

            def answer(body, length):
                status, headers, content = real(body, length)
                said = json.loads(content)
                if left[0] and said["outputs"][0]["shape"][0] > 1:
                    left[0] -= 1
                    rows = np.array(said["outputs"][0]["data"]).reshape(-1, 4)
                    said["outputs"][0]["data"] = np.roll(rows, 1, 0).ravel().tolist()
                return status, headers, json.dumps(said).encode()

            return answer

        server.answer = turned(1)
        assert torch.allclose(subject(x).logits, right)
        server.answer = turned(9)
        with pytest.raises(HardcaseError, match="answers in another order"):
            subject(x)


def test_layers_cannot_be_seen(server):
    with pytest.raises(HardcaseError, match="shows no layers"):
        made(server)(pictures(1), {"conv": lambda x: x + 0})


def test_json_answers_may_be_nested_and_hold_nan():
    wanted = http.TensorSpec("y", "FP32", (None, 2))
    data = [[1, 2], [3, float("nan")]]
    output = {"name": "y", "datatype": "FP32", "shape": [2, 2], "data": data}
    body = json.dumps({"outputs": [output]})
    assert str(http.decode({}, body.encode(), wanted).tolist()) == "[[1.0, 2.0], [3.0, nan]]"
