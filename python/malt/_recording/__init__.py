"""A rank's records for traces, reports and dashboards. Begin with `recording.py`."""
