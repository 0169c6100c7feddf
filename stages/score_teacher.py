"""Predict each token of the training set by a teacher."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from chatmill.encoded.token_files import read_meta, read_split
from chatmill.pipeline.progress import progress
from chatmill.pipeline.signatures import Output
from chatmill.pipeline.stage import stage
from chatmill.teacher.ngram_teacher import count_blocks, predict
from chatmill.teacher.teacher_files import complete, num_kept, write_formats, write_predictions

NgramOrder = Annotated[int, Field(ge=2, le=8, strict=True)]


@stage
def main(tokens: Path, teacher: Output, *, ngram_order: NgramOrder | None) -> None:
    """Write the likeliest tokens in the place of each token, with their probabilities; or why there are none.

    The teacher is a model of n-grams of at most `ngram_order` tokens, counted on all tokens but the one it predicts.
    """
    meta = read_meta(tokens)
    teacher.mkdir()
    if ngram_order is None:
        write_formats(teacher, {"ngram": {"reason": "score_teacher.ngram_order is null"}})
    else:
        train = read_split(tokens, "train")
        kept = num_kept(train)
        blocks = progress(
            predict(train, ngram_order, kept), "score_teacher", total=count_blocks(train), unit=" blocks of tokens"
        )
        write_predictions(teacher, train, blocks, {"ngram": {"order": ngram_order, "kept": kept}})
    complete(teacher, meta)
