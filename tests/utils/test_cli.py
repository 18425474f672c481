"""Flags, their conversions and their errors, against small configs made for the purpose."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import pytest

from appo.utils.cli import check_layer, declared_options, parse, reference_page, typed_word
from appo.utils.options import ConfigError, limits, nearest_names, option, to_text


@dataclass(frozen=True)
class Engine:
    """How the engine runs.

    This second paragraph is for programmers.
    """

    use_turbo: bool = option(False, "Blow harder")
    num_strokes: int = option(4, "Strokes per turn", minimum=2, maximum=10**9, aliases=("strokes",))
    heat: float = option(0.5, "Heat of the plug", minimum=0.0)
    patience: float = option(5.0, "Seconds until it starts. inf: no limit", minimum=0.0, may_be_infinite=True)
    fuel: str = option("diesel", "What burns", choices=("diesel", "petrol"))


@dataclass(frozen=True)
class Body:
    """How the body looks."""

    color: str = option("", "Paint")
    widths: tuple[int, ...] = option((64, 64), "Widths of the layers")
    limit: int | None = option(None, "Highest number of things", minimum=1)


GROUPS = {"engine": Engine, "body": Body}


def typed(*argv, lower=None):
    parsed = parse(argv, GROUPS, lower, prog="prog")
    return {name: parsed.values[name] for name in parsed.typed}


def refusal(*argv):
    with pytest.raises(ConfigError) as caught:
        parse(argv, GROUPS, prog="prog")
    return str(caught.value)


@pytest.mark.parametrize(
    "word, value",
    [
        ("--use_turbo", True),
        ("--use_turbo=True", True),
        ("--use_turbo=true", True),
        ("--use_turbo=1", True),
        ("--use_turbo=False", False),
        ("--use_turbo=false", False),
        ("--use_turbo=0", False),
        ("--use-turbo=no", False),
    ],
)
def test_a_boolean_takes_a_bare_flag_or_a_word(word, value):
    assert typed(word) == {"use_turbo": value}


def test_a_bare_boolean_does_not_swallow_the_next_flag():
    assert typed("--use_turbo", "--heat=1") == {"use_turbo": True, "heat": 1.0}
    assert typed("--use_turbo", "False", "--heat=1") == {"use_turbo": False, "heat": 1.0}


@pytest.mark.parametrize("text, value", [("8", 8), ("1e7", 10_000_000), ("2.5e1", 25), ("1_000", 1000), ("100.0", 100)])
def test_an_integer_takes_whole_numbers_in_any_notation(text, value):
    found = typed(f"--num_strokes={text}")["num_strokes"]
    assert found == value
    assert type(found) is int


@pytest.mark.parametrize("text", ["1.5", "x", "", "inf", "nan", "1e-3", "True", "1e30", "9" * 30, "1e999999999"])
def test_what_is_no_whole_number_is_refused_by_name(text):
    message = refusal(f"--num_strokes={text}")
    assert message.startswith(f"command line sets num_strokes={text!r}; expected a whole number")


def test_hyphens_underscores_spaces_and_aliases_mean_the_same():
    spellings = [("--num_strokes=8",), ("--num-strokes=8",), ("--num_strokes", "8"), ("--strokes=8",)]
    assert all(typed(*words) == {"num_strokes": 8} for words in spellings)


def test_negative_and_exponential_numbers_may_follow_a_space():
    assert typed("--heat", "1e-3") == {"heat": 1e-3}
    assert refusal("--heat", "-1e-3") == "command line sets heat=-0.001; allowed: at least 0"


def test_lists_and_optional_values_are_text_with_commas_and_none():
    assert typed("--widths=32,16") == {"widths": (32, 16)}
    assert typed("--widths=") == {"widths": ()}
    assert typed("--limit=5") == {"limit": 5}
    assert typed("--limit=None") == {"limit": None}
    assert "expected a whole number such as 100 or 1e7" in refusal("--widths=32,x")
    assert refusal("--heat=none") == "command line sets heat=None; expected a finite number"


@pytest.mark.parametrize(
    "words, message",
    [
        (["--use_trubo=1"], "command line sets unknown option 'use_trubo'; did you mean use_turbo?"),
        (["--use-trubo"], "command line sets unknown option 'use_trubo'; did you mean use_turbo?"),
        (["--qqq=1"], "command line sets unknown option 'qqq'"),
        (
            ["--qqq=1", "--zzz", "-4", "--use-trubo", "yes", "stray", "--qqq=2"],
            "command line sets unknown options: 'qqq', 'zzz', 'use_trubo' (did you mean use_turbo?)",
        ),
        (["--no-use-turbo"], "command line sets unknown option 'no_use_turbo'; type --use_turbo=False"),
        (["--color.x=1"], "command line sets unknown option 'color.x'; did you mean color?"),
        (["stray"], "command line holds 'stray', which belongs to no option; options are typed --name=value"),
        (["--heat=1", "x"], "command line holds 'x', which belongs to no option; options are typed --name=value"),
        (["--heat", "1", "strokes=8"], "command line holds 'strokes=8'; did you mean --strokes=8?"),
        (["--use_turbo", "yes", "heat", "2"], "command line holds 'heat'; did you mean --heat?"),
        (["num-strokes=8"], "command line holds 'num-strokes=8'; did you mean --num-strokes=8?"),
        (["--heat"], "command line sets heat without a value; type --heat=FLOAT"),
        (["--heat=warm"], "command line sets heat='warm'; expected a finite number"),
        (["--heat=nan"], "command line sets heat='nan'; expected a finite number"),
        (["--heat=inf"], "command line sets heat='inf'; expected a finite number"),
        (["--heat=-Infinity"], "command line sets heat='-Infinity'; expected a finite number"),
        (["--heat=1e999"], "command line sets heat='1e999'; expected a finite number"),
        (["--patience=nan"], "command line sets patience='nan'; expected a number"),
        (["--patience=-inf"], "command line sets patience=-inf; allowed: at least 0, or inf"),
        (["--color=\udcff"], "command line sets color='\\udcff'; expected text in UTF-8"),
        (["--\udcff=1"], "command line sets unknown option '\\udcff'"),
        (["\udcff"], "command line holds '\\udcff', which belongs to no option; options are typed --name=value"),
        (["--use_turbo=maybe"], "command line sets use_turbo='maybe'; expected True or False"),
        (["--num_strokes=1"], "command line sets num_strokes=1; allowed: at least 2, at most 1e9"),
        (["--fuel=water"], "command line sets fuel='water'; allowed: diesel, petrol"),
    ],
)
def test_a_bad_command_line_gets_one_sentence(words, message):
    assert refusal(*words) == message


def test_hints_come_before_similar_names_and_last_hints_after_them():
    def told(word):
        with pytest.raises(ConfigError) as caught:
            parse(
                [word],
                GROUPS,
                prog="x",
                hint=lambda name: "first" if name == "heet" else "",
                last_hint=lambda name: f"{name} at last",
            )
        return str(caught.value).partition("; ")[2]

    assert told("--heet=1") == "first"
    assert told("--haet=1") == "did you mean heat?"
    assert told("--qqq=1") == "qqq at last"


def test_only_names_that_are_about_as_near_as_the_nearest_are_told():
    assert nearest_names("lerning_rate", ["rnn_type", "learning_rate"]) == ["learning_rate"]
    assert nearest_names("res_x", ["res_w", "res_h", "reward_scale"]) == ["res_w", "res_h"]
    assert nearest_names("qqq", ["res_w"]) == []


def test_lower_layers_stand_where_nothing_is_typed():
    parsed = parse(["--heat=2"], GROUPS, {"heat": 3.0, "color": "red"}, prog="prog")
    assert (parsed.values["heat"], parsed.values["color"], parsed.values["fuel"]) == (2.0, "red", "diesel")
    assert parsed.typed == {"heat"}


def test_typing_the_default_counts_as_typed():
    assert typed("--fuel=diesel") == {"fuel": "diesel"}


def test_the_last_of_a_repeated_flag_counts_as_for_a_peek():
    assert typed("--heat=1", "--heat=2") == {"heat": 2.0}
    assert typed_word(["--heat=1", "--heat", "2"], "heat") == "2"
    assert typed_word(["--use-turbo=x"], "use_turbo") == "x"
    assert typed_word(["--heat", "--fuel=petrol"], "heat") is None


def test_help_is_grouped_and_shows_the_defaults_in_force(capsys):
    with pytest.raises(SystemExit) as caught:
        parse(["--help"], GROUPS, {"color": "red"}, prog="prog", description="Builds cars.")
    text = " ".join(capsys.readouterr().out.split())
    assert caught.value.code == 0
    parts = ["Builds cars.", "engine options", "How the engine runs.", "--num_strokes", "body options", "--color"]
    assert [text.index(part) for part in parts] == sorted(text.index(part) for part in parts)
    for part in ("--strokes", "default: 4; at least 2, at most 1e9", "one of diesel, petrol", "default: red"):
        assert part in text.replace(" │ │ ", " ")
    assert "for programmers" not in text


def test_a_name_declared_twice_is_refused():
    @dataclass(frozen=True)
    class Trailer:
        """A trailer."""

        strokes: int = option(1, "Whatever")

    message = "option 'strokes' is declared twice, in engine and in trailer; rename one"
    with pytest.raises(ConfigError, match=message):
        declared_options({"engine": Engine, "trailer": Trailer})


def test_a_layer_is_checked_in_the_same_words_as_the_command_line():
    options = declared_options(GROUPS)
    checked = check_layer({"num_strokes": 8.0, "heat": 1, "widths": [1, 2], "limit": None}, options, "config.json")
    assert checked == {"num_strokes": 8, "heat": 1.0, "widths": (1, 2), "limit": None}
    assert [type(checked[name]) for name in ("num_strokes", "heat")] == [int, float]
    assert check_layer({"strokes": 6, "patience": "inf"}, options, "x") == {"num_strokes": 6, "patience": math.inf}
    refused: list[tuple[dict[str, Any], str]] = [
        ({"lr": 1}, "config.json sets unknown option 'lr'"),
        ({"num_strokes": True}, "config.json sets num_strokes=True; expected a whole number such as 100 or 1e7"),
        ({"use_turbo": 1}, "config.json sets use_turbo=1; expected True or False"),
        ({"color": 3}, "config.json sets color=3; expected text"),
        ({"color": "\ud800"}, "config.json sets color='\\ud800'; expected text in UTF-8"),
        ({"heat": math.inf}, "config.json sets heat=inf; expected a finite number"),
        ({"widths": 3}, "config.json sets widths=3; expected a whole number such as 100 or 1e7, or several with"),
        ({"heat": -1}, "config.json sets heat=-1.0; allowed: at least 0"),
        ({"heat": [1]}, "config.json sets heat=[1]; expected a finite number"),
    ]
    for values, message in refused:
        with pytest.raises(ConfigError) as caught:
            check_layer(values, options, "config.json")
        assert str(caught.value).startswith(message)


def test_values_are_shown_as_a_user_would_type_them():
    shown = {1e10: "1e10", 10**10: "1e10", 1e-4: "0.0001", 1e-8: "1e-8", 0.1 + 0.2: "0.30000000000000004", 5: "5"}
    assert {value: to_text(value) for value in shown} == shown
    assert to_text(True) == "True"
    assert to_text((64, 64)) == "64,64"
    assert limits(declared_options(GROUPS)["heat"].rule) == "at least 0"


def test_the_reference_page_has_every_option_with_default_and_limits():
    one = next(iter(GROUPS))
    page = reference_page(GROUPS, {"--env=again_...": GROUPS[one]}, "make docs")
    own, _, again = page.partition("## --env=again_...")
    assert again.count("| `--") == sum(f"`--{field.name}`" in own for field in dataclasses.fields(GROUPS[one]))
    page = own
    assert "| `--num_strokes`, `--strokes` | `4` | at least 2, at most 1e9 | Strokes per turn |" in page
    assert page.count("| `--") == 8
    assert "| `--patience` | `5` | at least 0, or inf |" in page
