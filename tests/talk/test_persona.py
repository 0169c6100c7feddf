import pytest

from chatmill.talk.grammar import Text
from chatmill.talk.persona import read_persona
from support.talk import PERSONA, write_persona


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("my {pet} [", "my {pet} [[", r"intents\.pet_is_ill\.known\.1: .* bracket at character 10 .* not closed"),
        ("hiya", "[hiya]", r"intents\.greeting\.held_back\.1: .* may be empty: remove an empty alternative"),
        ("my {pet} [", "my {hat} [", r"intents\.pet_is_ill\.known\.1: .* unknown slot {hat}: add it to slots"),
        ("pet_name: [Rex, Luna]", "pet_name: [Rex, '?']", r"slots\.pet_name\.2: word: '\?' has neither letters"),
        ("pet_name: [Rex, Luna]", "pet_name: [Rex, Rex]", r"slots\.pet_name\.2: 'Rex' occurs twice: remove one"),
        ("pet_name: [Rex, Luna]", "pet_name: [{many: Rexes}]", r"slots\.pet_name\.1: .*: no form 'word': add it"),
        ("[Rex, Luna]", "[Rex]\n  y: [b, {wo rd: a}]", r"slots\.y\.1\..*wo rd"),
        ("[Rex, Luna]", "[]", r"slots\.pet_name: List should have at least 1 item.*: add some"),
        ("[Rex, Luna]", "['(Rex|Max']", r"slots\.pet_name\.1: '\(Rex\|Max' has a bracket"),
        ("hiya", "(a|b|c|d)" * 9, r"greeting\.held_back\.1: .* gives 262,144 texts, more than 100,000: split it"),
        (
            '"no, i meant my {pet.2}"',
            '"no, {pet_name.3}"',
            r"follow\.2\.known\.1: .* needs 3 words of the slot pet_name",
        ),
        ('    held_back: ["make me laugh"]\n', "", r"intents\.joke\.held_back: Field required: add it"),
        ("- known: [", "- konwn: [], known: [", "not YAML"),
        ("weight: 2", "wieght: 2", r"intents\.greeting\.wieght: Extra inputs are not permitted: remove it, or correct"),
        ("hiya", "[hiya] {the {pet}|it}", r"held_back\.1: .* has braces in {the {pet}}: before a \| stands the name"),
        ("held_back: [", "heldback: [", r"intents\.\w+\.heldback: Extra inputs are not permitted: remove it, or"),
        ("weight: 2", "weight: inf", r"intents\.greeting\.weight: Input should be less than or equal to 1000000"),
        (
            "{pet_name|your {pet}}",
            "{pet_name}",
            r"pet_is_ill\.answers: after 'my {pet} .*{pet_name} may be unsaid: add",
        ),
        ("You have not told me your", "{name} is your", r"facts\.name\.unknown: after .*{name} may be unsaid"),
        ("make me laugh", "Hello, there!", r"'Hello, there!' is a phrasing of greeting and of joke"),
        ("tell me a joke", "call me [a ]{name}", r"'call me Ana' is a phrasing of joke and of facts/name/tell"),
        ("(he|she) does not eat", "no, i meant my cat", r"'no, i meant my cat' is a phrasing of pet_is_ill/1"),
        ("  joke:\n    known", "  a/b:\n    known", r"intents\.a/b\.\[key\]: String should match pattern"),
        ("slots:\n", "slots: " + "[" * 100, "not YAML: while parsing"),
        ("intents:", "other:", "other: Extra inputs are not permitted|intents: Field required"),
    ],
)
def test_what_is_wrong_with_the_file_is_said_in_one_line(tmp_path, old, new, message):
    assert old in PERSONA
    file = write_persona(tmp_path, PERSONA.replace(old, new, 1))
    with pytest.raises(ValueError, match=rf"^{file}: .*({message})") as error:
        read_persona(file)
    assert "\n" not in str(error.value)


def test_what_can_hardly_be_learnt_is_said(tmp_path):
    warnings = read_persona(write_persona(tmp_path)).warnings
    assert any(line.startswith("intents.joke.known: 1 of the 30 texts") for line in warnings), warnings


def test_the_files_of_a_folder_are_one_persona(tmp_path):
    (tmp_path / "answers.yaml").write_text(
        'intents: {greeting: {known: [good day], answers: ["Hi, {name|you}!"], follow: {fine: {answers: [Good.]}}}}'
    )
    messages = tmp_path / "messages.yml"
    messages.write_text(
        "slots: {name: [Ana]}\n"
        "intents: {greeting: {known: [hi], held_back: [hey], follow: {fine: {known: [fine], held_back: [well]}}}}"
    )
    (greeting,) = read_persona(tmp_path).intents
    assert greeting.known == (Text("good day"), Text("hi"))
    assert [exchange.path for exchange in greeting.follow] == ["greeting/fine"]
    messages.write_text("intents: {greeting: {known: hi}}")
    with pytest.raises(ValueError, match=r"messages\.yml: intents\.greeting\.known is in another file.*: remove it"):
        read_persona(tmp_path)
    messages.write_text("- hi")
    with pytest.raises(ValueError, match=r"messages\.yml: expected a map, .*: write its sections, or move it"):
        read_persona(tmp_path)
    with pytest.raises(ValueError, match=r"greeting\.held_back, .*fine\.known, .*: Field required: add it"):
        read_persona(tmp_path / "answers.yaml")
