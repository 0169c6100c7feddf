"""Learn the embedding of each token from its bytes, and plug it in.

Some tokens are held out: the network is trained without their rows, and measured on them. Then its last layer is fitted
to all rows, and its predictions replace the model's embedding table.
"""

import json
from pathlib import Path

import torch

from chatmill.encoded.token_files import read_split
from chatmill.evaluation.bits_per_byte import rounded
from chatmill.pipeline.params_file import check_external
from chatmill.pipeline.signatures import Output
from chatmill.pipeline.stage import stage
from chatmill.soft_tokenizer.byte_embedding import ByteEmbedding
from chatmill.soft_tokenizer.embedding_evaluation import (
    embedding_table,
    make_evaluator,
    measure_noisy,
    measure_plugged,
    measure_transfer,
    with_embedding_table,
)
from chatmill.soft_tokenizer.encoder_training import SoftTokenizerParameters, count_tokens, train_network
from chatmill.tokenizer.vocabulary.tokenizer_folder import read_folder
from chatmill.training.model_folder import write_model
from chatmill.training.trainer import keep_freed_memory


@stage
def main(
    train: Path,
    test: Path,
    tokens: Path,
    tokenizer: Path,
    model: Path,
    external: Path,
    soft_tokenizer: Output,
    metrics: Output,
    *,
    parameters: SoftTokenizerParameters,
) -> None:
    """Write the model with rows made from bytes, the network that makes them, and their metrics.

    `external` is the folder of `parameters.other_tokenizer`, the file of another tokenizer than the model's.
    """
    if (other := parameters.other_tokenizer) is not None:
        check_external(other, external, "train_soft_tokenizer.other_tokenizer")
    torch.set_num_threads(parameters.threads)
    vocabulary = read_folder(tokenizer)
    evaluator, metadata = make_evaluator(model, tokens, vocabulary, test, parameters.conversations)
    network, table = evaluator.model, embedding_table(evaluator.model)
    if not network.computes_loss_in_blocks:  # with a large one, the peak of tuning was measured without
        keep_freed_memory()

    # Train the network from bytes to rows, and put its rows in place of the model's.
    split = read_split(tokens, "train")
    counts = count_tokens(split.ids, len(vocabulary.tokens))
    encoder, dataset, predicted, result = train_network(vocabulary, table, counts, parameters)
    embedding = ByteEmbedding(encoder, vocabulary, table)
    soft = with_embedding_table(network, embedding.table())
    plugged = embedding_table(soft)
    result["parameters"] = {"table": table.numel(), "encoder": sum(weight.numel() for weight in encoder.parameters())}
    result["bits_per_byte"] = measure_plugged(evaluator, dataset, predicted, plugged)
    if parameters.noise:
        result["noisy"] = measure_noisy(evaluator, plugged)

    # By parameter, plug in another tokenizer, and fine-tune with embeddings made from bytes.
    if other is not None:
        transfer = measure_transfer(evaluator, other, train, encoder, counts, parameters.tune, parameters.seed)
        result["other_tokenizer"] = transfer
    if parameters.tune:
        soft = evaluator.fine_tuned(embedding, evaluator.tokenizer, split, steps=parameters.tune, seed=parameters.seed)
        result["bits_per_byte"]["tuned"] = evaluator.bits_per_byte(embedding_table(soft), evaluator.corpus())

    metadata |= {"soft_tokenizer": {"steps": parameters.steps, "tune": parameters.tune}}
    write_model(soft_tokenizer, soft, tokenizer, vocabulary, metadata, encoder)
    metrics.write_text(json.dumps(rounded(result), indent=1) + "\n", encoding="utf-8")
