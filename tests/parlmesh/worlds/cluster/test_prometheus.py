"""Queries to servers that answer as Prometheus does, or otherwise."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from parlmesh.errors import FailedPrecondition, InvalidInput, Unavailable
from parlmesh.worlds.cluster.prometheus import instant, over_time

TWICE = (
    b'{"data": {"result": [{"metric": {"deployment": "web", "pod": "a"}, "value": [1, "5"], "values": [[1, "5"]]},'
    b' {"metric": {"deployment": "web", "pod": "b"}, "value": [1, "9"], "values": [[1, "9"]]}]}}'
)


@contextmanager
def answering(body, status=200, *, raw=False):
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            if not raw:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5.0)
    assert asked


def both(url):
    return [lambda: instant(url, "up"), lambda: over_time(url, "up", 0.0, 60.0, 30.0)]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<html>\n<body>log in,\nplease</body></html>", "not JSON"),
        (b"[]", "cannot be read"),
        (b'{"data": {"result": [1]}}', "cannot be read"),
        (b'{"data": {"result": [{"value": [1, "2"], "values": [[1, "2"]]}]}}', "cannot be read"),
        (b'{"data": {"result": [{"metric": [], "value": [1, "2"], "values": [[1, "2"]]}]}}', "cannot be read"),
        (b'{"data": {"result": [{"metric": {}, "value": [1, "much"], "values": [[1, "much"]]}]}}', "cannot be read"),
        (b'{"data": {"resultType": "scalar", "result": [1, "2"]}}', "cannot be read"),
        (b'{"data": {"resultType": "string", "result": null}}', "cannot be read"),
        (TWICE, "more than one series for the deployment web"),
    ],
)
def test_an_answer_of_another_kind_is_one_sentence(body, said):
    with answering(body) as url:
        for ask in both(url):
            with pytest.raises(FailedPrecondition, match=said) as raised:
                ask()
            assert "\n" not in raised.value.message


def test_a_refusal_is_one_sentence_with_the_reason_prometheus_gives():
    with answering(b'{"status": "error", "errorType": "bad_data", "error": "parse error"}', 400) as url:
        for ask in both(url):
            with pytest.raises(FailedPrecondition, match="refused 'up': 400 parse error"):
                ask()
    with (
        answering(b"<html>\n<body>bad\ngateway</body></html>", 502) as url,
        pytest.raises(FailedPrecondition) as raised,
    ):
        instant(url, "up")
    assert "502" in raised.value.message
    assert "\n" not in raised.value.message


def test_a_server_that_speaks_no_http_is_unavailable():
    with answering(b"\x00\x01junk\r\n\r\n", raw=True) as url:
        for ask in both(url):
            with pytest.raises(Unavailable, match="does not answer"):
                ask()


def test_what_is_not_a_number_is_left_out():
    body = b'{"data": {"result": [{"metric": {"deployment": "web"}, "value": [1, "NaN"], "values": [[1, "NaN"]]}]}}'
    with answering(body) as url:
        assert instant(url, "up") == {}
        assert over_time(url, "up", 0.0, 60.0, 30.0) == {"web": {}}


def test_a_file_is_never_read():
    with pytest.raises(InvalidInput, match="http or https"):
        instant("file:///etc/hostname", "up")
