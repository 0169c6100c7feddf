"""The section of the report on the data: what was read and left out, and what a sample of the training set holds."""

from collections.abc import Mapping
from typing import Any

from chatmill.data_card import Card, Spread
from chatmill.report.markup import Html, section, table, tag, words
from chatmill.report.metrics import Metrics, get_nested, number, percent


def data(mix: Metrics, cards: Mapping[str, Card]) -> Html:
    """The sizes of the splits, what was left out, and the cards of the sources in a sample of the training set."""
    return section(
        "Data",
        tag("div", splits(mix), left_out(mix), class_="columns"),
        messages(mix),
        *((sample_note(cards), contents(cards), findings(cards)) if cards else ()),
    )


def splits(mix: Metrics) -> Html:
    """The sizes of the splits."""
    names = list(get_nested(mix, "conversations", default={}))
    sizes = ((name, *(number(get_nested(mix, unit, name)) for unit in ("conversations", "bytes"))) for name in names)
    return table("Split by group", ("", "conversations", "bytes as rendered"), sizes)


def left_out(mix: Metrics) -> Html:
    """The conversations that were left out, by reason."""
    dropped = [
        (f"{source}: {reason.replace('_', ' ')}", number(count))
        for source, reasons in get_nested(mix, "rejected", default={}).items()
        for reason, count in reasons.items()
    ]
    dropped += [
        ("duplicates of another conversation", number(get_nested(mix, "duplicates"))),
        ("in training, but equal to a held-out conversation", number(get_nested(mix, "leaked"))),
        ("near-duplicates of another one in training", number(get_nested(mix, "near_duplicates", "train"))),
        ("in training, but nearly equal to a held-out one", number(get_nested(mix, "near_duplicates", "leaked"))),
    ]
    return table("Left out", ("", "conversations"), dropped)


def messages(mix: Metrics) -> Html:
    """What became of the messages of each source."""
    rows = [
        (
            source,
            *(number(get_nested(counts, unit, what)) for unit in ("messages", "bytes") for what in ("read", "kept")),
            words(named_counts(get_nested(counts, "messages", "rejected", default={}))),
            words(named_counts(get_nested(counts, "repaired", default={}))),
        )
        for source, counts in get_nested(mix, "read", default={}).items()
    ]
    read = ("messages read", "kept", "bytes read", "kept")
    head = ("", *read, words("messages left out"), words("conversations changed by rule"))
    return table("Sources", head, rows) if rows else Html()


def named_counts(counts: Mapping[str, int]) -> str:
    """Names with their counts, of which any number fits into a cell; a dash if there are none."""
    text = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items() if count)
    return text or "–"


def sample_note(cards: Mapping[str, Card]) -> Html:
    """What the cards were computed on."""
    count = sum(card.conversations for card in cards.values())
    return tag(
        "p",
        f"What follows is of {count:,} conversations of the training set, of small sources as many as there are.",
        class_="note",
    )


def contents(cards: Mapping[str, Card]) -> Html:
    """What the conversations of each source hold."""
    rows = [
        (
            source,
            number(card.conversations),
            quantiles(card.turns),
            quantiles(card.lengths),
            "–" if card.cut is None else number(card.cut),
            percent(card.trained_bytes / card.bytes if card.bytes else None),
            words(card.language_shares or "–"),
        )
        for source, card in cards.items()
    ]
    unit = next(iter(cards.values())).unit
    head = ("", "sampled", "messages", unit, "over the context", "bytes trained", words("languages"))
    return table(f"Conversations: messages and {unit} as median, 95 % and maximum", head, rows)


def quantiles(spread: Spread) -> str:
    """The median, the 95 % quantile and the maximum."""
    return " / ".join(f"{value:,}" for value in spread)


def findings(cards: Mapping[str, Card]) -> Html:
    """What is odd in the text, and the answers that are given most often."""
    rows: list[tuple[Any, ...]] = [
        (source, words(name), number(odd["messages"]), words(odd["examples"][0]))
        for source, card in cards.items()
        for name, odd in card.odd.items()
    ]
    rows += [
        (source, words("the same answer"), number(count), words(text[:100]))
        for source, card in cards.items()
        for text, count in list(card.frequent_answers.items())[:1]
    ]
    return table("To look at", ("", words("found"), "messages", words("example")), rows) if rows else Html()
