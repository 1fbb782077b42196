"""The counters of metrics.py for OpenTelemetry, sent by its own SDK.

The SDK's environment says where to: OTEL_METRICS_EXPORTER (otlp or console),
OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_METRIC_EXPORT_INTERVAL, OTEL_SERVICE_NAME and others.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from malt._distribution import pip_install
from malt._errors import ConfigError
from malt._watching.metrics import Metric

_EXPORTERS = {
    "otlp": ("opentelemetry.exporter.otlp.proto.http.metric_exporter", "OTLPMetricExporter"),
    "console": ("opentelemetry.sdk.metrics.export", "ConsoleMetricExporter"),
}


def check() -> None:
    """Check that start() can send.

    Raises:
        ConfigError: the SDK is not installed, or OTEL_METRICS_EXPORTER names what it has not.
    """
    _exporter_class()


def start(look: Callable[[], Sequence[Metric]]) -> Callable[[], object]:
    """Begin to send what `look` returns, at the SDK's intervals.

    Returns:
        what sends the last values, and ends.
    """
    sdk = importlib.import_module("opentelemetry.sdk.metrics")
    export = importlib.import_module("opentelemetry.sdk.metrics.export")
    reader = export.PeriodicExportingMetricReader(_exporter_class()())
    provider = sdk.MeterProvider(metric_readers=[reader])
    meter = provider.get_meter("malt")
    for metric in look():  # of no rank yet, so without values
        make = meter.create_observable_gauge
        if metric.is_counter:
            make = meter.create_observable_counter
        values = _observe(look, metric.name)
        make(f"malt.{metric.name}", callbacks=[values], description=metric.what)
    shutdown: Callable[[], object] = provider.shutdown
    return shutdown


def _observe(look: Callable[[], Sequence[Metric]], name: str) -> Callable[[Any], Iterator[Any]]:
    observation = importlib.import_module("opentelemetry.metrics").Observation

    def observe(_: Any) -> Iterator[Any]:
        for metric in look():
            if metric.name == name:
                for labels, value in metric.values:
                    yield observation(value, labels)

    return observe


def _exporter_class() -> Any:
    name = os.environ.get("OTEL_METRICS_EXPORTER", "otlp")
    if name not in _EXPORTERS:
        raise ConfigError(
            f"OTEL_METRICS_EXPORTER={name}: `malt run --otel` sends by {' or '.join(_EXPORTERS)}"
        )
    module, exporter = _EXPORTERS[name]
    try:
        return getattr(importlib.import_module(module), exporter)
    except ImportError as error:
        raise ConfigError(
            f"--otel needs the SDK of OpenTelemetry, which is not installed: {pip_install('otel')}"
        ) from error
