"""What a script comes to, without any of it being run."""

import pytest

from services.convert.errors import ConversionError
from services.convert.shell.interpreter import followed
from services.convert.shell.state import UNKNOWN, State


def ran(text: str, *arguments: str, **environment: str) -> list[list[str]]:
    return [list(each.words) for each in followed(text, arguments, environment).ran]


def last(text: str, *arguments: str, **environment: str) -> list[str]:
    return ran(text, *arguments, **environment)[-1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a=1; run $a ${a} \"$a\" '$a'", ["1", "1", "1", "$a"]),
        ("run ${X:-yes} ${X-yes} ${X:=kept} $X", ["yes", "yes", "kept", "kept"]),
        ("run ${A:-${B:-deep}}", ["deep"]),
        ("run ${FREQ:--1}", ["-1"]),
        ('run ${ROOT:-"${HOME}/verl"}', ["${oc.env:HOME}/verl"]),
        ("run $HOME/x $UNSET", ["${oc.env:HOME}/x", "${oc.env:UNSET}"]),
        (
            "a=path/to/file.tar.gz; run ${a##*/} ${a%.*} ${a%%.*} ${a#*/} ${#a}",
            ["file.tar.gz", "path/to/file.tar", "path/to/file", "to/file.tar.gz", "19"],
        ),
        ("a=x-y-x; run ${a/x/z} ${a//x/z} ${a^^} ${a:2:1}", ["z-y-x", "z-y-z", "X-Y-X", "y"]),
        (
            "a=512; run $((a * 3)) $(( (a + 1) / 2 )) $((1024*20)) $((a % 5 == 2 ? 7 : 8))",
            ["1536", "256", "20480", "7"],
        ),
        ("run `expr 3 + 4` $(expr 3 \\* 4) $(basename a/b.sh .sh) $(dirname a/b.sh)", ["7", "12", "b", "a"]),
        (
            'A=(x \'y z\'); A+=(w); run "${A[@]}" ${#A[@]} ${A[1]} "pre-${A[@]}"',
            ["x", "y z", "w", "3", "y", "z", "pre-x", "y z", "w"],
        ),
        ("declare -A M=([a]=1 [b]='2 3'); k=b; run ${M[a]} \"${M[$k]}\" ${#M[@]}", ["1", "2 3", "2"]),
        ("v='a b'; run $v \"$v\" x$v", ["a", "b", "a b", "xa", "b"]),
        ("run a#b 'it''s' \"say \\\"hi\\\"\" # remark", ["a#b", "its", 'say "hi"']),
        ('run $(pwd) $(cd "$(dirname "$0")" && pwd)', ["${oc.env:PWD}", "."]),
        ("run $'tab\\there'", ["tab\there"]),
    ],
)
def test_a_word_expands_as_a_shell_would(text: str, words: list[str]) -> None:
    assert last(text) == ["run", *words]


def test_arguments_and_their_defaults() -> None:
    script = 'ENGINE=${1:-vllm}\nshift 2\nrun $ENGINE "$@" $# "${@:2}"'
    assert last(script, "sglang", "x", "a b", "c") == ["run", "sglang", "a b", "c", "2", "c"]
    assert last(script) == ["run", "vllm", "0"]


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ('[ "$a" = 1 ]', True),
        ("[ $a -eq 1 ] && [ $a -lt 1 ]", False),
        ("[[ $name == qwen* && $a -ge 1 ]]", True),
        ('[[ "$name" =~ ^qwen[0-9] ]]', True),
        ('[ -z "$NOWHERE" ]', True),
        ('[ -n "${NOWHERE:-}" ]', False),
        ('[ -z "$HOME" ]', False),
        ("! [ -f data.parquet ]", True),
        ('[ "$a" != 1 -o "$name" = qwen3 ]', True),
        ("(( a > 0 ))", True),
        ('{ [ "$a" = 2 ] || [ "$name" = qwen3 ]; }', True),
        ('[ "$#" -lt 1 ]', True),
        ("false", False),
    ],
)
def test_a_condition_decides_which_branch_is_followed(condition: str, holds: bool) -> None:
    script = f"a=1; name=qwen3\nif {condition}; then\n  run yes\nelif true; then\n  run no\nelse\n  run never\nfi"
    assert last(script) == ["run", "yes" if holds else "no"]


