"""What a rank records for traces, reports and dashboards. Begin with `recording.py`."""
