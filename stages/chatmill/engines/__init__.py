"""Engines: token ids in, logits out."""

import os

# ONNX Runtime reports to its maker unless this is set when it is imported: its disable_telemetry_events comes too late
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
