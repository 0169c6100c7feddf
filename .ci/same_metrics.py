"""Fails if the run gave other metrics than the last commit records, although the processor is of the same kind."""

import json
import subprocess
import sys
from pathlib import Path

SUMMARY = "data/metrics/summary.json"

now = json.loads(Path(SUMMARY).read_text(encoding="utf-8"))
recorded = json.loads(subprocess.check_output(["git", "show", f"HEAD:{SUMMARY}"], text=True))
if now["processor"] != recorded["processor"]:
    print(f"recorded on {recorded['processor']}, run on {now['processor']}: metrics are not compared")
elif changed := [name for name in now.keys() | recorded if now.get(name) != recorded.get(name)]:
    sys.exit(f"metrics differ from those of the last commit: {', '.join(sorted(changed))}")
