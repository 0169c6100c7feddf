"""How many cases of each promise in .github/PROMISES.md hold.

    python tests/benchmarks/promises.py NAME [--share 0.1]

A promise is held by slow tests, which take their numbers from environment variables: this sets them and runs pytest.
A test is a case, or as many as it records. The last line says how many held; a test that failed held none.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
DISTURBED = "tests/test_disturbed_repro.py"
REPAIR = "tests/app/commands/test_repair.py"
PARITY = "tests/tokenizer/exporting/test_parity.py::test_twenty_megabytes_of_texts_give_the_same_everywhere"
LOADING = "tests/tokenizer/formats/test_tokenizer_loading.py::test_every_export_gives_the_ids_of_the_original"

PROMISES: dict[str, tuple[str, dict[str, float]]] = {  # the selection, and the numbers of a whole sweep
    "training": ("tests/test_resume.py -k any_moment", {"KILLS": 100}),
    "repro": (f"{DISTURBED} -k any_signal", {"KILLS": 200}),
    "places": (f"{DISTURBED} --deselect={DISTURBED}::test_after_any_signal", {"KILLS": 20}),
    "edits": ("tests/test_rerun.py tests/test_pipeline.py", {"SHARE": 1}),
    "damage": (f"{REPAIR} -k all_damage", {"DAMAGES": 500}),
    "control": ("tests/tokenizer/encoding -k no_text_gives", {"SHARE": 1}),
    "datasets": ("tests/datasets/formats -k mutated", {"SHARE": 1}),
    "ids": (f"{PARITY} {LOADING}", {"TEXTS": 250_000, "SHARE": 1}),
    "team": ("tests/test_team.py", {}),
}


def run(selection: str, numbers: dict[str, float], share: float) -> ElementTree.Element:
    """Pytest's report on a promise; a number is at least 1, but for CHATMILL_SHARE, a fraction itself."""
    scaled = {name: number * share for name, number in numbers.items()}
    texts = {f"CHATMILL_{name}": str(n if name == "SHARE" else max(1, round(n))) for name, n in scaled.items()}
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["-q", "-rs", "-n", "0", "-m", "slow or not slow", "-o", "junit_family=xunit1"]
        subprocess.run(
            [sys.executable, "-m", "pytest", *options, f"--junitxml={report}", *selection.split()],
            cwd=ROOT,
            env=os.environ | texts,
            check=False,
        )
        return ElementTree.parse(report).getroot()


def recorded(test: ElementTree.Element, name: str) -> int:
    return sum(int(one.get("value", 0)) for one in test.iter("property") if one.get("name") == name)


def count(test: ElementTree.Element) -> int:
    """The cases of a test: those that it recorded, or itself."""
    return recorded(test, "cases") or 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=PROMISES, help="the promise")
    parser.add_argument("--share", type=float, default=1, help="of the numbers of a whole sweep (default 1)")
    options = parser.parse_args()
    tests = list(run(*PROMISES[options.name], options.share).iter("testcase"))
    ran = [test for test in tests if test.find("skipped") is None]
    failed = [test for test in ran if test.find("failure") is not None or test.find("error") is not None]
    held = sum(count(test) for test in ran if test not in failed)
    skipped = f", {len(tests) - len(ran)} tests were skipped" if len(ran) < len(tests) else ""
    for name in sorted({one.get("name", "") for test in ran for one in test.iter("property")} - {"cases"}):
        print(f"{name}: {sum(recorded(test, name) for test in ran):,}")
    print(f"{options.name}: {held:,} of {sum(map(count, ran)):,} cases held{skipped}")
    sys.exit(bool(failed or not held))


if __name__ == "__main__":
    main()
