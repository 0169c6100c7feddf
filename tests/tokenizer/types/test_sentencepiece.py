import re

from chatmill.tokenizer.types import sentencepiece


def test_a_long_training_is_announced(monkeypatch, capsys):
    monkeypatch.setattr(sentencepiece, "LONG_SECONDS", 0.001)
    texts = [f"word{number} and more" for number in range(200)]
    sentencepiece.train(texts, 290, sentencepiece.Settings())
    expected = r"unigram: 202 distinct words of [\d,]+ characters take about 0\.0 minutes on two idle cores"
    assert re.search(expected, capsys.readouterr().err)
