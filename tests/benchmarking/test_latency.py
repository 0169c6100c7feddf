from chatmill.benchmarking.latency import Case, make_cases, token_times_ms
from support.scripted import ScriptedEngine


def engine(name="onnx"):
    scripted = ScriptedEngine([1] * 20, vocab_size=8, context=50)
    scripted.name = name
    return scripted


def test_cache_reads_each_token_once_and_recomputing_all_of_them_each_time():
    scripted = engine()
    assert len(token_times_ms(Case(scripted, "cache", [5, 6, 7]), new_tokens=2)) == 3
    assert [len(ids) for ids in scripted.received_ids] == [3, 1, 1]
    scripted.received_ids.clear()
    assert len(token_times_ms(Case(scripted, "recompute", [5, 6, 7]), new_tokens=2)) == 4
    assert [len(ids) for ids in scripted.received_ids] == [3, 4, 5, 6]


def test_engines_take_turns_at_each_prompt():
    engines = [engine("onnx"), engine("onnx_int8")]
    cases = [(case.engine.name, case.mode, len(case.prompt)) for case in make_cases(engines, [[1], [1, 2]])]
    turns = [("onnx", "cache"), ("onnx_int8", "cache"), ("onnx", "recompute")]
    assert cases == [(*turn, length) for length in (1, 2) for turn in turns]
