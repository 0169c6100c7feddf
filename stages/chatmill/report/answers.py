"""The sections of the report on the model's answers."""

from collections.abc import Mapping, Sequence
from typing import Any

from chatmill.data_card import Card, Spread
from chatmill.report.chart import bar
from chatmill.report.markup import Html, Metrics, folded, get_nested, number, percent, percent_range, table, tag, words


def skills(evaluation: Metrics) -> Html:
    known = get_nested(evaluation, "skills", default={})
    names = sorted({*known, *get_nested(known, "held_back", default={})} - {"macro", "held_back"})
    if not names:
        return Html()

    def cells(color: int, *path: str) -> tuple[str, Html]:
        share, limits = get_nested(evaluation, *path), get_nested(evaluation, "intervals", *path)
        return percent(share) + (f" ({percent_range(limits)})" if limits else ""), bar(share, color, limits)

    rows = [
        (
            "mean of all" if name == "macro" else name.replace("_", " "),
            *cells(0, "skills", name),
            *cells(1, "skills", "held_back", name),
        )
        for name in [*names, "macro"]
    ]
    note = (
        "Share of right answers, greedy, on numbers, names and orders that training did not see; in brackets, and as "
        "lines on the bars, 95 % intervals."
    )
    head = ("skill", "known", "", "held back", "")
    return folded(
        "Skills",
        "each one, on known and on held-back phrasings, and wrong answers",
        tag("p", note, class_="note"),
        tag("div", table("By phrasing of the question", head, rows), class_="total"),
        wrong_answers(evaluation),
    )


def wrong_answers(evaluation: Metrics) -> Html:
    rows = [
        (name.replace("_", " "), *(words(answer.get(key, "")) for key in ("question", "answer", "expected")))
        for name, answers in get_nested(evaluation, "wrong_answers", default={}).items()
        for answer in answers
    ]
    if not rows:
        return Html()
    head = ("skill", *map(words, ("question", "answer", "correct, or contains")))
    listed = table("The first ones of each skill", head, rows)
    return tag("details", tag("summary", "Wrong answers"), listed)


def chats(samples: Sequence[Metrics], evaluation: Metrics) -> Html:
    """Messages and the unedited answers to them, of the test set beside the true ones, and what answers copy."""
    shown: list[Html] = []
    for of_data, asked in (
        (False, "a fixed list of prompts."),
        (True, "messages of the test set, and below each the answer that stands there."),
    ):
        if found := [_chat(sample) for sample in samples if ("true" in sample) == of_data]:
            note = tag("p", f"Greedy answers, unedited, to {asked}", class_="note")
            shown += [note, tag("div", *found, class_="chats")]
    copies = get_nested(evaluation, "verbatim", default={})
    longest = ", ".join(
        f"{number(one['longest_mean'])} words in the mean and {number(one['longest_max'])} at most in {title}"
        for title, one in (("the model's answers", copies), ("true ones", get_nested(copies, "true", default={})))
        if "longest_mean" in one
    )
    if longest:
        shown.append(tag("p", f"The longest stretch of talk of the training data: {longest}.", class_="note"))
    return folded("Sample chats", "messages, and the unedited answers to them", *shown) if shown else Html()


def _chat(sample: Metrics) -> Html:
    before = sample.get("messages_before")
    context = tag("span", f"after {before} message{'s' * (before != 1)}: ", class_="cut") if before else ""
    cut = "" if sample["stopped"] else tag("span", " … cut off", class_="cut")
    true = tag("p", sample["true"], class_="note", dir="auto") if "true" in sample else ""
    return tag(
        "div",
        tag("p", context, sample["prompt"], class_="question", dir="auto"),
        tag("p", sample["answer"], cut, class_="answer", dir="auto"),
        true,
        class_="chat",
    )


# The section of the report on the data: what was read and left out, and what a sample of the training set holds.


def data(mix: Metrics, cards: Mapping[str, Card]) -> Html:
    """The sizes of the splits, what was left out, and the cards of the sources in a sample of the training set."""
    count = sum(card.conversations for card in cards.values())
    note = f"What follows is of {count:,} conversations of the training set, of small sources as many as there are."
    return folded(
        "Data",
        "the splits, what was left out, and what the conversations hold",
        tag("div", splits(mix), left_out(mix), class_="columns"),
        messages(mix),
        *((tag("p", note, class_="note"), contents(cards), findings(cards)) if cards else ()),
    )


def splits(mix: Metrics) -> Html:
    names = list(get_nested(mix, "conversations", default={}))
    sizes = ((name, *(number(get_nested(mix, unit, name)) for unit in ("conversations", "bytes"))) for name in names)
    return table("Split by group", ("", "conversations", "bytes as rendered"), sizes)


def left_out(mix: Metrics) -> Html:
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


def contents(cards: Mapping[str, Card]) -> Html:
    rows = [
        (
            source,
            number(card.conversations),
            quantiles(card.turns),
            quantiles(card.lengths),
            "–" if card.cut is None else number(card.cut),
            percent(card.trained_bytes / card.bytes if card.bytes else None),
        )
        for source, card in cards.items()
    ]
    unit = next(iter(cards.values())).unit
    head = ("", "sampled", "messages", unit, "over the context", "bytes trained")
    return table(f"Conversations: messages and {unit} as median, 95 % and maximum", head, rows)


def quantiles(spread: Spread) -> str:
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
