"""The learning curve of a run, train.tsv, which grows by a line at a time while the run goes on.

step  loss     bits_per_byte  validation_bits_per_byte  learning_rate  gradient_norm  validation_bits_per_byte/talk
11    6.28831  6.98118                                  0.012          0.731
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from chatmill.training.trainer import LossTotals

HEADER = "step\tloss\tbits_per_byte\tvalidation_bits_per_byte\tlearning_rate\tgradient_norm\n"
OF_SOURCE = "\tvalidation_bits_per_byte/"  # and its name


class CurveFile:
    """The curve so far, and the file in which others may read it; without a file, the curve alone.

    It has a column for each of the sources that validation tells apart.
    """

    def __init__(self, file: Path | None, sources: Iterable[str] = ()) -> None:
        self._file = file
        columns = (OF_SOURCE + " ".join(name.split()) for name in sources)  # no tab or end of a line
        self.restart(HEADER.removesuffix("\n") + "".join(columns) + "\n")

    def restart(self, text: str) -> None:
        """Replace the curve by an earlier one, from which the run resumes."""
        self.text = text
        self._write("w", text)

    def append(self, line: str) -> None:
        """Add a complete line."""
        self.text += line
        self._write("a", line)

    def complete(self) -> None:
        """Make sure that the file has the whole curve. Raises OSError where it cannot be written."""
        if self._file and not (self._file.exists() and self._file.read_text(encoding="utf-8") == self.text):
            self._file.write_text(self.text, encoding="utf-8")

    def _write(self, mode: str, text: str) -> None:
        if self._file:
            with suppress(OSError), self._file.open(mode, encoding="utf-8") as file:  # a full disk ends no run
                file.write(text)


def curve_line(
    step: int,
    sums: LossTotals,
    held_out: LossTotals,
    learning_rate: float,
    gradient_norm: float | None,
    by_source: Sequence[LossTotals] = (),
) -> str:
    """One line of train.tsv; values that were not measured are empty."""
    numbers = [sums.loss, sums.bits_per_byte, held_out.bits_per_byte, learning_rate, gradient_norm]
    numbers += [of_source.bits_per_byte for of_source in by_source]
    return "\t".join([str(step), *("" if number is None else f"{number:.6g}" for number in numbers)]) + "\n"
