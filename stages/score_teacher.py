"""Predict each token of the training set by a teacher."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from chatmill.encoded.token_files import EncodedSplit, read_inputs, read_split
from chatmill.pipeline.params_file import PositiveInt, check_external
from chatmill.pipeline.progress import log, progress
from chatmill.pipeline.signatures import Output
from chatmill.pipeline.stage import stage
from chatmill.teacher import predictions as files
from chatmill.teacher.ngram_teacher import NgramTeacher
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary

if TYPE_CHECKING:
    from chatmill.teacher.model_teacher import ModelTeacher

STAGE = "score_teacher"
MODEL_SHARE = 0.7  # of the probability, where there are n-grams, too

NgramOrder = Annotated[int, Field(ge=2, le=8, strict=True)]


def open_model(path: Path, train: EncodedSplit, vocabulary: Vocabulary, threads: int) -> "ModelTeacher":
    """The model in a folder. Raises ValueError with the parameter where it cannot be used."""
    import torch  # only here: it takes seconds, and most runs have no model as a teacher

    from chatmill.teacher.model_teacher import ModelTeacher

    torch.set_num_threads(threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return ModelTeacher(path, train, vocabulary, device)
    except ValueError as error:
        raise ValueError(f"{STAGE}.teacher: {error}") from error


@stage
def main(
    tokens: Path,
    tokenizer: Path,
    external: Path,
    predictions: Output,
    *,
    teacher: Path | None,
    ngram_order: NgramOrder | None,
    threads: PositiveInt,
) -> None:
    """For each token of the training set, write the likeliest ones at its position, with their probabilities.

    Two teachers predict their weighted mean; that of n-grams predicts each token from the counts of all others.
    Without a teacher, the reason is written.
    """
    meta, vocabulary = read_inputs(tokens, tokenizer)
    train = read_split(tokens, "train")
    if teacher is not None:
        check_external(teacher, external, f"{STAGE}.teacher")
    model = teacher and open_model(teacher, train, vocabulary, threads)
    ngrams = ngram_order and NgramTeacher(train, ngram_order)
    teachers = [(each.predict, share) for each, share in ((model, MODEL_SHARE), (ngrams, 1 - MODEL_SHARE)) if each]
    predictions.mkdir()
    description: dict[str, Any] = {"kept": files.num_kept(train)}
    if teachers:
        blocks = files.predict_all(teachers, train, files.num_kept(train))
        number = len(files.conversation_blocks(train))
        files.write_predictions(predictions, train, progress(blocks, STAGE, total=number, unit=" blocks of tokens"))
    else:
        description = {"reason": f"{STAGE}.teacher and {STAGE}.ngram_order are null"}
    if model:
        description["model"] = {"path": str(teacher), **model.describe()}
        log(STAGE, f"{teacher} needs {description['model']['bits_per_byte']:.3f} bits per byte for the training set")
    if ngrams:
        description["ngram"] = {"order": ngram_order}
    files.complete(predictions, description, meta)
