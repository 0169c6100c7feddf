"""A head that spells the next token byte by byte, so that it can also generate bytes that are in no vocabulary.

A token of text is spelled as its bytes and an end mark, a control token as a single symbol of its own:

    b"ab"  ->  [97, 98, FIRST_END_MARK]

Each symbol is predicted from the model's hidden state and the symbols before it, the prefix. The embedding of a prefix
is computed apart from the hidden state, once for all tokens that begin with it, and combined with it in one gated
layer: after a hundred steps its loss was lower than that of a transformer over hidden state and bytes, whose steps took
twice as long.

Shapes: B batch, T time (tokens), N hidden states, V vocabulary, L symbols of the longest token, S symbols, P prefixes,
C channels of the hidden state, W channels of a prefix.
"""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chatmill.checkpoints.configuration import ByteHeadShape, ModelConfig
from chatmill.model.layers import FeedForward
from chatmill.tokenizer.vocabulary.vocabulary import Kind, Vocabulary

FIRST_END_MARK = 256  # end marks follow the bytes, and the symbols of control tokens follow the end marks
NO_SYMBOL = -1  # pads the rows of a spelling
_NGRAM_LENGTHS = (2, 3, 4, 16)  # symbols of the hashed n-grams at the end of a prefix
_FACTOR, _PRIME = 1_000_003, (1 << 31) - 1


def byte_head_shape(vocabulary: Vocabulary) -> ByteHeadShape:
    """The shape of a head that can spell every token of the vocabulary.

    Raises ValueError for an empty token, whose spelling would be an end mark alone.
    """
    tokens = [vocabulary.tokens[i] for i in vocabulary.text_ids]
    if b"" in tokens:
        empty = vocabulary.text_ids[tokens.index(b"")]
        raise ValueError(f"token {empty} of the vocabulary is empty: no bytes to spell")
    return ByteHeadShape(
        ends=max(Counter(tokens).values(), default=1),
        controls=len(_controls(vocabulary)),
        longest=1 + max(map(len, tokens), default=0),
    )


def spell_vocabulary(vocabulary: Vocabulary) -> Tensor:
    """(V, L) int32: the symbols of each token, padded with NO_SYMBOL; the row of an unused id is NO_SYMBOL alone.

    Tokens with the same bytes have different end marks, counted from FIRST_END_MARK.
    """
    shape = byte_head_shape(vocabulary)
    before: Counter[bytes] = Counter()
    spelled = torch.full((len(vocabulary.tokens), shape.longest), NO_SYMBOL, dtype=torch.int32)
    for i in vocabulary.text_ids:
        token = vocabulary.tokens[i]
        spelled[i, : len(token) + 1] = torch.tensor([*token, FIRST_END_MARK + before[token]])
        before[token] += 1
    for number, i in enumerate(_controls(vocabulary)):
        spelled[i, 0] = FIRST_END_MARK + shape.ends + number
    return spelled


def _controls(vocabulary: Vocabulary) -> list[int]:
    return [i for i, kind in enumerate(vocabulary.kinds) if kind in (Kind.CONTROL, Kind.UNKNOWN)]


class Prefixes(NamedTuple):
    """The prefix of each symbol of each token."""

    indices: Tensor  # (V, L) int64, index of the prefix; NO_SYMBOL where there is no symbol
    symbols: Tensor  # (P, L) int64, padded with the start symbol on the left; the first prefix is empty


def prefixes_of(spelled: Tensor, start: int) -> Prefixes:
    """The distinct prefixes of a spelling (V, L)."""
    known: dict[tuple[int, ...], int] = {(): 0}
    indices = torch.full(spelled.shape, NO_SYMBOL)
    for token, row in enumerate(spelled.tolist()):
        for length in range(row.index(NO_SYMBOL) if NO_SYMBOL in row else len(row)):
            indices[token, length] = known.setdefault(tuple(row[:length]), len(known))
    longest = spelled.shape[1]
    symbols = [[start] * (longest - len(prefix)) + [*prefix] for prefix in known]
    return Prefixes(indices.to(spelled.device), torch.tensor(symbols, device=spelled.device))


