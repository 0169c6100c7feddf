from chatmill.evaluation.bits_per_byte import rounded


def test_numbers_are_rounded_at_any_depth_and_all_else_stays():
    given = {"a": 0.12345678, "b": {"c": 2.0000001, "d": None, "e": "x", "f": 3}, "g": (0.12345678, 1)}
    assert rounded(given) == {"a": 0.123457, "b": {"c": 2.0, "d": None, "e": "x", "f": 3}, "g": (0.123457, 1)}
    assert rounded(0.12345678, digits=2) == 0.12
