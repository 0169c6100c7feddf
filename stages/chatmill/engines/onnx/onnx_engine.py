"""The ONNX Runtime engines: one runs our graph with its shared cache, one any other graph.

Needs neither PyTorch nor DVC.

Shapes: T time (tokens given), V vocabulary.
"""

from pathlib import Path

from chatmill.engines.engine import CachedEngine, ChatBatch, Engine
from chatmill.engines.onnx.graph_engine import GraphEngine
from chatmill.engines.onnx.graph_probe import probe
from chatmill.engines.onnx.own_graph import is_own
from chatmill.engines.onnx.session import Session
from chatmill.engines.onnx.shared_caches import SharedCaches

METADATA = {"chatmill.format", "chatmill.context", "chatmill.fingerprint", "chatmill.template"}  # of our graphs
MAX_CONTEXT_DIGITS = 7
_INPUTS = {"input_ids", "seqlens_k", "total_sequence_length", "logits_to_keep"}


class SharedCacheEngine(CachedEngine):
    """Runs the `shared` graph of chatmill.onnx_export.graphs: the cache is written in place, in lasting buffers."""

    def __init__(self, session: Session, name: str) -> None:
        caches = SharedCaches(session, rows=1)
        super().__init__(caches, row=0)
        self.name, self.device, self.num_bytes = name, session.device, session.num_bytes
        self.context, self.vocab_size = caches.context, caches.vocab_size
        self.fingerprint, self.template = (
            session.metadata["chatmill.fingerprint"],
            session.metadata["chatmill.template"],
        )
        self._session = session

    def chat_batch(self, rows: int) -> ChatBatch:
        """A batch of up to `rows` chats, each with a cache of its own, on the weights of this engine."""
        return ChatBatch(self, SharedCaches(self._session, rows), rows)


def open_onnx_engine(
    file: Path, *, name: str, threads: int | None = None, context: int | None = None, device: str = "cpu"
) -> Engine:
    """Open the engine that fits the graph's inputs; `context` is the tokens that an external graph was trained for.

    Raises ValueError, with the reason, if the graph cannot be read or run.
    """
    if not file.is_file():
        raise ValueError(f"{file}: not a regular file: expected an ONNX graph")
    own = is_own(file)
    if not own:
        probe(file)
    session = Session(file, threads=threads, device=device)
    if not own or not has_shared_cache(session):
        return GraphEngine(session, name, context)
    if session.device != "cpu":
        raise ValueError(f"{file}: it runs on the CPU only: use --device cpu, or --model data/model for PyTorch")
    return SharedCacheEngine(session, name)


def has_shared_cache(session: Session) -> bool:
    """Whether a graph is the `shared` one of chatmill.onnx_export.graphs, with all that its engine reads from it."""
    inputs = {node.name: node.shape for node in session.session.get_inputs()}
    outputs = {node.name: node.shape for node in session.session.get_outputs()}
    pasts = {name: shape for name, shape in inputs.items() if name.startswith("past_key_values.") and len(shape) == 4}
    presents = [name.replace("past_key_values", "present") for name in pasts]
    sizes = [*outputs.get("logits", [])[-1:], *(shape[axis] for shape in pasts.values() for axis in (1, 3))]
    context = session.metadata.get("chatmill.context", "")
    return (
        inputs.keys() == {*_INPUTS, *pasts}
        and next(iter(outputs)) == "logits"
        and outputs.keys() == {"logits", *presents}
        and session.metadata.keys() >= METADATA
        and context.isdecimal()
        and len(context) <= MAX_CONTEXT_DIGITS
        and len(sizes) == 1 + 2 * len(pasts)
        and all(isinstance(size, int) for size in sizes)
    )