def test_a_case_takes_the_first_pattern_that_fits() -> None:
    script = 'case "${D:-gpu}" in\n gpu | cuda) run a ;;\n n*)\n run b\n ;;\n *) run c; exit 1 ;;\nesac'
    assert last(script) == ["run", "a"]
    assert last(script, D="npu") == ["run", "b"]
    assert last(script, D="tpu") == ["run", "c"]


def test_loops_functions_and_evals_are_followed() -> None:
    assert ran("for x in a b; do run $x; done") == [["run", "a"], ["run", "b"]]
    assert last('go() { local n=$1; run "$n" "$@"; }\ngo 1 2') == ["run", "1", "1", "2"]
    assert last('cmd="run a b"; eval $cmd c') == ["run", "a", "b", "c"]
    assert last("bash -lc 'run \"x y\"'") == ["run", "x y"]
    assert last("while [ $# -gt 0 ]; do last=$1; shift; done\nrun $last", "a", "b") == ["run", "b"]


def test_lines_continue_over_remarks_between_them() -> None:
    script = "run a.b=1 \\\n  # c.d=2 \\\n  e.f=3 \\\n\n  # last\n  g.h=4\nrun other"
    assert ran(script) == [["run", "a.b=1", "e.f=3", "g.h=4"], ["run", "other"]]


def test_heredocs_pipes_and_redirections_are_not_arguments() -> None:
    script = "cat <<'END' > out\nrun 'never\nEND\nrun a 2>&1 | tee log.txt\nrun b > log 2> err &\nA=1 B=2 run c"
    assert [words for words in ran(script) if words[0] == "run"] == [["run", "a"], ["run", "b"], ["run", "c"]]


def test_a_variable_before_a_command_is_its_own() -> None:
    assert ran("A=1 run $B\nrun $A") == [["run", "${oc.env:B}"], ["run", "${oc.env:A}"]]


def test_what_only_running_would_tell_is_remarked() -> None:
    state: State = followed("run $(date +%Y) $(nvidia-smi -L | wc -l)")
    assert list(state.ran[-1].words) == ["run", UNKNOWN, UNKNOWN]
    assert state.remarks == [
        "$(date +%Y) is not run: its output is not known",
        "$(nvidia-smi -L | wc -l) is not run: its output is not known",
    ]


@pytest.mark.parametrize(
    "script",
    [
        "echo '4*2' | bc",
        "echo Qwen/X | cut -d/ -f2",
        "basename a | tr a A || echo x",
        "{ echo a; echo b; } | wc -l",
    ],
)
def test_what_a_pipeline_prints_is_not_known(script: str) -> None:
    state = followed(f"run $({script})")
    assert list(state.ran[-1].words) == ["run", UNKNOWN]
    assert state.remarks == [f"$({script}) is not run: its output is not known"]


def test_a_probe_in_a_substitution_fails() -> None:
    assert last("run $(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)") == ["run", "gpu"]


@pytest.mark.parametrize("text", ["run 'never closed", "if true; then run", "A=(a b", "run $(a", "case x in a) run"])
def test_an_incomplete_script_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(ConversionError, match=r"line 1|line 2"):
        followed(text)


def test_what_can_be_read_of_a_broken_script_is_followed() -> None:
    script = "size=8\nif [ $size = 8 ]; then\n  echo never closed\nARGS=(\n  a.b=$size\n)\n"
    script += 'run \\\n  "${ARGS[@]}" \\\n  c.d=2\n'
    state = followed(script)
    assert [list(each.words) for each in state.ran] == [["run", "a.b=8", "c.d=2"]]
    assert "piece by piece" in state.remarks[0]


def test_nothing_is_ever_run(tmp_path) -> None:  # type: ignore[no-untyped-def]
    there = tmp_path / "touched"
    followed(f"touch {there}; $(touch {there}); eval 'touch {there}'; (touch {there}); echo `touch {there}`")
    assert not there.exists()