class ByteHead(nn.Module):
    """Predicts the spelling of the next token from hidden states.

    The spelling of the vocabulary is stored with the weights; `set_spelling` sets it.
    """

    spelled: Tensor  # (V, L) int32
    _prefixes: Prefixes | None
    _cached_embeddings: Tensor | None  # (P, 2 features): the embeddings of the prefixes

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.byte_head
        shape = self.shape = config.byte_head
        self.start = shape.symbols
        self.embed_symbols = nn.Embedding(shape.symbols + 1, shape.width)
        self.embed_stretches = nn.Embedding(shape.slots, shape.width)
        self.read_norm, self.prefix_norm = nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)
        self.read = FeedForward(shape.config())
        self.of_prefix = nn.Linear(shape.width, 2 * shape.features, bias=False)
        self.of_hidden = nn.Linear(config.hidden_size, 2 * shape.features, bias=False)
        self.out_proj = nn.Linear(shape.features, shape.symbols, bias=False)
        nothing = torch.full((config.vocab_size, shape.longest), NO_SYMBOL, dtype=torch.int32)
        self.register_buffer("spelled", nothing)
        self._forget()
        self.register_load_state_dict_post_hook(ByteHead._forget)  # type: ignore[no-untyped-call]  # PyTorch's is

    def disable_compilation(self) -> None:
        """Exclude this head from compilation, as the number of symbols differs from batch to batch.

        Decorators would do the same, but import the compiler with every model, which takes a second.
        """
        for name in ("nats", "logits"):
            setattr(self, name, torch.compiler.disable(getattr(self, name)))

    def set_spelling(self, spelled: Tensor) -> None:
        """Set the spelling (V, L) of the vocabulary."""
        self.spelled.copy_(spelled)
        self._forget()

    def check(self, path: Path) -> None:
        """Raise ValueError, which names the path of the weights, if the spelling has symbols out of range."""
        low, high, highest = int(self.spelled.min()), int(self.spelled.max()), self.shape.symbols - 1
        if not NO_SYMBOL <= low <= high <= highest:
            expected = f"expected symbols from {NO_SYMBOL} to {highest}"
            raise ValueError(f"{path}: byte_head.spelled: {expected}, got {low} to {high}")

    def train(self, mode: bool = True) -> "ByteHead":
        """Set the training mode, as in any module, and drop the cached embeddings of prefixes."""
        self._cached_embeddings = None
        return super().train(mode)

    def nats(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(B, T, C), (B, T) -> (B, T) float32: the loss of each target, summed over the symbols of its spelling.

        It is the exact code length of the tokens; of their text it is an upper bound, as other spellings of the same
        text, in other tokens or in none, are not counted.
        """
        ids = targets.flatten()
        prefixes = self.prefixes.indices[ids]
        is_symbol = prefixes != NO_SYMBOL
        lengths = is_symbol.sum(dim=1)
        distinct, inverse = prefixes[is_symbol].unique(return_inverse=True)
        of_prefix = F.embedding(inverse, self.embed_prefixes(self.prefixes.symbols[distinct]))
        of_hidden = self.of_hidden(hidden.flatten(0, 1)).repeat_interleave(lengths, dim=0)
        logits = self.out_proj(swiglu(of_hidden + of_prefix)).float()
        nats = F.cross_entropy(logits, self.spelled[ids][is_symbol].long(), reduction="none")
        token = torch.arange(len(ids), device=ids.device).repeat_interleave(lengths)
        total = nats.new_zeros(len(ids)).index_add(0, token, nats)
        return total.masked_fill(lengths == 0, float("inf")).view(targets.shape)

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, C) -> (…, V) float32: the log-probability of each token; -inf for unused ids.

        Each prefix of the vocabulary is combined once with each hidden state, and embedded once for all of them.
        """
        embeddings, (prefixes, _) = self._prefix_embeddings(), self.prefixes
        is_symbol = prefixes != NO_SYMBOL
        symbols = (prefixes * self.shape.symbols + self.spelled).where(is_symbol, 0)  # of all symbols after each prefix
        rows = []
        for state in self.of_hidden(hidden).flatten(0, -2):
            log_probs = self.out_proj(swiglu(state + embeddings)).float().log_softmax(dim=1)
            rows.append((log_probs.flatten()[symbols] * is_symbol).sum(dim=1))
        logits = torch.stack(rows).masked_fill(~is_symbol[:, 0], -torch.inf)
        return logits.view(*hidden.shape[:-1], -1)

    def embed_prefixes(self, symbols: Tensor) -> Tensor:
        """(P, L) -> (P, 2 features): the prefixes' part of the gated layer's input, to which the hidden state adds."""
        fading = torch.linspace(0, 1, self.shape.width, device=symbols.device)  # from the last symbol to all equally
        back = torch.arange(symbols.shape[1] - 1, -1, -1, device=symbols.device)
        x = (self.embed_symbols(symbols) * fading ** back[:, None]).sum(dim=1)
        x = x + self.embed_stretches(hash_suffixes(symbols) % self.shape.slots).sum(dim=1)
        embeddings: Tensor = self.of_prefix(self.prefix_norm(x + self.read(self.read_norm(x))))
        return embeddings

    @property
    def prefixes(self) -> Prefixes:
        """The prefixes of the vocabulary."""
        if self._prefixes is None or self._prefixes.indices.device != self.spelled.device:
            self._prefixes = prefixes_of(self.spelled, self.start)
        return self._prefixes

    def _prefix_embeddings(self) -> Tensor:
        """(P, 2 features) of all prefixes; cached where nothing is trained."""
        if self.training or torch.is_grad_enabled():
            return self.embed_prefixes(self.prefixes.symbols)
        if self._cached_embeddings is None:
            self._cached_embeddings = self.embed_prefixes(self.prefixes.symbols)
        return self._cached_embeddings

    def _forget(self, *_: object) -> None:
        self._prefixes = self._cached_embeddings = None


def swiglu(x: Tensor) -> Tensor:
    """(…, 2 features) -> (…, features): SwiGLU's gating: one half, through SiLU, multiplies the other."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def hash_suffixes(symbols: Tensor) -> Tensor:
    """(P, L) -> (P, lengths of n-grams) int64: a hash of each n-gram at the end of a prefix."""
    hashes = []
    for number, length in enumerate(_NGRAM_LENGTHS):
        state = torch.full_like(symbols[:, 0], number)
        for symbol in symbols[:, -length:].unbind(dim=1):
            state = (state * _FACTOR + symbol + 1) % _PRIME
        hashes.append(state)
    return torch.stack(hashes, dim=1)
