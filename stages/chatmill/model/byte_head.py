"""A head that spells the next token, byte by byte, so that it can also say what is in no vocabulary.

A token is its bytes and an end mark; one that no text makes is a symbol of its own and ends by itself:

    b"ab"  ->  [97, 98, END]

Each symbol is given the model's hidden state and the symbols before it, the prefix. What a prefix means is computed
apart from the hidden state, once for all tokens that begin with it, and meets it in one gated layer: in a hundred steps
that learnt more than a transformer over hidden state and bytes, which took twice as long for each.

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

FIRST_END_MARK = 256  # the first end mark; they follow the bytes, and the symbols of tokens without bytes follow them
NO_SYMBOL = -1  # fills a row of the spelling up
_NGRAM_LENGTHS = (2, 3, 4, 16)  # symbols at the end of a prefix that have rows in a table, found by hashing
_FACTOR, _PRIME = 1_000_003, (1 << 31) - 1


def byte_head_shape(vocabulary: Vocabulary) -> ByteHeadShape:
    """The shape of a head that can spell every token of the vocabulary.

    Raises ValueError for an empty token: its end mark would be a word.
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
    """(V, L) int32: the symbols of each token, and NO_SYMBOL up to the longest; of an id that is never made, NO_SYMBOL.

    Tokens of the same bytes are told apart by their end marks, of which the first is END.
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
    """What comes before each symbol of each token."""

    indices: Tensor  # (V, L) int64, which prefix; NO_SYMBOL where there is no symbol
    symbols: Tensor  # (P, L) int64, the symbols of each; the first is empty. They end with the row, START before them


def prefixes_of(spelled: Tensor, start: int) -> Prefixes:
    """The distinct prefixes of a spelling (V, L)."""
    known: dict[tuple[int, ...], int] = {(): 0}
    at = torch.full(spelled.shape, NO_SYMBOL)
    for token, row in enumerate(spelled.tolist()):
        for length in range(row.index(NO_SYMBOL) if NO_SYMBOL in row else len(row)):
            at[token, length] = known.setdefault(tuple(row[:length]), len(known))
    longest = spelled.shape[1]
    paths = [[start] * (longest - len(prefix)) + [*prefix] for prefix in known]
    return Prefixes(at.to(spelled.device), torch.tensor(paths, device=spelled.device))


class ByteHead(nn.Module):
    """From hidden states to the spelling of the next token.

    The spelling is kept with the weights: `set_spelling` sets it for a vocabulary.
    """

    spelled: Tensor  # (V, L) int32
    _prefixes: Prefixes | None
    _cached_embeddings: Tensor | None  # (P, 2 features): what the prefixes mean

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
        """Have the compiler take this head as it is, as each batch has another number of symbols.

        It is asked here and not by decorators, which would import the compiler, for a second, with every model.
        """
        for name in ("nats", "logits"):
            setattr(self, name, torch.compiler.disable(getattr(self, name)))

    def set_spelling(self, spelled: Tensor) -> None:
        """Take the spelling (V, L) of a vocabulary for one's own."""
        self.spelled.copy_(spelled)
        self._forget()

    def check(self, path: Path) -> None:
        """Raise ValueError, with the path of the weights, where the spelling has symbols that there are not."""
        if not NO_SYMBOL <= int(self.spelled.min()) <= int(self.spelled.max()) < self.shape.symbols:
            raise ValueError(f"{path}: its spelling has symbols beyond the {self.shape.symbols} of its config.json")

    def train(self, mode: bool = True) -> "ByteHead":
        """As of any module; what prefixes mean is computed anew afterwards."""
        self._cached_embeddings = None
        return super().train(mode)

    def nats(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(B, T, C), (B, T) -> (B, T) float32: what each target costs, the sum over the symbols of its spelling.

        That is the length of an exact code for the tokens; for their text an upper bound, as other spellings of it,
        in other tokens or in none, count for nothing.
        """
        ids = targets.flatten()
        at = self.prefixes.indices[ids]
        spoken = at != NO_SYMBOL
        lengths = spoken.sum(dim=1)
        known, places = at[spoken].unique(return_inverse=True)
        of_prefix = F.embedding(places, self.embed_prefixes(self.prefixes.symbols[known]))
        of_hidden = self.of_hidden(hidden.flatten(0, 1)).repeat_interleave(lengths, dim=0)
        logits = self.out_proj(swiglu(of_hidden + of_prefix)).float()
        nats = F.cross_entropy(logits, self.spelled[ids][spoken].long(), reduction="none")
        token = torch.arange(len(ids), device=ids.device).repeat_interleave(lengths)
        total = nats.new_zeros(len(ids)).index_add(0, token, nats)
        return total.masked_fill(lengths == 0, float("inf")).view(targets.shape)

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, C) -> (…, V) float32: the log-probability of each token, minus its nats; -inf of those never made.

        Each prefix of the vocabulary is computed once for each hidden state, its meaning once for all of them.
        """
        meaning, (at, _) = self._prefix_embeddings(), self.prefixes
        spoken = at != NO_SYMBOL
        symbols = (at * self.shape.symbols + self.spelled).where(spoken, 0)  # of all that follow all prefixes
        rows = []
        for state in self.of_hidden(hidden).flatten(0, -2):
            log_probs = self.out_proj(swiglu(state + meaning)).float().log_softmax(dim=1)
            rows.append((log_probs.flatten()[symbols] * spoken).sum(dim=1))
        logits = torch.stack(rows).masked_fill(~spoken[:, 0], -torch.inf)
        return logits.view(*hidden.shape[:-1], -1)

    @torch.no_grad()
    def generate_token(self, hidden: Tensor, max_bytes: int, temperature: float = 0.0) -> bytes | int:
        """(C,) -> up to so many bytes, in the vocabulary or not, until an end mark; or the id of a control token.

        They are the likeliest one by one, or drawn at a temperature.
        """
        written: list[int] = []
        of_hidden, longest = self.of_hidden(hidden), self.spelled.shape[1]
        while len(written) < max_bytes:
            path = torch.tensor([([self.start] * longest + written)[-longest:]], device=hidden.device)
            logits = self.out_proj(swiglu(of_hidden + self.embed_prefixes(path)[0])).float()
            symbol = self._choose(logits, bool(written), temperature)
            if symbol >= FIRST_END_MARK:
                return bytes(written) if written else int((self.spelled[:, 0] == symbol).nonzero()[0])
            written.append(symbol)
        return bytes(written)

    def embed_prefixes(self, paths: Tensor) -> Tensor:
        """(P, L) -> (P, 2 features): what the gated layer adds to the hidden state's."""
        fading = torch.linspace(0, 1, self.shape.width, device=paths.device)  # from the last symbol alone to all alike
        back = torch.arange(paths.shape[1] - 1, -1, -1, device=paths.device)
        x = (self.embed_symbols(paths) * fading ** back[:, None]).sum(dim=1)
        x = x + self.embed_stretches(hash_suffixes(paths) % self.shape.slots).sum(dim=1)
        meant: Tensor = self.of_prefix(self.prefix_norm(x + self.read(self.read_norm(x))))
        return meant

    @property
    def prefixes(self) -> Prefixes:
        """Those of the vocabulary."""
        if self._prefixes is None or self._prefixes.indices.device != self.spelled.device:
            self._prefixes = prefixes_of(self.spelled, self.start)
        return self._prefixes

    def _prefix_embeddings(self) -> Tensor:
        """(P, 2 features): of all prefixes; they are kept where nothing is trained."""
        if self.training or torch.is_grad_enabled():
            return self.embed_prefixes(self.prefixes.symbols)
        if self._cached_embeddings is None:
            self._cached_embeddings = self.embed_prefixes(self.prefixes.symbols)
        return self._cached_embeddings

    def _forget(self, *_: object) -> None:
        self._prefixes = self._cached_embeddings = None

    def _choose(self, logits: Tensor, begun: bool, temperature: float) -> int:
        """A symbol that can come: at the beginning no end mark, and only there what has no bytes."""
        after = FIRST_END_MARK + self.shape.ends
        logits[slice(after, None) if begun else slice(FIRST_END_MARK, after)] = -torch.inf
        return int(logits.argmax() if temperature == 0 else (logits / temperature).softmax(0).multinomial(1))


def swiglu(x: Tensor) -> Tensor:
    """(…, 2 features) -> (…, features): one half lets the other through."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def hash_suffixes(paths: Tensor) -> Tensor:
    """(P, L) -> (P, stretches) int64: a number for each stretch at the end, the same for the same symbols."""
    found = []
    for number, length in enumerate(_NGRAM_LENGTHS):
        state = torch.full_like(paths[:, 0], number)
        for symbol in paths[:, -length:].unbind(dim=1):
            state = (state * _FACTOR + symbol + 1) % _PRIME
        found.append(state)
    return torch.stack(found, dim=1)
