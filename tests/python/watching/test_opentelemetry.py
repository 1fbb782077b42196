"""`malt run --otel`: counters that OpenTelemetry's own SDK sends to a collector."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
service = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")

PROGRAM = """
import malt, numpy as np
malt.init()
w = np.zeros(8)
v = malt.vector(w)
for _ in range(5):
    v.scatter()
    v.gather(malt.AVG, staleness=0)
malt.report(loss=0.25)
malt.barrier()
"""


@pytest.fixture
def collector() -> Iterator[tuple[str, list[Any]]]:
    """Where an OTLP collector is, and the requests that it has got."""
    requests: list[Any] = []

    class Requests(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/metrics"
            requests.append(service.ExportMetricsServiceRequest.FromString(data))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Requests) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", requests
        server.shutdown()
        thread.join()


def run(tmp_path: Path, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    (tmp_path / "program.py").write_text(PROGRAM)
    return subprocess.run(
        [sys.executable, "-m", "malt", "run", "-n", "2", "--otel", "program.py"],
        cwd=tmp_path,
        env=os.environ | {"OTEL_EXPORTER_OTLP_COMPRESSION": "none"} | environ,
        capture_output=True,
        text=True,
        timeout=100,
    )


def last_values(requests: list[Any]) -> dict[tuple[str, str], float]:
    """By name and labels."""
    found = {}
    for request in requests:
        scopes = [scope for each in request.resource_metrics for scope in each.scope_metrics]
        for metric in (metric for scope in scopes for metric in scope.metrics):
            for point in getattr(metric, metric.WhichOneof("data")).data_points:
                labels = ",".join(f"{one.key}={one.value.string_value}" for one in point.attributes)
                found[metric.name, labels] = getattr(point, point.WhichOneof("value"))
    return found


def test_a_collector_gets_the_counters_of_each_rank(
    tmp_path: Path, collector: tuple[str, list[Any]]
) -> None:
    endpoint, requests = collector
    done = run(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint})
    assert done.returncode == 0, done.stderr
    values = last_values(requests)
    for rank in range(2):
        assert values["malt.scatters", f"rank={rank}"] == 5
        assert values["malt.bytes_sent", f"rank={rank}"] == 5 * 64
        assert values["malt.report", f"rank={rank},name=loss"] == 0.25
        assert ("malt.waited_for_seconds", f"rank={rank},waited_for={1 - rank}") in values


def test_a_job_goes_on_without_a_collector(tmp_path: Path) -> None:
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
    }
    assert run(tmp_path, environ).returncode == 0


def test_an_unknown_exporter_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, {"OTEL_METRICS_EXPORTER": "carrier"})
    assert done.returncode == 2
    assert (
        "OTEL_METRICS_EXPORTER=carrier: `malt run --otel` sends by otlp or console" in done.stderr
    )
    assert "Traceback" not in done.stderr
